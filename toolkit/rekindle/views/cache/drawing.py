"""The prefix tree as a picture: a row for each run of pages, indented below the run that it follows."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from unicodedata import east_asian_width

from rekindle.core.markup import TIERS, one_line, quantity, spelled
from rekindle.views.drawing import CHARACTER, WIDTH, Drawing, tooltip, words

Tier = Literal["device", "host", "disk"]

LETTERS: dict[Tier, str] = {"device": "D", "host": "H", "disk": "S"}
WHERE: dict[Tier, str] = {"device": "on the device", "host": "in host memory", "disk": "stored on disk"}
LEGEND = ", ".join(f"{letter}: {WHERE[tier]}" for tier, letter in LETTERS.items())

ROW_HEIGHT, BOX_HEIGHT, INDENT = 30, 24, 22
"""Pixels: how high a row and the box in it are, and how far a level is indented."""
MAX_INDENT = 300
"""The most pixels that all levels together are indented."""
MIN_FACTS_WIDTH, BAR_WIDTH = 300, 50
"""Pixels: what is right of a run's text takes at least so many, and so many of them are for the bar."""
MAX_TITLE = 400
"""The most characters of a text that are shown when a run is pointed at."""


@dataclass(frozen=True, slots=True)
class Run:
    """Pages that follow each other without a branch and have the same tiers, hits and locks.

    Attributes:
        parent: the index of the run that it follows; -1 if it begins a prefix.
        salt: 0 without a cache_salt, otherwise a number for each salt; -1 if weights computed it that were replaced.
        text: its text from where it differs from those beside it, or its token ids if the model has no tokenizer.
        pages: how many pages it has.
        tiers: the tiers that all of them are in, the fastest first.
        hits: how many requests found it.
        locks: how many requests and prefix handles hold it or something below it.
        hidden: how many branches below it are not drawn.
    """

    parent: int
    salt: int
    text: str
    pages: int
    tiers: tuple[Tier, ...]
    hits: int
    locks: int
    hidden: int

    @property
    def letters(self) -> str:
        """A letter for each tier."""
        return "".join(LETTERS[tier] for tier in self.tiers)

    @property
    def facts(self) -> str:
        """The words beside its text."""
        salt = salted(self.salt) if self.parent < 0 else ""
        held = f", held {quantity(self.locks, 'time')}" if self.locks else ""
        return f"{quantity(self.pages, 'page')}, {quantity(self.hits, 'hit')}{held}{salt}"


def salted(salt: int) -> str:
    """Say of which `cache_salt` something is, by the number of it that a `Run` has; nothing if of none."""
    return {0: "", -1: ", of old weights"}.get(salt, f", salt {salt}")


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the picture: a run, or a note on what is not drawn."""

    depth: int
    run: Run | None
    note: str = ""


def draw(runs: Sequence[Run], hidden: int, title: str) -> Drawing:
    """Draw a tree.

    Args:
        runs: the runs of the tree, parents before children.
        hidden: how many beginnings of prefixes are not among them.
        title: what the tree is.
    """
    below: defaultdict[int, list[tuple[int, Run]]] = defaultdict(list)
    for index, run in enumerate(runs):
        below[run.parent].append((index, run))
    rows = list(_rows(below, -1, 0, hidden))
    parts = _parts(rows, max((run.hits for run in runs), default=0), title)
    return Drawing(title, (len(rows) + 1) * ROW_HEIGHT, parts, _text(rows, title))


def _rows(below: Mapping[int, Sequence[tuple[int, Run]]], parent: int, depth: int, hidden: int) -> Iterator[_Row]:
    """Yield each run below `parent`, followed by all that is below it."""
    for index, run in below.get(parent, ()):
        yield _Row(depth, run)
        yield from _rows(below, index, depth + 1, run.hidden)
    if hidden:
        yield _Row(depth, None, f"… {quantity(hidden, 'more branch', 'more branches')}")


def _text(rows: Sequence[_Row], title: str) -> str:
    lines = [f"{title}; {LEGEND}" if rows else title]
    for place, row in enumerate(rows):
        bars = "".join("|  " if _goes_on(rows, place, depth) else "   " for depth in range(row.depth))
        corner = "|- " if _goes_on(rows, place, row.depth) else "`- "
        said = f"[{row.run.letters}] {row.run.facts}: {row.run.text[:48]!r}" if row.run else row.note
        lines.append(f"{bars}{corner}{said}")
    return "\n".join(lines)


def _goes_on(rows: Sequence[_Row], place: int, depth: int) -> bool:
    """Return whether another row of this depth follows below the same parent."""
    return next((row.depth for row in rows[place + 1 :] if row.depth <= depth), -1) == depth


def _parts(rows: Sequence[_Row], hottest: int, title: str) -> str:
    indent = min(INDENT, MAX_INDENT / max([1, *(row.depth for row in rows)]))
    facts = max((len(row.run.facts) for row in rows if row.run), default=0)
    right = max(MIN_FACTS_WIDTH, BAR_WIDTH + CHARACTER * facts + 12)
    parts = [words(4, 15, f"{title}; {LEGEND}; the bar shows hits" if rows else title)]
    tops: dict[int, int] = {}  # the top of the last row of each depth
    for place, row in enumerate(rows, 1):
        left, top = 4 + row.depth * indent, place * ROW_HEIGHT
        tops[row.depth] = top
        if row.depth:
            start, middle = tops[row.depth - 1] + BOX_HEIGHT, top + BOX_HEIGHT / 2
            parts.append(
                f'<path d="M{left - indent / 2:.1f} {start}V{middle}H{left:.1f}" fill="none" stroke="currentColor" '
                'stroke-opacity="0.45"/>'
            )
        parts.append(_box(row.run, left, top, right, hottest) if row.run else words(left + 4, top + 16, row.note))
    return "".join(parts)


def _box(run: Run, left: float, top: int, right: float, hottest: int) -> str:
    wide = WIDTH - 4 - left
    text = _fitting(spelled(run.text), wide - right - 44)
    bar = 40 * run.hits / hottest if hottest else 0
    edge = 2.5 if run.locks else 1
    colour = f"rgb({TIERS[run.tiers[0]]})"
    said = f"{run.facts}; {' and '.join(WHERE[tier] for tier in run.tiers)}\n{run.text[:MAX_TITLE]}"
    return (
        f"<g>{tooltip(said)}"
        f'<rect x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{BOX_HEIGHT}" rx="4" fill="{colour}" '
        f'fill-opacity="0.22" stroke="{colour}" stroke-width="{edge}"/>'
        f'<text x="{left + 7:.1f}" y="{top + 16}" font-weight="bold">{run.letters}</text>'
        f"{words(left + 40, top + 16, text)}"
        f'<rect x="{WIDTH - right:.1f}" y="{top + 8}" width="{bar:.1f}" height="8" fill-opacity="0.6"/>'
        f"{words(WIDTH - right + BAR_WIDTH, top + 16, run.facts)}</g>"
    )


def _fitting(text: str, pixels: float) -> str:
    """Return as much of the beginning of a text as there is room for; wide characters take two places."""
    room, taken = pixels / CHARACTER, 0
    for place, character in enumerate(text):
        taken += 2 if east_asian_width(character) in "WF" else 1
        if taken > room - 1:
            return one_line(text, max(1, place))
    return one_line(text, len(text) + 1)
