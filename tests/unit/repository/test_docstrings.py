"""The docstring of a function begins with a verb, and the docstring of a class or property with a noun."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLACES = ("toolkit", "kernels", "tests", "tutorials")

POINTERS = re.compile(
    "also|as|at|because|both|by|either|for|from|if|its?|of|such|that|them|these|they|those|what|with",
)
"""First words in need of a context before the text."""
NO_VERBS = re.compile(
    "after|again|all|always|an?|and|another|any|are|before|bytes|each|every|few|here|how|in|into|is|less|lines|like|many|"
    "more|most|neither|never|no|nobody|none|nor|nothing|now|off|on|once|one|only|onto|or|others?|out|over|per|rows|same|"
    "several|so|some|text|the|then|there|this|three|time|tokens|two|under|until|up|when|where|whether|which|whichever|"
    "who|whose|why|within|without|words",
)
"""First words other than verbs."""
QUESTIONS = re.compile("how|whether")
"""First words of a clause in the place of a noun."""


def documented(path: Path) -> Iterator[tuple[ast.AST, str, str]]:
    """Yield (node, name, docstring) of every documented class and function in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            text = ast.get_docstring(node)
            if text:
                yield node, node.name, text


def is_a_thing(node: ast.AST) -> bool:
    """Return True for a class or a property: a thing rather than an act."""
    if isinstance(node, ast.FunctionDef):
        return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
    return isinstance(node, ast.ClassDef)


@pytest.mark.parametrize("place", PLACES)
def test_no_docstring_begins_headless(place: str) -> None:
    headless = []
    for path in sorted((ROOT / place).rglob("*.py")):
        for node, name, text in documented(path):
            first = re.sub(r"[^\w-]", "", text.split()[0]).lower()
            unsaid = QUESTIONS if is_a_thing(node) else NO_VERBS
            if POINTERS.fullmatch(first) or unsaid.fullmatch(first):
                headless.append(f"{path.relative_to(ROOT)}: {name}: {text.splitlines()[0]}")
    assert headless == []
