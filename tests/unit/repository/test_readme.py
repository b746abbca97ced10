"""The map of CONTRIBUTING has every folder of the package and every file at its top exactly once."""

import ast
import re
import subprocess
from collections import Counter
from itertools import chain, takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "toolkit" / "rekindle"
TOP = {
    ".ci",
    ".clang-format",
    ".gitattributes",
    ".github",
    ".gitignore",
    ".pre-commit-config.yaml",
    ".readthedocs.yaml",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "kernels",
    "pyproject.toml",
    "setup.cfg",
    "tests",
    "toolkit",
    "tutorials",
}


def named_in_the_map() -> list[Path]:
    """Return the folders and files in CONTRIBUTING's tree of the package, nested by indentation."""
    lines = iter((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines())
    assert any(line.startswith("toolkit/rekindle/") for line in lines), "the tree begins there"
    paths: list[Path] = []
    above: list[Path] = [PACKAGE]
    for line in takewhile(lambda line: not line.startswith("tests/"), lines):
        depth = (len(line) - len(line.lstrip())) // 2
        names = line.split("  ")[depth].split()
        paths += (above[depth - 1] / name for name in names)
        above = [*above[:depth], above[depth - 1] / names[0]]
    return paths


def test_every_folder_and_every_file_at_the_top_is_in_the_map_once() -> None:
    paths = named_in_the_map()
    folders = {path.parent for path in PACKAGE.rglob("__init__.py")} - {PACKAGE}
    modules = {*PACKAGE.glob("*.py"), *(PACKAGE / "core").glob("[!_]*.py")}
    assert sorted(paths) == sorted(folders | modules)


def test_git_has_no_further_files_at_the_top() -> None:
    """Check the files of git for outputs of examples."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode()
    assert {name.partition("/")[0] for name in listing.split("\0")} - {""} == TOP


def test_the_map_says_how_large_the_core_is_and_what_is_built_on_it() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if " lines in core/" in line]
    claims = [1000 * float(number.replace(",", ".")) for number in re.findall(r"\d+,\d+", line)]
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    core = sum(count for path, count in lines.items() if path.is_relative_to(PACKAGE / "core"))
    assert claims == pytest.approx([core, sum(lines.values()) - core], rel=0.05)


def test_nothing_in_the_core_imports_what_is_built_on_it_and_the_top_floor_has_few_rooms() -> None:
    """Check the contracts of setup.cfg by the sources themselves."""
    for path in (PACKAGE / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            ours = [name for name in names if name.split(".")[0] == "rekindle"]
            assert all(name.startswith("rekindle.core.") or name == "rekindle.core" for name in ours), path
    assert len([path for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()]) <= 19


def test_a_package_says_in_one_sentence_what_it_is_and_holds_no_code() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        if path.parent not in (
            PACKAGE,
            PACKAGE / "core" / "messages",
            PACKAGE / "core" / "models" / "config",
            PACKAGE / "server",
            PACKAGE / "testing",
            PACKAGE / "vllm",
        ):  # which gather names for users
            text = path.read_text(encoding="utf-8")
            assert text.startswith('"""'), path
            assert text.endswith('."""\n'), path
            assert text.count("\n") == 1, path


def test_the_cells_of_the_readme_are_those_of_a_notebook_of_marimo_too() -> None:
    """Expect each name in one cell alone: marimo refuses a notebook with two definitions of a name."""
    cells = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    trees = [ast.parse(cell, mode="exec") for cell in cells]
    names = [
        {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for tree in trees
    ]
    assert len(cells) > 8
    assert {name: count for name, count in Counter(chain(*names)).items() if count > 1} == {}
