"""The mutation tool for the tests makes the reported change of the product, and nothing else."""

import ast
from pathlib import Path

import pytest

from tests.mutants import ROOT, TESTS, Mutations, holders_of


def mutants_of(source: str) -> list[str]:
    """Return all changed forms of a source."""
    return [mutation.applied(source.encode()).decode() for mutation in Mutations(source.encode())]


@pytest.mark.parametrize(
    ("source", "mutants"),
    [
        ("a < b", ["a <= b"]),
        ("a <= (b)", ["a < (b)"]),
        ("(a) > b >= c", ["(a) >= b >= c", "(a) > b > c"]),
        ("a is not b", ["a is b"]),
        ("a not in b", ["a in b"]),
        ("é and b or c", ["é and b and c", "é or b or c"]),
        ("(a  # or +\n + b)", ["(a  # or +\n - b)"]),
        ("not (a)", ["(a)"]),
        ("f(0, 7, True)", ["pass", "f(1, 7, True)", "f(-1, 7, True)", "f(0, 8, True)", "f(0, 7, False)"]),
        ("a = min(b)", ["a = max(b)"]),
        ("a += b", ["a -= b", "pass"]),
        ("a.b = c", ["pass"]),
        ("await f(\n  a,\n)", ["pass\n\n"]),
        ("while a:\n break", ["while a:\n continue"]),
        ("def f():\n return g(\n  b)", ["def f():\n return None\n"]),
    ],
)
def test_each_thing_that_a_line_does_is_changed(source: str, mutants: list[str]) -> None:
    assert mutants_of(source) == mutants


@pytest.mark.parametrize(
    "source",
    [
        '"""A sum of 1 + 1."""',
        "a: b = c",
        "def f(a: 'b < c') -> 0: ...",
        "raise Error(a + b)",
        "assert a < b, c + d",
        'f"{a + b}"',
        "logger.info(a + b)",
        "def __repr__(self):\n return a + b",
        "MOST = 1",
        "def f():\n return None",
        "@f(1)\ndef g(): ...",
    ],
)
def test_what_is_only_said_is_left_alone(source: str) -> None:
    assert mutants_of(source) == []


def test_changed_files_of_the_product_can_be_read_and_have_as_many_lines() -> None:
    path = ROOT / "toolkit/rekindle/core/scheduler/planner.py"
    source = path.read_bytes()
    mutations = list(Mutations(source))
    assert len(mutations) > 50
    for mutation in mutations:
        mutant = mutation.applied(source)
        assert ast.dump(ast.parse(mutant)) != ast.dump(ast.parse(source)), mutation.describe(source)
        assert len(mutant.splitlines()) == len(source.splitlines())


def test_a_mutation_is_told_with_its_line_before_and_after() -> None:
    source = b"a = 5\nif a < b:\n    c()\n"
    assert [mutation.describe(source) for mutation in Mutations(source)][1] == "2\n  - if a < b:\n  + if a <= b:"


def test_the_holders_of_a_file_are_those_of_its_innermost_folder_nearest_first() -> None:
    tree, planner = (
        holders_of(Path("toolkit/rekindle/core/scheduler", name)) for name in ("cache/tree.py", "planner.py")
    )
    assert "tests/unit/scheduler/test_prefix_tree.py" in tree[0]
    assert planner[0] == ["tests/unit/scheduler/test_scheduler.py"]
    assert holders_of(Path("toolkit/rekindle/core/page.py")) == [["tests/unit"]]


@pytest.mark.parametrize("folder", TESTS)
def test_every_folder_and_file_that_is_named_is_there(folder: str) -> None:
    assert (ROOT / "toolkit/rekindle" / folder).is_dir()
    for name in TESTS[folder].split():
        assert list(ROOT.glob(f"tests/unit/*/test_{name}.py"))
