"""Picture of a timeline: a row for each request, a column for each tick."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rekindle.core.words import seconds
from rekindle.views.drawing import CHARACTER, WIDTH, Drawing, svg_text, tooltip
from rekindle.views.timeline import words
from rekindle.views.timeline.requests import Kind, RequestTimeline, Tick, Timeline
from rekindle.views.timeline.view import TickSpan, View, mean_seconds, select_view

MIN_LEFT, MIN_RIGHT = 96, 240
"""The minimum widths of the labels to the left and to the right of a row, in pixels."""
MAX_TICK_WIDTH, ROW_HEIGHT, BOX_HEIGHT = 18, 20, 14
"""The maximum width of a tick, and the heights of a row and of a box in it, in pixels."""
BAR_HEIGHT, AXIS = 26, 92
"""The height of the highest bar, and the baseline of the tick numbers, in pixels."""
SLOW = 5
"""The maximum duration of a bar, as a multiple of the median; longer bars are cut.

A tick with a compilation takes far longer than the others. At its scale, their bars would be invisible.
"""
MIN_BOX_WIDTH = 5
"""The minimum width of a tick with a separate box, in pixels."""
ORANGE, BLUE, RED, GREY = "230,140,20", "40,130,220", "220,50,60", "130,130,130"
STYLES: dict[Kind, tuple[float, str]] = {
    "queued": (2.0, f'fill="rgb({GREY})" fill-opacity="0.8"'),
    "prefill": (14.0, f'fill="rgb({ORANGE})" fill-opacity="0.9"'),
    "decode": (14.0, f'fill="rgb({BLUE})" fill-opacity="0.75"'),
    "idle": (6.0, f'fill="rgb({GREY})" fill-opacity="0.5"'),
    "preempted": (8.0, f'fill="rgb({RED})" fill-opacity="0.8"'),
    "surplus": (12.0, f'fill="none" stroke="rgb({BLUE})"'),
}
"""The height in pixels and the style of a box, by kind. Kinds without computation have lower boxes."""
ENDS = ("ended", "cancelled", "rejected")
"""The ends with a separate mark; "ended" stands for all others."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """The layout of the picture.

    Attributes:
        ticks_x: the left edge of the first tick, in pixels.
        summary_x: the left edge of the summaries, in pixels.
        tick: the width of a tick, in pixels.
        bottom: the lower edge of the last row, in pixels.
        full_bar: the duration of a bar of full height, in seconds.
        longest: the label with the duration of the longest tick.
    """

    ticks_x: float
    summary_x: float
    tick: float
    bottom: int
    full_bar: float
    longest: str

    @classmethod
    def of(cls, view: View) -> "_Frame":
        """Return the layout of a view, with room for its longest labels."""
        durations = [mean for column in view.columns if (mean := mean_seconds(column))]
        longest = max(durations, default=0.0)
        full_bar = min(longest, SLOW * median(durations)) if durations else 0.0
        cut = f", cut at {seconds(full_bar)}" if full_bar < longest else ""
        label = f"longest: {seconds(longest)}{cut}" if durations else ""
        ticks_x = max([MIN_LEFT, *(4 + CHARACTER * (len(words.row_name(row)) + 1) for row in view.rows)])
        characters = max(map(len, [words.SUMMARY_HEAD, label, *map(words.summary, view.rows)]))
        summary_x = WIDTH - max(MIN_RIGHT - 12, CHARACTER * characters + 4)
        width = min(MAX_TICK_WIDTH, (summary_x - 12 - ticks_x) / max(1, len(view.ticks)))
        return cls(ticks_x, summary_x, width, AXIS + 8 + ROW_HEIGHT * len(view.rows), full_bar, label)

    def x(self, place: int) -> float:
        """Return the left edge of the tick with `place` ticks before it."""
        return self.ticks_x + place * self.tick


def draw(
    timeline: Timeline, requests: Collection[int] | None = None, ticks: range | None = None, note: str = ""
) -> Drawing:
    """Draw the part of a timeline selected by `select_view`, with a note below it."""
    view = select_view(timeline, requests, ticks)
    return _drawing(view, "; ".join([*view.hidden, *([note] if note else [])]))


# As text


def _text(view: View, below: str) -> str:
    keys = [f"{letter} {words.MEANINGS[kind]}" for kind, letter in words.LETTERS.items()]
    names = [words.row_name(row) for row in view.rows]
    if not names:
        return "\n".join(filter(None, [words.title(view), below]))
    width, columns = max(map(len, [*names, "tick"])), view.columns
    lines = [words.title(view), "  ".join(keys[:3]), "  ".join(keys[3:])]
    ruler = ""
    for at in range(0, len(columns), 10):
        ruler = f"{ruler:{at}}{columns[at][0].number}"
    lines.append(f"{'tick':{width}}  {ruler:{len(columns)}}  {words.SUMMARY_HEAD}")
    for name, row in zip(names, view.rows, strict=True):
        letters = "".join(_letter(kinds) for kinds in view.column_kinds(row))
        lines.append(f"{name:{width}}  {letters:{len(ruler)}}  {words.summary(row)}")
    return "\n".join([*lines, below] if below else lines)


def _letter(kinds: Sequence[Kind | None]) -> str:
    return next((letter for kind, letter in words.LETTERS.items() if kind in kinds), " ")


# As a picture


def _drawing(view: View, below: str) -> Drawing:
    if not view.rows:
        return Drawing("Timeline", "; ".join(filter(None, [words.title(view), below])), 0, "", _text(view, below))
    frame = _Frame.of(view)
    parts = [*_legend(), *_axis(view, frame)]
    for place, row in enumerate(view.rows):
        parts += _row(view, row, AXIS + 8 + place * ROW_HEIGHT, frame)
    if below:
        parts.append(svg_text(4, frame.bottom + 18, below))
    height = frame.bottom + (26 if below else 6)
    return Drawing("Timeline", words.title(view), height, "".join(parts), _text(view, below))


def _legend() -> Iterator[str]:
    """Draw the legend of boxes and marks on two lines: the kinds with computation, and the rest."""
    keys = [(_boxes(kind, 4, -BOX_HEIGHT / 2, 1, BOX_HEIGHT, ""), meaning) for kind, meaning in words.MEANINGS.items()]
    keys += [(_mark(end, 11, 0), end) for end in ENDS]
    for y, line in ((13, keys[:3]), (32, keys[3:])):
        x = 0.0
        for key, meaning in line:
            yield f'<g transform="translate({x:.0f} {y})">{key}{svg_text(24, 4, meaning)}</g>'
            x += 24 + CHARACTER * (len(meaning) + 2)


def _axis(view: View, frame: _Frame) -> Iterator[str]:
    """Draw the durations of the ticks, and their numbers with vertical lines."""
    yield svg_text(4, AXIS - 16, "tick took")
    yield svg_text(4, AXIS, "tick")
    yield svg_text(frame.summary_x, AXIS, words.SUMMARY_HEAD)
    yield svg_text(frame.summary_x, AXIS - 16 - BAR_HEIGHT + 10, frame.longest)
    for place, column in enumerate(view.columns):
        yield _bar(column, frame.x(place * view.ticks_per_column), frame.tick * view.ticks_per_column, frame.full_bar)
    for x, number in _numbers(view, frame):
        yield svg_text(x, AXIS, str(number))
        yield f'<path d="M{x:.1f} {AXIS + 4}V{frame.bottom}" stroke="currentColor" stroke-opacity="0.18"/>'


def _bar(column: Sequence[Tick], x: float, width: float, full_bar: float) -> str:
    """Draw the mean duration of a column's ticks; the tooltip covers the whole column."""
    height = BAR_HEIGHT * min(1, (mean_seconds(column) or 0.0) / full_bar) if full_bar else 0
    colour = ORANGE if any(tick.chunks for tick in column) else BLUE
    return (
        f"<g>{tooltip(words.tick_facts(column))}"
        f'<rect x="{x:.1f}" y="{AXIS - 12 - BAR_HEIGHT}" width="{width:.1f}" height="{BAR_HEIGHT}" '
        f'fill-opacity="0"/><rect x="{x:.1f}" y="{AXIS - 12 - height:.1f}" width="{max(width - 1, width / 2):.1f}" '
        f'height="{height:.1f}" fill="rgb({colour})" fill-opacity="0.8"/></g>'
    )


def _numbers(view: View, frame: _Frame) -> Iterator[tuple[float, int]]:
    """Yield the x coordinate in pixels and the number of each labelled tick: as many round numbers as fit."""
    spacing = CHARACTER * (max((len(str(tick)) for tick in view.ticks), default=1) + 2)
    steps = (step * 10**digits for digits in range(6) for step in (1, 2, 5))
    every = next((step for step in steps if step * frame.tick >= spacing), 500_000)
    numbers = ((frame.x(place), tick) for place, tick in enumerate(view.ticks) if tick % every == 0)
    return ((x, tick) for x, tick in numbers if x + CHARACTER * (len(str(tick)) + 1) <= frame.summary_x)


def _row(view: View, row: RequestTimeline, top: int, frame: _Frame) -> Iterator[str]:
    name, facts = words.row_name(row), words.facts(row, view.timeline)
    yield f"<g>{tooltip(facts)}{svg_text(4, top + 12, name)}</g>"
    for span in view.spans(row):
        yield _span(row, span, frame.x(span.at), top, frame.tick)
    for tick in row.preemptions:
        if tick in view.ticks and row.is_present(tick):
            x = frame.x(view.ticks.index(tick))
            yield f'<path d="M{x:.1f} {top - 1}v16" stroke="rgb({RED})" stroke-width="2.5"/>'
    if row.end_reason and (not view.ticks or row.last <= view.ticks[-1]):
        end = row.end_reason if row.end_reason in ENDS else "ended"
        yield _mark(end, frame.x(bisect_right(view.ticks, row.last)), top + BOX_HEIGHT / 2)
    yield svg_text(frame.summary_x, top + 12, words.summary(row))


def _span(row: RequestTimeline, span: TickSpan, x: float, top: float, tick: float) -> str:
    is_split = span.tokens and tick >= MIN_BOX_WIDTH
    count, width = (span.ticks, tick) if is_split else (1, span.ticks * tick)
    return _boxes(span.kind, x, top, count, width, words.span_facts(row, span))


def _boxes(kind: Kind, x: float, top: float, count: int, width: float, facts: str) -> str:
    """Draw `count` boxes side by side, with `facts` as their tooltip."""
    height, style = STYLES[kind]
    y, inner = top + (BOX_HEIGHT - height) / 2, width - 1 if width > 2 else width
    box = f"h{inner:.1f}v{height:.0f}h{-inner:.1f}z"
    path = "".join(f"M{x + place * width:.1f} {y:.1f}{box}" for place in range(count))
    return f'<path d="{path}" {style}>{tooltip(facts)}</path>'


def _mark(end: str, x: float, y: float) -> str:
    """Draw the mark of a request's end."""
    if end == "ended":
        return f'<path d="M{x:.1f} {y - 8}v16" stroke="currentColor" stroke-width="2.5"/>'
    colour = f"rgb({RED})" if end == "rejected" else "currentColor"
    cross = f"M{x - 4:.1f} {y - 4}l8 8m0 -8l-8 8"
    ring = f"M{x - 6.5:.1f} {y}a6.5 6.5 0 1 0 13 0a6.5 6.5 0 1 0 -13 0" if end == "rejected" else ""
    return f'<path d="{cross}{ring}" fill="none" stroke="{colour}" stroke-width="2"/>'
