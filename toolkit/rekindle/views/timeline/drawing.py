"""A timeline as a picture: a row for each request, a column for each tick."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rekindle.core.markup import seconds
from rekindle.views.drawing import CHARACTER, WIDTH, Drawing, tooltip, words
from rekindle.views.timeline import words as say
from rekindle.views.timeline.requests import Kind, RequestTimeline, Tick, Timeline
from rekindle.views.timeline.view import TickSpan, View, mean_seconds, view

MIN_LEFT, MIN_RIGHT = 96, 240
"""The least pixels for what is said left and right of a row."""
MAX_TICK_WIDTH, ROW_HEIGHT, BOX_HEIGHT = 18, 20, 14
"""Pixels: how wide a tick is at most, and how high a row and a box in it are."""
BAR_HEIGHT, AXIS = 26, 112
"""Pixels: how high the longest bar of a tick is, and where the numbers of the ticks stand."""
SLOW = 5
"""How many times the median a tick may take before its bar is cut. A tick that compiles something takes far longer; at
its scale the other bars would not be seen."""
MIN_BOX_WIDTH = 5
"""The least pixels of a tick at which it has a box of its own."""
ORANGE, BLUE, RED, GREY = "230,140,20", "40,130,220", "220,50,60", "130,130,130"
STYLES: dict[Kind, tuple[float, str]] = {
    "queued": (2.0, f'fill="rgb({GREY})" fill-opacity="0.8"'),
    "prefill": (14.0, f'fill="rgb({ORANGE})" fill-opacity="0.9"'),
    "decode": (14.0, f'fill="rgb({BLUE})" fill-opacity="0.75"'),
    "idle": (6.0, f'fill="rgb({GREY})" fill-opacity="0.5"'),
    "preempted": (8.0, f'fill="rgb({RED})" fill-opacity="0.8"'),
    "surplus": (12.0, f'fill="none" stroke="rgb({BLUE})"'),
}
"""The height of a box in pixels and its style, by kind; a kind that computes nothing has a thin line for a box."""
ENDS = ("ended", "cancelled", "rejected")
"""The ends that have a mark of their own; "ended" stands for all others."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """The places of things in the picture, in pixels.

    Attributes:
        left: where the first tick begins.
        beside: where the words right of the rows begin.
        tick: how wide a tick is.
        bottom: where the last row ends.
        top: how many seconds the highest bar stands for.
        longest: the words about the longest tick.
    """

    left: float
    beside: float
    tick: float
    bottom: int
    top: float
    longest: str

    @classmethod
    def of(cls, drawn: View) -> "_Frame":
        """Leave room for the longest of all words."""
        took = [mean for column in drawn.columns if (mean := mean_seconds(column))]
        longest = max(took, default=0.0)
        top = min(longest, SLOW * median(took)) if took else 0.0
        cut = f", cut at {seconds(top)}" if top < longest else ""
        said = f"longest: {seconds(longest)}{cut}" if took else ""
        left = max(
            [
                MIN_LEFT,
                *(
                    4 + CHARACTER * (len(say.named(request_timeline)) + 1)
                    for request_timeline in drawn.request_timelines
                ),
            ]
        )
        words_right = max(map(len, [say.SUMMARY_HEAD, said, *map(say.summary, drawn.request_timelines)]))
        beside = WIDTH - max(MIN_RIGHT - 12, CHARACTER * words_right + 4)
        wide = min(MAX_TICK_WIDTH, (beside - 12 - left) / max(1, len(drawn.ticks)))
        return cls(left, beside, wide, AXIS + 8 + ROW_HEIGHT * len(drawn.request_timelines), top, said)

    def at(self, place: int) -> float:
        """Return where a tick begins; `place` is the number of drawn ticks left of it."""
        return self.left + place * self.tick


def draw(
    timeline: Timeline, requests: Collection[int] | None = None, ticks: range | None = None, note: str = ""
) -> Drawing:
    """Draw what `view` chooses of a timeline, and a note below it."""
    drawn = view(timeline, requests, ticks)
    below = "; ".join([*drawn.hidden, *([note] if note else [])])
    return _drawing(drawn, below)


# As text


def _text(drawn: View, below: str) -> str:
    keys = [f"{letter} {say.MEANT[kind]}" for kind, letter in say.LETTERS.items()]
    names = [say.named(request_timeline) for request_timeline in drawn.request_timelines]
    wide, columns = max(map(len, [*names, "tick"])), drawn.columns
    lines = [say.title(drawn), "  ".join(keys[:3]), "  ".join(keys[3:])]
    ruler = ""
    for at in range(0, len(columns), 10):
        ruler = f"{ruler:{at}}{columns[at][0].number}"
    lines.append(f"{'tick':{wide}}  {ruler:{len(columns)}}  {say.SUMMARY_HEAD}")
    for name, request_timeline in zip(names, drawn.request_timelines, strict=True):
        row = "".join(_letter(kinds) for kinds in drawn.column_kinds(request_timeline))
        lines.append(f"{name:{wide}}  {row:{len(ruler)}}  {say.summary(request_timeline)}")
    return "\n".join([*lines, below] if below else lines)


def _letter(kinds: Sequence[Kind | None]) -> str:
    return next((letter for kind, letter in say.LETTERS.items() if kind in kinds), " ")


# As a picture


def _drawing(drawn: View, below: str) -> Drawing:
    frame = _Frame.of(drawn)
    parts = [words(4, 15, say.title(drawn)), *_legend(), *_axis(drawn, frame)]
    for place, request_timeline in enumerate(drawn.request_timelines):
        parts += _row(drawn, request_timeline, AXIS + 8 + place * ROW_HEIGHT, frame)
    if below:
        parts.append(words(4, frame.bottom + 18, below))
    title, height = f"timeline of {say.headline(drawn)}", frame.bottom + (26 if below else 6)
    return Drawing(title, height, "".join(parts), _text(drawn, below))


def _legend() -> Iterator[str]:
    """Draw what boxes and marks mean, on two lines: the kinds that compute something, and the rest."""
    keys = [(_boxes(kind, 4, -BOX_HEIGHT / 2, 1, BOX_HEIGHT, ""), meant) for kind, meant in say.MEANT.items()]
    keys += [(_mark(how, 11, 0), how) for how in ENDS]
    for y, line in ((33, keys[:3]), (52, keys[3:])):
        left = 0.0
        for key, meant in line:
            yield f'<g transform="translate({left:.0f} {y})">{key}{words(24, 4, meant)}</g>'
            left += 24 + CHARACTER * (len(meant) + 2)


def _axis(drawn: View, frame: _Frame) -> Iterator[str]:
    """Draw how long the ticks took, and their numbers with lines down from them."""
    yield words(4, AXIS - 16, "tick took")
    yield words(4, AXIS, "tick")
    yield words(frame.beside, AXIS, say.SUMMARY_HEAD)
    yield words(frame.beside, AXIS - 16 - BAR_HEIGHT + 10, frame.longest)
    for place, column in enumerate(drawn.columns):
        yield _bar(column, frame.at(place * drawn.share), frame.tick * drawn.share, frame.top)
    for left, number in _numbers(drawn, frame):
        yield words(left, AXIS, str(number))
        yield f'<path d="M{left:.1f} {AXIS + 4}V{frame.bottom}" stroke="currentColor" stroke-opacity="0.18"/>'


def _bar(column: Sequence[Tick], left: float, wide: float, top: float) -> str:
    """Draw how long the ticks of a column took; the whole column shows its facts when it is pointed at."""
    high = BAR_HEIGHT * min(1, (mean_seconds(column) or 0.0) / top) if top else 0
    colour = ORANGE if any(tick.chunks for tick in column) else BLUE
    return (
        f"<g>{tooltip(say.tick_facts(column))}"
        f'<rect x="{left:.1f}" y="{AXIS - 12 - BAR_HEIGHT}" width="{wide:.1f}" height="{BAR_HEIGHT}" '
        f'fill-opacity="0"/><rect x="{left:.1f}" y="{AXIS - 12 - high:.1f}" width="{max(wide - 1, wide / 2):.1f}" '
        f'height="{high:.1f}" fill="rgb({colour})" fill-opacity="0.8"/></g>'
    )


def _numbers(drawn: View, frame: _Frame) -> Iterator[tuple[float, int]]:
    """Choose the ticks that are numbered: round numbers, as near to each other as there is room for.

    Returns:
        Where each of them begins, in pixels, and its number.
    """
    needed = CHARACTER * (max((len(str(tick)) for tick in drawn.ticks), default=1) + 2)
    steps = (step * 10**digits for digits in range(6) for step in (1, 2, 5))
    every = next((step for step in steps if step * frame.tick >= needed), 500_000)
    numbers = ((frame.at(place), tick) for place, tick in enumerate(drawn.ticks) if tick % every == 0)
    return ((left, tick) for left, tick in numbers if left + CHARACTER * (len(str(tick)) + 1) <= frame.beside)


def _row(drawn: View, request_timeline: RequestTimeline, top: int, frame: _Frame) -> Iterator[str]:
    name, facts = say.named(request_timeline), say.facts(request_timeline, drawn.timeline)
    yield f"<g>{tooltip(facts)}{words(4, top + 12, name)}</g>"
    for span in drawn.spans(request_timeline):
        yield _span(request_timeline, span, frame.at(span.at), top, frame.tick)
    for lost in request_timeline.lost:
        if lost in drawn.ticks and request_timeline.there(lost):
            x = frame.at(drawn.ticks.index(lost))
            yield f'<path d="M{x:.1f} {top - 1}v16" stroke="rgb({RED})" stroke-width="2.5"/>'
    if request_timeline.how and (not drawn.ticks or request_timeline.last <= drawn.ticks[-1]):
        how = request_timeline.how if request_timeline.how in ENDS else "ended"
        yield _mark(how, frame.at(bisect_right(drawn.ticks, request_timeline.last)), top + BOX_HEIGHT / 2)
    yield words(frame.beside, top + 12, say.summary(request_timeline))


def _span(request_timeline: RequestTimeline, span: TickSpan, left: float, top: float, tick: float) -> str:
    apart = span.tokens and tick >= MIN_BOX_WIDTH
    count, wide = (span.ticks, tick) if apart else (1, span.ticks * tick)
    return _boxes(span.kind, left, top, count, wide, say.span_facts(request_timeline, span))


def _boxes(kind: Kind, left: float, top: float, count: int, wide: float, said: str) -> str:
    """Draw so many boxes side by side; `said` is shown when they are pointed at."""
    high, style = STYLES[kind]
    y, inner = top + (BOX_HEIGHT - high) / 2, wide - 1 if wide > 2 else wide
    path = "".join(f"M{left + place * wide:.1f} {y:.1f}h{inner:.1f}v{high:.0f}h{-inner:.1f}z" for place in range(count))
    return f'<path d="{path}" {style}>{tooltip(said)}</path>'


def _mark(how: str, x: float, y: float) -> str:
    """Draw how a request ended, at the place where it did."""
    if how == "ended":
        return f'<path d="M{x:.1f} {y - 8}v16" stroke="currentColor" stroke-width="2.5"/>'
    colour = f"rgb({RED})" if how == "rejected" else "currentColor"
    cross = f"M{x - 4:.1f} {y - 4}l8 8m0 -8l-8 8"
    ring = f"M{x - 6.5:.1f} {y}a6.5 6.5 0 1 0 13 0a6.5 6.5 0 1 0 -13 0" if how == "rejected" else ""
    return f'<path d="{cross}{ring}" fill="none" stroke="{colour}" stroke-width="2"/>'
