"""Picture of the prefix tree: a row for each run of pages, indented below its parent."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from unicodedata import east_asian_width

from rekindle.core.words import one_line, quantity, spelled
from rekindle.markup import TIERS
from rekindle.views.drawing import CHARACTER, WIDTH, Drawing, svg_text, tooltip

Tier = Literal["device", "host", "disk"]

KIND = "Prefix cache"
"""The name of the cache in the headers of cards."""
LETTERS: dict[Tier, str] = {"device": "D", "host": "H", "disk": "S"}
WHERE: dict[Tier, str] = {"device": "on the device", "host": "in host memory", "disk": "stored on disk"}
SHORT: dict[Tier, str] = {"device": "device", "host": "host memory", "disk": "disk"}
LEGEND = ", ".join(f"{letter}: {WHERE[tier]}" for tier, letter in LETTERS.items())

ROW_HEIGHT, BOX_HEIGHT, INDENT = 30, 24, 22
"""The height of a row, the height of its box, and the indent of a level, in pixels."""
MAX_INDENT = 120
"""The maximum indent of all levels together, in pixels."""
BAR_WIDTH = 50
"""The width of the bar between the text and the facts of a run, in pixels."""
MAX_TITLE = 400
"""The maximum number of characters of a run's text in its tooltip."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive pages without a branch, all with the same tiers, hits and locks.

    Attributes:
        parent: the index of the parent run; -1 for a run at a root.
        salt: 0 without a cache_salt, otherwise a number for each salt; -1 for pages computed with replaced weights.
        text: the text from the first difference from its siblings, or token ids for a model without a tokenizer.
        pages: the number of pages.
        tiers: the tiers with a copy of the pages, fastest first.
        hits: the number of requests with a cache hit on the run.
        locks: the number of requests and prefix handles with a lock on the run or its descendants.
        hidden: the number of omitted branches below the run.
        states: the number of pages with a state of the model's layers after them, from which a request can continue.
    """

    parent: int
    salt: int
    text: str
    pages: int
    tiers: tuple[Tier, ...]
    hits: int
    locks: int
    hidden: int
    states: int = 0

    @property
    def letters(self) -> str:
        """The letters of the tiers."""
        return "".join(LETTERS[tier] for tier in self.tiers)

    @property
    def facts(self) -> str:
        """The facts next to the text of the run."""
        salt = salt_label(self.salt) if self.parent < 0 else ""
        holds = f", held {quantity(self.locks, 'time')}" if self.locks else ""
        states = f", {quantity(self.states, 'state')}" if self.states else ""
        return f"{quantity(self.pages, 'page')}{states}, {quantity(self.hits, 'hit')}{holds}{salt}"


def salt_label(salt: int) -> str:
    """Return the suffix for the salt number of a `Run`; empty without a cache_salt."""
    return {0: "", -1: ", of old weights"}.get(salt, f", salt {salt}")


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the picture: a run, or a note about omitted branches."""

    depth: int
    run: Run | None
    note: str = ""


def draw(runs: Sequence[Run], hidden: int, title: str) -> Drawing:
    """Draw a prefix tree.

    Args:
        runs: the runs of the tree, parents before children.
        hidden: the number of omitted runs at the roots.
        title: the title of the picture.
    """
    below: defaultdict[int, list[tuple[int, Run]]] = defaultdict(list)
    for index, run in enumerate(runs):
        below[run.parent].append((index, run))
    rows = list(_rows(below, -1, 0, hidden))
    if not rows:
        return Drawing(KIND, title, 0, "", title, is_fluid=True)
    parts = _parts(rows, max((run.hits for run in runs), default=0))
    return Drawing(KIND, title, (len(rows) + 1) * ROW_HEIGHT, parts, _text(rows, title), is_fluid=True)


def _rows(below: Mapping[int, Sequence[tuple[int, Run]]], parent: int, depth: int, hidden: int) -> Iterator[_Row]:
    """Yield the rows below `parent` in depth-first order."""
    for index, run in below.get(parent, ()):
        yield _Row(depth, run)
        yield from _rows(below, index, depth + 1, run.hidden)
    if hidden:
        yield _Row(depth, None, f"… {quantity(hidden, 'more branch', 'more branches')}")


def _text(rows: Sequence[_Row], title: str) -> str:
    lines = [f"{title}; {LEGEND}"]
    for place, row in enumerate(rows):
        bars = "".join("|  " if _has_next_sibling(rows, place, depth) else "   " for depth in range(row.depth))
        corner = "|- " if _has_next_sibling(rows, place, row.depth) else "`- "
        content = f"[{row.run.letters}] {row.run.facts}: {row.run.text[:48]!r}" if row.run else row.note
        lines.append(f"{bars}{corner}{content}")
    return "\n".join(lines)


def _has_next_sibling(rows: Sequence[_Row], place: int, depth: int) -> bool:
    """Return True if a later row has this depth and the same parent."""
    return next((row.depth for row in rows[place + 1 :] if row.depth <= depth), -1) == depth


def _parts(rows: Sequence[_Row], hottest: int) -> str:
    indent = min(INDENT, MAX_INDENT / max([1, *(row.depth for row in rows)]))
    facts = max((len(row.run.facts) for row in rows if row.run), default=0)
    right = BAR_WIDTH + CHARACTER * facts + 12
    parts = [_legend()]
    tops: dict[int, int] = {}  # the top of the last row of each depth
    for place, row in enumerate(rows, 1):
        x, top = 4 + row.depth * indent, place * ROW_HEIGHT
        tops[row.depth] = top
        if row.depth:
            start, middle = tops[row.depth - 1] + BOX_HEIGHT, top + BOX_HEIGHT / 2
            parts.append(
                f'<path d="M{x - indent / 2:.1f} {start}V{middle}H{x:.1f}" fill="none" stroke="currentColor" '
                'stroke-opacity="0.45"/>'
            )
        parts.append(_box(row.run, x, top, right, hottest) if row.run else svg_text(x + 4, top + 16, row.note))
    return "".join(parts)


def _legend() -> str:
    """Draw the colour and the letter of each tier, with its meaning."""
    parts, x = [], 4.0
    for tier, letter in LETTERS.items():
        words = f"{letter}: {SHORT[tier]}"
        parts.append(
            f'<rect x="{x:.0f}" y="4" width="12" height="12" rx="3" {_colours(tier)}/>{svg_text(x + 18, 15, words)}'
        )
        x += 18 + CHARACTER * (len(words) + 0.3)
    return "".join(parts) + svg_text(x, 15, "bar: hits")


def _colours(tier: Tier) -> str:
    """Return the attributes of a box with the colour of a tier."""
    return f'fill="rgb({TIERS[tier]})" fill-opacity="0.22" stroke="rgb({TIERS[tier]})"'


def _box(run: Run, x: float, top: int, right: float, hottest: int) -> str:
    """Draw a run. The end of its text is cut at the facts, which keep their place at the right of each page."""
    text = _fit(spelled(run.text), WIDTH - 4 - x - right - 44)
    bar = 40 * run.hits / hottest if hottest else 0
    edge, end = 2.5 if run.locks else 1, right + 8
    facts = f"{run.facts}; {' and '.join(WHERE[tier] for tier in run.tiers)}\n{run.text[:MAX_TITLE]}"
    return (
        f"<g>{tooltip(facts)}"
        f'<rect x="{x:.1f}" y="{top}" width="{WIDTH - 4 - x:.1f}" height="{BOX_HEIGHT}" rx="4" '
        f'style="width:calc(100% - {x + 4:.1f}px)" '
        f'{_colours(run.tiers[0])} stroke-width="{edge}"/>'
        f'<text x="{x + 7:.1f}" y="{top + 16}" font-weight="bold">{run.letters}</text>'
        f'<svg x="{-end:.1f}" y="{top}" width="100%" height="{BOX_HEIGHT}">{svg_text(end + x + 40, 16, text)}</svg>'
        f'<svg x="100%" y="{top}" overflow="visible">'
        f'<rect x="{-right:.1f}" y="8" width="{bar:.1f}" height="8" fill-opacity="0.6"/>'
        f"{svg_text(BAR_WIDTH - right, 16, run.facts)}</svg></g>"
    )


def _fit(text: str, pixels: float) -> str:
    """Cut a text to a width in pixels; wide characters count twice."""
    room, columns = pixels / CHARACTER, 0
    for place, character in enumerate(text):
        columns += 2 if east_asian_width(character) in "WF" else 1
        if columns > room - 1:
            return one_line(text, max(1, place))
    return one_line(text, len(text) + 1)
