"""Lints docstrings, names and documents for plain language: `python -m tests.prose [PATH...]`, in `make lint`."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.documents import DOCUMENTS, ROOT, prose

PRODUCT: Final = ("toolkit/rekindle", "kernels/rekindle_kernels")
PLACES: Final = ("toolkit", "kernels", "tests", "tutorials")
PRONOUNS: Final = frozenset({"what", "that", "which", "whose", "who", "those", "such", "these", "them"})
MOST_PRONOUNS: Final = 20
"""The most pronouns of a module's docstrings in 1,000 words; one is allowed in any."""
MOST_IN_DOCUMENTS: Final = 15
CLAUSE: Final = re.compile(r"\w+ (what|who|whose|whom|how|those|which|why|where|whether|that)\b")
"""A first line with a clause where its noun belongs, such as "Return what stands around calls"."""
HEADLESS: Final = PRONOUNS | {"a", "an", "the", "its", "it", "how", "whether", "if", "for", "with", "each", "every"}
"""First words of a docstring of a function that begins with no verb."""
PARTICIPLES: Final = frozenset(
    re.split(
        r"\s",
        "said told asked given made found shown seen kept held begun written read taken known left sent chosen",
    )
)
"""Participles, no names by themselves: the thing itself has a noun."""
VERBS: Final = frozenset({"read"})
"""Participles and verbs at once, for names of functions."""
EXCEPTIONS: Final[dict[str, str]] = {
    "toolkit/rekindle/formats/families/reading.py: read": "the public field of Family",
    "toolkit/rekindle/settings/route.py: given": "the public field of LaneLoad",
    "toolkit/rekindle/results/generation.py: begun": "the public field of Generation",
    "toolkit/rekindle/results/generation.py: written": "the public argument of Generation.from_dict",
    "toolkit/rekindle/testing/by_hand.py: begun": "a public argument of rekindle.testing",
    "toolkit/rekindle/testing/device.py: held": "a public argument of rekindle.testing",
    "toolkit/rekindle/testing/model.py: begun": "a public argument of rekindle.testing",
}
"""Findings to keep, as "path: name", with the reason: a public name, or a noun in its place."""


class Finding(NamedTuple):
    """A violation of a rule."""

    place: str
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.rule}: {self.text}"


class Prose(NamedTuple):
    """The words of some docstrings, and the number of pronouns among them."""

    words: int
    pronouns: int

    @classmethod
    def of(cls, text: str) -> "Prose":
        """Return the words of a text, code in backticks aside."""
        words = [word.lower() for word in re.findall(r"[A-Za-z']+", re.sub(r"`[^`]*`", " ", text))]
        return cls(len(words), sum(word in PRONOUNS for word in words))

    @property
    def rate(self) -> float:
        """The pronouns of 1,000 words."""
        return 1000 * self.pronouns / max(1, self.words)


def modules(paths: Iterable[str]) -> Iterator[Path]:
    """Yield the modules below paths from the root."""
    for path in paths:
        place = ROOT / path
        yield from [place] if place.is_file() else sorted(place.rglob("*.py"))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, also of constants and fields."""
    for node in ast.walk(tree):
        for inner in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if (
                isinstance(inner, ast.Expr)
                and isinstance(inner.value, ast.Constant)
                and isinstance(inner.value.value, str)
            ):
                yield inner.lineno, inner.value.value


def names(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Yield the line of each bound name, the name, and whether it is a function's."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name, True
            case ast.ClassDef(name=name) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name, False
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name, False
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name, False


def findings_in(source: str, place: str) -> Iterator[Finding]:
    """Yield the findings in the source of a module, named by its path from the root."""
    tree = ast.parse(source)
    yield from _headless(tree, place)
    if not place.startswith(PRODUCT):
        return
    texts = list(docstrings(tree))
    for line, text in texts:
        first = text.strip().splitlines()[0] if text.strip() else ""
        if CLAUSE.match(first):
            yield Finding(f"{place}:{line}", "a clause in a noun's place", first)
    prose = Prose.of("\n".join(text for _, text in texts))
    if prose.pronouns > max(1, prose.words * MOST_PRONOUNS / 1000):
        yield Finding(place, "pronouns", f"{prose.pronouns} in {prose.words} words")
    for line, name, function in names(tree):
        bare = name.strip("_")
        if bare in PARTICIPLES and not (function and bare in VERBS) and f"{place}: {name}" not in EXCEPTIONS:
            yield Finding(f"{place}:{line}", "a participle for a name", name)


def _headless(tree: ast.Module, place: str) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
            thing = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
            if not thing and re.sub(r"\W", "", text.split()[0]).lower() in HEADLESS:
                yield Finding(f"{place}:{node.lineno}", "no verb first", text.splitlines()[0])


def findings_in_document(text: str, place: str) -> Iterator[Finding]:
    """Yield the finding of a document with too many pronouns, if it has."""
    words = Prose.of(text)
    if words.rate > MOST_IN_DOCUMENTS:
        yield Finding(place, "pronouns", f"{words.pronouns} in {words.words} words")


def unused_exceptions() -> Iterator[Finding]:
    """Yield the exceptions whose name is gone."""
    for exception in EXCEPTIONS:
        place, _, name = exception.partition(": ")
        path = ROOT / place
        if not path.is_file() or name not in {bound for _, bound, _ in names(ast.parse(path.read_text("utf-8")))}:
            yield Finding(place, "no exception any more", name)


def main(paths: Sequence[str]) -> int:
    """Print the findings of modules, and of all documents if no path is given; return the exit status."""
    findings = [
        finding
        for path in modules(paths or PLACES)
        for finding in findings_in(path.read_text("utf-8"), path.relative_to(ROOT).as_posix())
    ]
    if not paths:
        findings += unused_exceptions()
        for document in DOCUMENTS:
            findings += findings_in_document(prose(document), document.relative_to(ROOT).as_posix())
    for finding in findings:
        print(finding)  # noqa: T201
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
