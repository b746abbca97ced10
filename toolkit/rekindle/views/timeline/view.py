"""The part of a timeline that fits a picture, and what its rows are made of."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil

from rekindle.markup import counted
from rekindle.views.timeline.timeline import Course, Kind, Tick, Timeline

MOST_ROWS = 40
"""Requests that are drawn."""
MOST_COLUMNS = 120
"""Columns that are drawn; where there are more ticks, several share one."""


@dataclass(frozen=True, slots=True)
class Span:
    """Ticks side by side in which a request did the same.

    Attributes:
        at: ticks that are drawn left of it.
        ticks: how many it is.
        first, last: the numbers of its first and its last; where ticks share a column, others may be between.
        start: the position of the first token that was computed, if known.
        tokens: how many were computed.
    """

    kind: Kind
    at: int
    ticks: int
    first: int
    last: int
    start: int | None
    tokens: int


@dataclass(frozen=True, slots=True)
class View:
    """What is drawn.

    Attributes:
        courses: a row for each.
        ticks: those of the columns, in order.
        share: how many of them share a column.
        hidden: what is not drawn, in words.
    """

    timeline: Timeline
    courses: Sequence[Course]
    ticks: Sequence[int]
    share: int
    hidden: Sequence[str]

    @property
    def columns(self) -> list[list[Tick]]:
        """The ticks of each column."""
        ticks = [self.timeline.ticks[tick] for tick in self.ticks]
        return [ticks[at : at + self.share] for at in range(0, len(ticks), self.share)]

    def spans(self, course: Course) -> Iterator[Span]:
        """The row of a request, from left to right. What shares a column is sorted by kind in it."""
        parts = self._sorted(course) if self.share > 1 else self._each(course)
        for (kind, _), group in groupby(parts, key=lambda part: (part[0], part[1])):
            spots = [part[2:] for part in group]
            numbers = [number for _, number in spots]
            if kind is not None:
                cells = [course.cells[number] for number in numbers if number in course.cells]
                start = cells[0].start if cells else None
                tokens = sum(cell.tokens for cell in cells)
                yield Span(kind, spots[0][0], len(spots), min(numbers), max(numbers), start, tokens)

    def column_kinds(self, course: Course) -> Iterator[list[Kind | None]]:
        """What a request did in the ticks of each column."""
        kinds = list(course.kinds(self.ticks))
        return (kinds[at : at + self.share] for at in range(0, len(kinds), self.share))

    def _each(self, course: Course) -> Iterator[tuple[Kind | None, int, int, int]]:
        """(kind, what else parts it from its neighbour, its place, its tick); each chunk is a span of its own."""
        for at, (tick, kind) in enumerate(zip(self.ticks, course.kinds(self.ticks), strict=True)):
            yield kind, tick if kind == "prefill" else 0, at, tick

    def _sorted(self, course: Course) -> Iterator[tuple[Kind | None, int, int, int]]:
        at = 0
        for kinds in self.column_kinds(course):
            places = sorted(range(len(kinds)), key=lambda place: (kinds.index(kinds[place]), place))
            for place in places:
                yield kinds[place], 0, at, self.ticks[at // self.share * self.share + place]
                at += 1


def view(timeline: Timeline, requests: Collection[int] | None, ticks: range | None) -> View:
    """What fits.

    Args:
        requests: the ids of those to draw; None for all.
        ticks: the numbers of those to draw; None for all, or where not all requests are drawn, all that those are in.
    """
    wanted = [course for name, course in sorted(timeline.courses.items()) if requests is None or name in requests]
    courses = wanted[:MOST_ROWS]
    numbers = [tick for tick in timeline.ticks if ticks is None or tick in ticks]
    if ticks is None and len(courses) < len(timeline.courses):
        there = {at for course in courses for at, kind in enumerate(course.kinds(numbers)) if kind is not None}
        numbers = numbers[min(there) : max(there) + 1] if there else []
    left_out = {"request": len(timeline.courses) - len(courses), "tick": len(timeline.ticks) - len(numbers)}
    hidden = [f"{counted(count, what)} not drawn" for what, count in left_out.items() if count]
    return View(timeline, courses, numbers, max(1, ceil(len(numbers) / MOST_COLUMNS)), hidden)
