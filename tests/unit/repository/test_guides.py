"""The README and the guides are short and plain, and their links, files, commands and cells exist.

`tests/notebook/test_documents.py` runs their cells.
"""

import ast
import importlib.util
import inspect
import re
import shlex
import tomllib
from collections import Counter
from itertools import takewhile
from pathlib import Path

import pytest

import rekindle
from rekindle.__main__ import _parser
from rekindle.settings.engine import Settings
from tests.documents import DOCUMENTS, GUIDES, PAGES, ROOT, anchors, blocks, commands, links, name

BYTES = {ROOT / "README.md": 12 * 1024}
GUIDE_BYTES = 15 * 1024
OTHERS = {"curl", "hf", "inspect", "llm", "ray", "uvicorn", ".ci/run"}
"""Commands of other projects."""

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=name)
each_page = pytest.mark.parametrize("document", PAGES, ids=name)


@each_document
def test_a_document_is_short(document: Path) -> None:
    assert len(document.read_bytes()) <= BYTES.get(document, GUIDE_BYTES)


@each_document
def test_lines_have_at_most_120_characters(document: Path) -> None:
    lines = document.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith(("|", "!["))] == []


@each_document
def test_links_and_anchors_resolve(document: Path) -> None:
    for target in links(document):
        path, _, anchor = target.partition("#")
        place = (document.parent / path).resolve() if path else document
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), target


def bound_names(cell: str) -> set[str]:
    """Return the names that a cell binds for all cells of marimo: those at its top, without an underscore first."""
    names, nodes = set[str](), list[ast.AST](ast.parse(cell).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        else:
            names |= {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else set()
            scopes = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
            nodes += [] if isinstance(node, scopes) else ast.iter_child_nodes(node)
    return {each for each in names if not each.startswith("_")}


@each_document
def test_cells_for_marimo_bind_no_name_twice(document: Path) -> None:
    cells = [block.text for block in blocks(document, "python")]
    for_marimo = [cell for cell in cells if "marimo" in cell]
    opening = [cell for cell in cells if "rekindle.open(" in cell and cell not in for_marimo][:1] if for_marimo else []
    together = [*opening, *for_marimo]
    counts = Counter(each for cell in together for each in bound_names(cell))
    assert [each for each, count in counts.items() if count > 1] == [], "marimo refuses such a notebook"
    assert document.name != "notebook.md" or len(together) == 2, "the cell that opens a session, and the chat"


def test_names_of_a_cell_for_marimo_are_those_at_its_top() -> None:
    cell = "import a.b, c as d\nfor e in f:\n    _g = h = e\ndef i(j): k = 1\nawait l(m)\n"
    assert bound_names(cell) == {"a", "d", "e", "h", "i"}


def test_the_index_lists_every_guide_once() -> None:
    entries = [link for link in links(GUIDES / "README.md") if re.fullmatch(r"\w+\.md", link)]
    assert sorted(set(entries)) == [path.name for path in PAGES if path.parent == GUIDES and path.name != "README.md"]


@each_document
def test_named_files_targets_and_modules_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:tests|toolkit|kernels|tutorials|backend)/[\w./]+)", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m (tests[\w.]*)", text):
        assert importlib.util.find_spec(module), module
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert target in _targets(), target


def test_every_promise_of_the_readme_names_what_holds_it() -> None:
    """Check each row of the index's table of promises for a test or a bench."""
    lines = (GUIDES / "README.md").read_text(encoding="utf-8").splitlines()
    rows = list(
        takewhile(
            lambda line: line.startswith("|"), lines[lines.index("| README says | tested or measured by |") + 2 :]
        )
    )
    assert len(rows) >= 12
    for row in rows:
        assert re.search(r"`(tests/[\w./]+|python -m tests\.[\w.]+|make [a-z-]+)", row), row


@each_document
def test_commands_are_known(document: Path) -> None:
    for command in commands(document):
        first, *arguments = shlex.split(command.rpartition(" | ")[2].partition(" < ")[0])  # the last one of a pipe
        match [first, *arguments]:
            case ["rekindle", *rest] | ["python", "-m", "rekindle", *rest]:
                _parser(*rest[:1]).parse_args(rest)
            case ["python", "-m", module, *_]:
                assert importlib.util.find_spec(module), command
            case ["make", *rest]:
                assert {word for word in rest if "=" not in word} <= _targets(), command
            case ["pip", "install", *_]:
                extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
                assert set(re.findall(r"\w[\w-]*(?=[,\]])", command)) <= set(extras), command
            case _:
                assert first in OTHERS, command


@each_document
def test_cells_compile_and_open_takes_their_keywords(document: Path) -> None:
    keywords = set(Settings.__annotations__) | set(inspect.signature(rekindle.open).parameters)
    for block in blocks(document, "python"):
        tree = compile(block.text, name(document), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"rekindle.open", "rekindle.open_sync"}:
                assert {keyword.arg for keyword in node.keywords} <= keywords, f"{name(document)}:{block.line}"


def _targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.search(r"^\.PHONY: (.*)$", text, re.M)[1].split())  # type: ignore[index]
