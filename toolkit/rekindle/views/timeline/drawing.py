"""A timeline as a picture: a row for each request, a column for each tick."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rekindle.markup import seconds, visible
from rekindle.views.drawing import CHARACTER, WIDTH, Drawing, picture, words
from rekindle.views.timeline.timeline import Course, Kind, Tick, Timeline
from rekindle.views.timeline.view import Span, View, view
from rekindle.views.timeline.words import LETTERS, MEANT, facts, headline, named, scale, span_facts, summary, tick_facts

LEFT, RIGHT = 96, 240
"""Pixels for what is said left and right of a row, at least."""
WIDEST, ROW, BOX = 18, 20, 14
"""Pixels: of a tick at most, between rows, of the height of a box."""
BARS, AXIS = 26, 112
"""Pixels: of the longest bar of a tick, and down to the numbers of the ticks."""
SLOW = 5
"""How many times the median a tick may take and have its bar drawn whole. One for which something is compiled takes
longer, and next to it the others would have none."""
APART = 5
"""Pixels of a tick from which on it is a box of its own."""
ORANGE, BLUE, RED, GREY = "230,140,20", "40,130,220", "220,50,60", "130,130,130"
RIGHT_HEAD = "prompt + new tokens, end"
ENDS = ("ended", "cancelled", "rejected")


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where things are, in pixels.

    Attributes:
        left: of the first tick.
        beside: of what is said right of the rows.
        tick: how wide one is.
        bottom: of the rows.
        top: seconds of a tick whose bar is as high as one can be.
        longest: what is said of the longest tick.
    """

    left: float
    beside: float
    tick: float
    bottom: int
    top: float
    longest: str

    @classmethod
    def of(cls, drawn: View) -> "_Frame":
        """With room for the longest of what is said."""
        took = [mean for column in drawn.columns if (mean := _took(column))]
        longest = max(took, default=0.0)
        top = min(longest, SLOW * median(took)) if took else 0.0
        cut = f", cut at {seconds(top)}" if top < longest else ""
        said = f"longest: {seconds(longest)}{cut}" if took else ""
        left = max([LEFT, *(4 + CHARACTER * (len(named(course)) + 1) for course in drawn.courses)])
        words_right = max(map(len, [RIGHT_HEAD, said, *map(summary, drawn.courses)]))
        beside = WIDTH - max(RIGHT - 12, CHARACTER * words_right + 4)
        wide = min(WIDEST, (beside - 12 - left) / max(1, len(drawn.ticks)))
        return cls(left, beside, wide, AXIS + 8 + ROW * len(drawn.courses), top, said)

    def at(self, place: int) -> float:
        """Where the tick at this place, from 0, begins."""
        return self.left + place * self.tick


def draw(
    timeline: Timeline, requests: Collection[int] | None = None, ticks: range | None = None, note: str = ""
) -> Drawing:
    """Draw a timeline, as far as it fits.

    Args:
        requests: the ids of those to draw; None for all.
        ticks: the numbers of those to draw; None for all, or where not all requests are drawn, all that those are in.
        note: what else is to be said below it.
    """
    drawn = view(timeline, requests, ticks)
    below = "; ".join([*drawn.hidden, *([note] if note else [])])
    return Drawing(_svg(drawn, below), _text(drawn, below))


# As text


def _text(drawn: View, below: str) -> str:
    legend = "  ".join(f"{letter} {MEANT[kind]}" for kind, letter in LETTERS.items())
    names = [named(course) for course in drawn.courses]
    wide, columns = max(map(len, [*names, "tick"])), drawn.columns
    lines = [f"{headline(drawn)}; {scale(drawn)}", legend]
    ruler = ""
    for at in range(0, len(columns), 10):
        ruler = f"{ruler:{at}}{columns[at][0].number}"
    lines.append(f"{'tick':{wide}}  {ruler:{len(columns)}}  {RIGHT_HEAD}")
    for name, course in zip(names, drawn.courses, strict=True):
        row = "".join(_letter(kinds) for kinds in drawn.column_kinds(course))
        lines.append(f"{name:{wide}}  {row:{len(ruler)}}  {summary(course)}")
    return "\n".join([*lines, below] if below else lines)


def _letter(kinds: Sequence[Kind | None]) -> str:
    return next((letter for kind, letter in LETTERS.items() if kind in kinds), " ")


# As SVG


def _svg(drawn: View, below: str) -> str:
    frame = _Frame.of(drawn)
    parts = [words(4, 15, f"{headline(drawn)}; {scale(drawn)}"), *_legend(), *_axis(drawn, frame)]
    for place, course in enumerate(drawn.courses):
        parts += _row(drawn, course, AXIS + 8 + place * ROW, frame)
    if below:
        parts.append(words(4, frame.bottom + 18, below))
    return picture(frame.bottom + (26 if below else 6), f"timeline of {headline(drawn)}", parts)


def _legend() -> Iterator[str]:
    """On two lines: what computes something, and the rest."""
    keys = [(_box(kind, 4, -BOX / 2, 1, BOX, ""), meant) for kind, meant in MEANT.items()]
    keys += [(_mark(how, 11, 0), how) for how in ENDS]
    for y, line in ((33, keys[:3]), (52, keys[3:])):
        left = 0.0
        for key, meant in line:
            yield f'<g transform="translate({left:.0f} {y})">{key}{words(24, 4, meant)}</g>'
            left += 24 + CHARACTER * (len(meant) + 2)


def _axis(drawn: View, frame: _Frame) -> Iterator[str]:
    """How long the ticks took, their numbers, and lines down from those."""
    wide = frame.tick * drawn.share
    yield words(4, AXIS - 16, "tick took")
    yield words(4, AXIS, "tick")
    yield words(frame.beside, AXIS, RIGHT_HEAD)
    yield words(frame.beside, AXIS - 16 - BARS + 10, frame.longest)
    for place, column in enumerate(drawn.columns):
        left = frame.at(place * drawn.share)
        high = BARS * min(1, _took(column) / frame.top) if frame.top else 0
        colour = ORANGE if any(tick.chunks for tick in column) else BLUE
        yield (
            f"<g><title>{visible(tick_facts(column))}</title>"
            f'<rect x="{left:.1f}" y="{AXIS - 12 - BARS}" width="{wide:.1f}" height="{BARS}" fill-opacity="0"/>'
            f'<rect x="{left:.1f}" y="{AXIS - 12 - high:.1f}" width="{max(wide - 1, wide / 2):.1f}" '
            f'height="{high:.1f}" fill="rgb({colour})" fill-opacity="0.8"/></g>'
        )
    for left, number in _numbers(drawn, frame):
        yield words(left, AXIS, str(number))
        yield f'<path d="M{left:.1f} {AXIS + 4}V{frame.bottom}" stroke="currentColor" stroke-opacity="0.18"/>'


def _numbers(drawn: View, frame: _Frame) -> Iterator[tuple[float, int]]:
    """(pixels, number) of the ticks that are numbered: round numbers, as near as there is room for."""
    needed = CHARACTER * (max((len(str(tick)) for tick in drawn.ticks), default=1) + 2)
    steps = (step * scale for scale in (1, 10, 100, 1000, 10_000, 100_000) for step in (1, 2, 5))
    every = next(step for step in steps if step * frame.tick >= needed or step >= 500_000)
    numbers = ((frame.at(place), tick) for place, tick in enumerate(drawn.ticks) if tick % every == 0)
    return ((left, tick) for left, tick in numbers if left + CHARACTER * (len(str(tick)) + 1) <= frame.beside)


def _row(drawn: View, course: Course, top: int, frame: _Frame) -> Iterator[str]:
    yield f"<g><title>{visible(facts(course, drawn.timeline))}</title>{words(4, top + 12, named(course))}</g>"
    for span in drawn.spans(course):
        yield _span(course, span, frame.at(span.at), top, frame.tick)
    for lost in course.lost:
        if lost in drawn.ticks and course.there(lost):
            x = frame.at(drawn.ticks.index(lost))
            yield f'<path d="M{x:.1f} {top - 1}v16" stroke="rgb({RED})" stroke-width="2.5"/>'
    if course.how:
        passed = sum(tick <= (-1 if course.last is None else course.last) for tick in drawn.ticks)
        how = course.how if course.how in ENDS else "ended"
        if passed < len(drawn.ticks) or not drawn.ticks or course.last in (None, drawn.ticks[-1]):
            yield _mark(how, frame.at(passed), top + BOX / 2)
    yield words(frame.beside, top + 12, summary(course))


def _span(course: Course, span: Span, left: float, top: float, pixels: float) -> str:
    said = span_facts(course, span)
    apart = pixels >= APART and span.tokens
    return _box(span.kind, left, top, *((span.ticks, pixels) if apart else (1, span.ticks * pixels)), said)


def _box(kind: Kind, left: float, top: float, count: int, wide: float, said: str) -> str:
    """Boxes side by side; what computes nothing is a line."""
    high, style = {
        "queued": (2.0, f'fill="rgb({GREY})" fill-opacity="0.8"'),
        "prefill": (14.0, f'fill="rgb({ORANGE})" fill-opacity="0.9"'),
        "decode": (14.0, f'fill="rgb({BLUE})" fill-opacity="0.75"'),
        "idle": (6.0, f'fill="rgb({GREY})" fill-opacity="0.5"'),
        "preempted": (8.0, f'fill="rgb({RED})" fill-opacity="0.8"'),
        "surplus": (12.0, f'fill="none" stroke="rgb({BLUE})"'),
    }[kind]
    y, inner = top + (BOX - high) / 2, wide - 1 if wide > 2 else wide
    path = "".join(f"M{left + place * wide:.1f} {y:.1f}h{inner:.1f}v{high:.0f}h{-inner:.1f}z" for place in range(count))
    return f'<path d="{path}" {style}>{f"<title>{visible(said)}</title>" if said else ""}</path>'


def _mark(how: str, x: float, y: float) -> str:
    """How a request ended, where it did."""
    if how == "ended":
        return f'<path d="M{x:.1f} {y - 8}v16" stroke="currentColor" stroke-width="2.5"/>'
    colour = f"rgb({RED})" if how == "rejected" else "currentColor"
    cross = f"M{x - 4:.1f} {y - 4}l8 8m0 -8l-8 8"
    ring = f"M{x - 6.5:.1f} {y}a6.5 6.5 0 1 0 13 0a6.5 6.5 0 1 0 -13 0" if how == "rejected" else ""
    return f'<path d="{cross}{ring}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _took(column: Sequence[Tick]) -> float:
    """How long its ticks took on average, those that are known; 0 where none is."""
    known = [tick.seconds for tick in column if tick.seconds is not None]
    return sum(known) / len(known) if known else 0.0
