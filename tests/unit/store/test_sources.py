"""The digest of a module's sources covers what it imports, at once or later, and nothing else."""

import ast
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import pytest

from rekindle.assembly.loading import identity
from rekindle.core.device.programs import key
from rekindle.core.store.sources import SOURCES, Sources


@pytest.fixture(autouse=True)
def _notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the notes apart from those of other tests."""
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Write a package of four modules, and kernels."""
    files = {
        "app/__init__.py": "from app import unused",
        "app/root.py": "from app.parts import near",
        "app/parts/__init__.py": "",
        "app/parts/near.py": "def late():\n    from app.parts.far import (\n        NUMBER,  # one\n    )",
        "app/parts/far.py": "import rekindle_kernels.api",
        "app/unused.py": "import app.root",
        "kernels/api.py": "",
        "kernels/gpu/tuning.json": "{}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace("app", "rekindle"))
    return tmp_path


def sources(tree: Path) -> Sources:
    return Sources({"rekindle": str(tree / "app"), "rekindle_kernels": str(tree / "kernels")})


USED = ("root.py", "parts/near.py", "parts/far.py")


def test_the_files_of_a_module_are_those_that_it_can_import(tree: Path) -> None:
    kernels = {"rekindle_kernels/api.py", "rekindle_kernels/gpu/tuning.json"}
    packages = {"rekindle/parts/__init__.py"}
    assert set(sources(tree).files("rekindle.root")) == {f"rekindle/{name}" for name in USED} | kernels | packages
    assert set(sources(tree).files("rekindle.parts.far")) == {"rekindle/parts/far.py"} | kernels


@pytest.mark.parametrize("name", [*(f"app/{name}" for name in USED), "kernels/gpu/tuning.json"])
def test_an_edit_of_one_of_them_is_another_digest(tree: Path, name: str) -> None:
    before = sources(tree).digest("rekindle.root")
    text = (tree / name).read_text()
    (tree / name).write_text(f"{text}\n")
    assert sources(tree).digest("rekindle.root") != before
    (tree / name).write_text(text)
    assert sources(tree).digest("rekindle.root") == before


def test_edits_elsewhere_change_no_digest(tree: Path) -> None:
    before = sources(tree).digest("rekindle.root")
    (tree / "app/unused.py").write_text("edited")
    assert sources(tree).digest("rekindle.root") == before


def test_sources_that_were_edited_after_the_import_never_have_the_same_digest_twice(tree: Path) -> None:
    imported = sources(tree)
    before = imported.digest("rekindle.root")
    (tree / "app/root.py").write_text("edited")
    assert len({imported.digest("rekindle.root") for _ in range(3)} | {before}) == 4


def test_a_digest_is_computed_once_by_all_processes(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sources(tree).digest("rekindle.root")
    monkeypatch.setattr(Sources, "_read", lambda *_: pytest.fail("the note has the digest"))
    assert sources(tree).digest("rekindle.root") == before
    (tree / "app/root.py").write_text("edited")
    with pytest.raises(pytest.fail.Exception):
        sources(tree).digest("rekindle.root")


def imports_of(file: Path) -> Iterator[str]:
    """Yield the imports of a source, at once or later."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports are not followed"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    ("root", "example"),
    [
        (key.CODE, "rekindle/core/models/layers.py"),
        (identity.CODE, "rekindle/formats/images/processors/arrays.py"),
    ],
)
def test_every_module_that_the_parser_of_python_finds_is_among_the_files(root: str, example: str) -> None:
    files = SOURCES.files(root)
    assert example in files
    visited, rest = set[str](), [root]
    while rest:
        name = rest.pop()
        if name in visited or not name.startswith(("rekindle.", "rekindle_kernels.")):
            continue
        visited.add(name)
        parent = name.rpartition(".")[0]
        if (package := util.find_spec(parent)) is None or package.submodule_search_locations is None:
            continue
        spec = util.find_spec(name)
        if spec is not None and spec.origin is not None:
            place = name.replace(".", "/")
            assert f"{place}.py" in files or f"{place}/__init__.py" in files
            rest += imports_of(Path(spec.origin))
    assert len(visited) > 80
