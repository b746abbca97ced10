"""The prefix tree as a picture: a row for each run of pages, indented below the one that it follows."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from unicodedata import east_asian_width

from rekindle.markup import TIERS, counted, one_line, spelled, visible
from rekindle.views.drawing import CHARACTER, WIDTH, Drawing, picture, words

Tier = Literal["device", "host", "disk"]

LETTERS: dict[Tier, str] = {"device": "D", "host": "H", "disk": "S"}
LEGEND = "D device, H host memory, S disk (stored)"

ROW, BOX, INDENT = 30, 24, 22
"""Pixels: between rows, of a box's height, of a level."""
DEEPEST = 300
"""Pixels that all levels may take together."""
TITLE = 400
"""Characters of a title."""
RIGHT = 300
"""Pixels for what is said right of a run's text, at least."""

BESIDE = 50
"""Pixels of them for the bar."""


@dataclass(frozen=True, slots=True)
class Run:
    """Pages that follow each other without a branch, alike in tiers, hits and locks.

    Attributes:
        parent: the index of the run that it follows; -1 where a prefix begins.
        salt: 0 for what has no cache_salt, else a number for each one; -1 for what weights that were replaced computed.
        text: the beginning of its text, or of its token ids for a model without a tokenizer.
        pages: how many.
        tiers: those that all of it is in, the warmest first.
        hits: how many requests found it.
        locks: how many requests and prefix handles hold it, or something below it.
        hidden: branches below it that are not drawn.
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
        """What is said beside its text."""
        salt = {0: "", -1: ", of old weights"}.get(self.salt, f", salt {self.salt}") if self.parent < 0 else ""
        held = f", held {counted(self.locks, 'time')}" if self.locks else ""
        return f"{counted(self.pages, 'page')}, {counted(self.hits, 'hit')}{held}{salt}"


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the picture: a run, or what is not drawn below one."""

    depth: int
    at: int
    run: Run | None
    note: str = ""


def draw(runs: Sequence[Run], hidden: int, title: str) -> Drawing:
    """Draw a tree.

    Args:
        runs: parents before children.
        hidden: beginnings of prefixes that are not among them.
        title: what it is of.
    """
    rows = list(_rows(runs, hidden))
    return Drawing(_svg(rows, max((run.hits for run in runs), default=0), title), _text(rows, title))


def _rows(runs: Sequence[Run], hidden: int) -> Iterator[_Row]:
    """Each run, then all below it. Each knows the row of the one that it is below."""
    below: defaultdict[int, list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        below[run.parent].append(index)
    # Of each level that is open: the row that it is below, what is left to draw, and what is not drawn.
    open_levels, at = [(-1, iter(below[-1]), hidden)], 0
    while open_levels:
        parent, left, unseen = open_levels[-1]
        child = next(left, None)
        if child is not None:
            yield _Row(len(open_levels) - 1, parent, runs[child])
            open_levels.append((at, iter(below[child]), runs[child].hidden))
            at += 1
            continue
        if unseen:
            yield _Row(len(open_levels) - 1, parent, None, f"… {counted(unseen, 'more branch', 'more branches')}")
            at += 1
        open_levels.pop()


def _text(rows: Sequence[_Row], title: str) -> str:
    lines = [f"{title}: {LEGEND}"]
    for place, row in enumerate(rows):
        bars = "".join("|  " if _goes_on(rows, place, depth) else "   " for depth in range(row.depth))
        corner = "|- " if _goes_on(rows, place, row.depth) else "`- "
        said = f"[{row.run.letters}] {row.run.facts}: {row.run.text[:48]!r}" if row.run else row.note
        lines.append(f"{bars}{corner}{said}")
    return "\n".join(lines)


def _goes_on(rows: Sequence[_Row], place: int, depth: int) -> bool:
    """Whether another row of this depth follows below the same parent."""
    return next((row.depth for row in rows[place + 1 :] if row.depth <= depth), -1) == depth


def _svg(rows: Sequence[_Row], hottest: int, title: str) -> str:
    indent = min(INDENT, DEEPEST / max(1, max((row.depth for row in rows), default=0)))
    height = (len(rows) + 1) * ROW
    facts = max((len(row.run.facts) for row in rows if row.run), default=0)
    right = max(RIGHT, BESIDE + CHARACTER * facts + 12)
    parts = [words(4, 15, f"{title}: {LEGEND}; the bar shows hits")]
    for place, row in enumerate(rows):
        left, top = 4 + row.depth * indent, (place + 1) * ROW
        if row.at >= 0:
            start, middle = (row.at + 1) * ROW + BOX, top + BOX / 2
            parts.append(
                f'<path d="M{left - indent / 2:.1f} {start}V{middle}H{left:.1f}" fill="none" stroke="currentColor" '
                'stroke-opacity="0.45"/>'
            )
        parts.append(_box(row.run, left, top, right, hottest) if row.run else words(left + 4, top + 16, row.note))
    return picture(height, title, parts)


def _box(run: Run, left: float, top: int, right: float, hottest: int) -> str:
    wide = WIDTH - 4 - left
    text = _fitting(spelled(run.text), wide - right - 44)
    bar = 40 * run.hits / hottest if hottest else 0
    edge = 2.5 if run.locks else 1
    said = f"{run.facts}; in {', '.join(run.tiers)}\n{run.text[:TITLE]}"
    return (
        f"<g><title>{visible(said)}</title>"
        f'<rect x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{BOX}" rx="4" fill="rgb({TIERS[run.tiers[0]]})" '
        f'fill-opacity="0.22" stroke="rgb({TIERS[run.tiers[0]]})" stroke-width="{edge}"/>'
        f'<text x="{left + 7:.1f}" y="{top + 16}" font-weight="bold">{run.letters}</text>'
        f"{words(left + 40, top + 16, text)}"
        f'<rect x="{WIDTH - right:.1f}" y="{top + 8}" width="{bar:.1f}" height="8" fill-opacity="0.6"/>'
        f"{words(WIDTH - right + BESIDE, top + 16, run.facts)}</g>"
    )


def _fitting(text: str, pixels: float) -> str:
    """As much of its beginning as there is room for; wide characters take two places."""
    room, taken = pixels / CHARACTER, 0
    for place, character in enumerate(text):
        taken += 2 if east_asian_width(character) in "WF" else 1
        if taken > room - 1:
            return one_line(text, max(1, place))
    return one_line(text, len(text) + 1)
