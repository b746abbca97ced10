"""The lint of plain language finds what breaks a rule."""

import pytest

from tests.prose import findings_in, findings_in_document


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('def f():\n    """Return what stands around calls."""\n', "a clause in a noun's place"),
        ('def f():\n    """The sum."""\n', "no verb first"),
        ('class C:\n    """A line."""\n\n    x = 1\n    """A line of what which whose."""\n', "pronouns"),
        ("def f(asked):\n    pass\n", "a participle for a name"),
        ("match f():\n    case [said, *_]:\n        pass\n", "a participle for a name"),
        ("class C:\n    def __init__(self):\n        self._told = 1\n", "a participle for a name"),
    ],
)
def test_a_module_that_breaks_a_rule_is_found(source: str, rule: str) -> None:
    assert {finding.rule for finding in findings_in(source, "toolkit/rekindle/module.py")} == {rule}


def test_a_document_with_many_pronouns_is_found() -> None:
    assert [finding.rule for finding in findings_in_document("What is that, which `that` is not?", "a.md")] == [
        "pronouns"
    ]
    assert list(findings_in_document("The guide has few words of this kind. " * 10, "a.md")) == []
