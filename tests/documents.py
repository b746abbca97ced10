"""The README and the guides: their code blocks, links and commands, for the tests of both."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
GUIDES: Final = ROOT / "tutorials" / "guides"
PAGES: Final = (ROOT / "README.md", *sorted(GUIDES.glob("*.md")))
"""The README and each guide: pages for users, whose cells all run."""
DOCUMENTS: Final = (*PAGES, ROOT / "CONTRIBUTING.md")
ANSWERS: Final = {
    "What is the capital of France?": "Paris",
    "What is the capital of France? Answer in one sentence.": "Paris",
    "And of Italy?": "Rome",
    "In which year did the first human walk on the moon?": "1969",
    "What is it famous for?": "Eiffel Tower",
    "What is a prime number? Answer in one sentence.": "no positive integer divisors other than 1 and itself",
}
"""Words of a right answer, by each question for the default model in the README, its film and the tutorials."""
FENCE: Final = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]*) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)


class Block(NamedTuple):
    """A fenced block of a document.

    Attributes:
        line: the line of its first fence, from 1.
        kind: the language after the fence: `python` for cells, `sh` for commands, "" for everything else.
        text: its lines.
        reason: the hardware or the service that a test lacks, from the comment `<!-- not run: ... -->` above, or "".
    """

    line: int
    kind: str
    text: str
    reason: str


def name(document: Path) -> str:
    """Return the path of a document below the root."""
    return document.relative_to(ROOT).as_posix()


def blocks(document: Path, kind: str) -> Iterator[Block]:
    """Yield the blocks of one kind, in order."""
    text = document.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match["kind"] == kind:
            line = text.count("\n", 0, match.start("kind")) + 1
            yield Block(line, kind, match["text"], match["reason"] or "")


def missing_words(cell: str, output: str) -> list[str]:
    """Return the words of right answers that the output of a cell with their questions lacks."""
    plain = " ".join(re.sub(r"<[^>]*>", "", output).split())
    return [words for question, words in ANSWERS.items() if f'"{question}"' in cell and words not in plain]


def prose(document: Path) -> str:
    """Return a document without its fenced blocks and comments."""
    return re.sub(r"<!--.*?-->", "", FENCE.sub("", document.read_text(encoding="utf-8")), flags=re.S)


def commands(document: Path) -> Iterator[str]:
    """Yield the lines of the blocks of commands, without their comments."""
    for block in blocks(document, "sh"):
        for line in block.text.splitlines():
            if command := re.sub(r"(^|\s)#.*", "", line).strip():
                yield command


def links(document: Path) -> Iterator[str]:
    """Yield the targets of all links and pictures that are no addresses of the web."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ +(.*)$", prose(document), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
