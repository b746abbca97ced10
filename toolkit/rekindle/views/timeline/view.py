"""The part of a timeline that fits a picture, and the spans that its rows are made of."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from math import ceil
from typing import TypeVar

from rekindle.core.markup import quantity
from rekindle.views.timeline.requests import Kind, RequestTimeline, Tick, Timeline

T = TypeVar("T")

MAX_ROWS = 40
"""The most requests that are drawn."""
MAX_COLUMNS = 120
"""The most columns that are drawn; if there are more ticks, several share a column."""


@dataclass(frozen=True, slots=True)
class TickSpan:
    """Neighbouring ticks in which a request did the same thing.

    Attributes:
        kind: what the request did.
        at: how many drawn ticks are left of it.
        ticks: how many ticks it is wide.
        first, last: the smallest and the largest number of its ticks. Ticks of other spans may lie between them if
            ticks share a column.
        start: the position of the first token that was computed, if known.
        tokens: how many tokens were computed.
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
    """The requests and ticks that are drawn.

    Attributes:
        timeline: the timeline that they are part of.
        request_timelines: the requests, one for each row.
        ticks: the numbers of the ticks, in order.
        share: how many ticks share a column.
        hidden: what is not drawn, in words.
    """

    timeline: Timeline
    request_timelines: Sequence[RequestTimeline]
    ticks: Sequence[int]
    share: int
    hidden: Sequence[str]

    @property
    def columns(self) -> list[Sequence[Tick]]:
        """The ticks of each column."""
        return list(self._by_column([self.timeline.ticks[tick] for tick in self.ticks]))

    def column_kinds(self, request_timeline: RequestTimeline) -> Iterator[Sequence[Kind | None]]:
        """Yield for each column what a request did in its ticks."""
        return self._by_column(request_timeline.kinds(self.ticks))

    def spans(self, request_timeline: RequestTimeline) -> Iterator[TickSpan]:
        """Yield the row of a request from left to right. Ticks that share a column are sorted by kind in it."""
        row = list(zip(request_timeline.kinds(self.ticks), self.ticks, strict=True))
        at, parts = 0, chain.from_iterable(map(_by_kind, self._by_column(row)))
        for (kind, _), same in groupby(parts, key=self._alike):
            numbers = [number for _, number in same]
            if kind is not None:
                cells = [request_timeline.cells[number] for number in numbers if number in request_timeline.cells]
                start = cells[0].start if cells else None
                tokens = sum(cell.tokens for cell in cells)
                yield TickSpan(kind, at, len(numbers), min(numbers), max(numbers), start, tokens)
            at += len(numbers)

    def _alike(self, part: tuple[Kind | None, int]) -> tuple[Kind | None, int]:
        """Return what neighbours in one span have in common. Each chunk is a span of its own if it has a column."""
        kind, number = part
        return kind, number if kind == "prefill" and self.share == 1 else 0

    def _by_column(self, of_ticks: Sequence[T]) -> Iterator[Sequence[T]]:
        return (of_ticks[at : at + self.share] for at in range(0, len(of_ticks), self.share))


def _by_kind(column: Sequence[tuple[Kind | None, int]]) -> list[tuple[Kind | None, int]]:
    """Sort the ticks of a column so that those of a kind are together, in the order in which the kinds came."""
    order = [kind for kind, _ in column]
    return sorted(column, key=lambda part: order.index(part[0]))


def view(timeline: Timeline, requests: Collection[int] | None, ticks: range | None) -> View:
    """Choose what is drawn of a timeline, so that it fits.

    Args:
        requests: the ids of the requests to draw; None for all.
        ticks: the numbers of the ticks to draw. None stands for all, or if not all requests are drawn, for those in
            which the drawn requests were there.
    """
    wanted = [
        request_timeline
        for name, request_timeline in sorted(timeline.request_timelines.items())
        if requests is None or name in requests
    ]
    request_timelines = wanted[:MAX_ROWS]
    numbers = [tick for tick in timeline.ticks if ticks is None or tick in ticks]
    if ticks is None and len(request_timelines) < len(timeline.request_timelines):
        there = {
            at
            for request_timeline in request_timelines
            for at, kind in enumerate(request_timeline.kinds(numbers))
            if kind is not None
        }
        numbers = numbers[min(there) : max(there) + 1] if there else []
    left_out = {
        "request": len(timeline.request_timelines) - len(request_timelines),
        "tick": len(timeline.ticks) - len(numbers),
    }
    hidden = [f"{quantity(count, what)} not drawn" for what, count in left_out.items() if count]
    return View(timeline, request_timelines, numbers, max(1, ceil(len(numbers) / MAX_COLUMNS)), hidden)


def mean_seconds(ticks: Sequence[Tick]) -> float | None:
    """Return how long these ticks took on average, of those whose time is known; None if none is."""
    known = [tick.seconds for tick in ticks if tick.seconds is not None]
    return sum(known) / len(known) if known else None
