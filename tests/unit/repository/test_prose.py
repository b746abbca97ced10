"""The language of docstrings and names is that of the field: nouns for things, verbs for acts, few pronouns."""

import ast

import pytest

from tests.prose import (
    EXCEPTIONS,
    MOST_PRONOUNS,
    PRODUCT,
    ROOT,
    Prose,
    docstrings,
    findings_in,
    findings_of,
    modules,
    names,
)


@pytest.mark.parametrize("package", PRODUCT)
def test_every_module_keeps_the_rules(package: str) -> None:
    assert [str(finding) for path in modules((package,)) for finding in findings_of(path)] == []


def test_all_docstrings_together_have_few_pronouns() -> None:
    texts = [text for path in modules() for _, text in docstrings(ast.parse(path.read_text()))]
    prose = Prose.of("\n".join(texts))
    assert prose.words > 50_000
    assert prose.rate <= MOST_PRONOUNS


def test_the_tests_have_few_pronouns_and_few_participles_as_names() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in modules(("tests",))}
    prose = Prose.of("\n".join(text for tree in trees.values() for _, text in docstrings(tree)))
    assert prose.rate <= MOST_PRONOUNS
    participles = [each for path in trees for each in findings_of(path) if each.rule == "a participle for a name"]
    assert len(participles) <= 0.005 * sum(len(list(names(tree))) for tree in trees.values())


def test_exceptions_are_few_and_needed() -> None:
    assert len(EXCEPTIONS) <= 30
    for exception in EXCEPTIONS:
        path, _, name = exception.partition(": ")
        bound = {bound for _, bound, _ in names(ast.parse((ROOT / path).read_text()))}
        assert name in bound, f"{exception} is no exception any more"


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('def f():\n    """Return what stands around calls."""\n', "a clause in a noun's place"),
        ('class C:\n    """A line."""\n\n    x = 1\n    """A line of what which whose."""\n', "pronouns"),
        ("def f(asked):\n    pass\n", "a participle for a name"),
        ("match f():\n    case [said, *_]:\n        pass\n", "a participle for a name"),
        ("class C:\n    def __init__(self):\n        self._told = 1\n", "a participle for a name"),
    ],
)
def test_a_module_that_breaks_a_rule_is_found(source: str, rule: str) -> None:
    assert {finding.rule for finding in findings_in(source, "module.py")} == {rule}
