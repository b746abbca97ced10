"""The README's map has every folder of the package and every file at its top exactly once."""

from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "toolkit" / "rekindle"


def named_in_the_map() -> list[Path]:
    """Return the folders and files in the README's tree of the package, which nests by indentation."""
    lines = iter((ROOT / "README.md").read_text(encoding="utf-8").splitlines())
    assert any(line.startswith("toolkit/rekindle/") for line in lines), "the tree begins there"
    found: list[Path] = []
    above: list[Path] = [PACKAGE]
    for line in takewhile(lambda line: not line.startswith("tests/"), lines):
        depth = (len(line) - len(line.lstrip())) // 2
        names = line.split("  ")[depth].split()
        found += (above[depth - 1] / name for name in names)
        above = [*above[:depth], above[depth - 1] / names[0]]
    return found


def test_every_folder_and_every_file_at_the_top_is_in_the_map_once() -> None:
    named = named_in_the_map()
    folders = {path.parent for path in PACKAGE.rglob("__init__.py")} - {PACKAGE}
    assert sorted(named) == sorted(folders | set(PACKAGE.glob("*.py")))


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    for folder in (path.parent for path in PACKAGE.rglob("__init__.py")):
        files = list(folder.glob("*.py"))
        entries = [path for path in folder.iterdir() if path.name != "__pycache__"]
        if folder.name == "families":  # one small file for each, all alike
            continue
        assert len(entries) <= 24
        assert len(files) <= 13, f"{folder.relative_to(ROOT)} has {len(files)} files: which of them are a room?"


def test_a_package_says_in_one_sentence_what_it_is_and_holds_no_code() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        if path.parent not in (
            PACKAGE,
            PACKAGE / "messages",
            PACKAGE / "server",
            PACKAGE / "testing",
        ):  # which gather names for users
            text = path.read_text(encoding="utf-8")
            assert text.startswith('"""'), path
            assert text.endswith('."""\n'), path
            assert text.count("\n") == 1, path
