"""The part of a timeline in a picture, and the spans of its rows."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from math import ceil
from typing import TypeVar

from rekindle.core.words import quantity
from rekindle.views.timeline.requests import Kind, RequestTimeline, Tick, Timeline

T = TypeVar("T")

MAX_ROWS = 40
"""The maximum number of requests in a picture."""
MAX_COLUMNS = 120
"""The maximum number of columns in a picture; with more ticks, several ticks share a column."""


@dataclass(frozen=True, slots=True)
class TickSpan:
    """Adjacent ticks of a request with the same state.

    Attributes:
        kind: the state of the request.
        at: the number of ticks to the left of the span.
        ticks: the number of ticks in the span.
        first, last: the smallest and the largest tick number. If ticks share a column, ticks of other spans may have
            numbers in between.
        start: the position of the first computed token; None if unknown.
        tokens: the number of computed tokens.
        drafted, accepted: the number of drafted tokens among them, and of those that were right.
    """

    kind: Kind
    at: int
    ticks: int
    first: int
    last: int
    start: int | None
    tokens: int
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """The requests and ticks in a picture.

    Attributes:
        timeline: the whole timeline.
        rows: the timelines of the requests, one for each row.
        ticks: the numbers of the ticks, in order.
        ticks_per_column: the number of ticks in a column.
        hidden: notes about omitted requests and ticks.
    """

    timeline: Timeline
    rows: Sequence[RequestTimeline]
    ticks: Sequence[int]
    ticks_per_column: int
    hidden: Sequence[str]

    @property
    def columns(self) -> list[Sequence[Tick]]:
        """The ticks of each column."""
        return list(self._by_column([self.timeline.ticks[tick] for tick in self.ticks]))

    def column_kinds(self, row: RequestTimeline) -> Iterator[Sequence[Kind | None]]:
        """Yield the states of a request in the ticks of each column."""
        return self._by_column(row.kinds(self.ticks))

    def spans(self, row: RequestTimeline) -> Iterator[TickSpan]:
        """Yield the spans of a row from left to right. Within a column, ticks are sorted by kind."""
        kinds = list(zip(row.kinds(self.ticks), self.ticks, strict=True))
        at, parts = 0, chain.from_iterable(map(_by_kind, self._by_column(kinds)))
        for (kind, _), same in groupby(parts, key=self._span_key):
            numbers = [number for _, number in same]
            if kind is not None:
                cells = [row.cells[number] for number in numbers if number in row.cells]
                start = cells[0].start if cells else None
                tokens = sum(cell.tokens for cell in cells)
                drafted, accepted = sum(cell.drafted for cell in cells), sum(cell.accepted for cell in cells)
                yield TickSpan(kind, at, len(numbers), min(numbers), max(numbers), start, tokens, drafted, accepted)
            at += len(numbers)

    def _span_key(self, part: tuple[Kind | None, int]) -> tuple[Kind | None, int]:
        """Return the grouping key of a span: the kind, and for a chunk in its own column also the tick."""
        kind, number = part
        return kind, number if kind == "prefill" and self.ticks_per_column == 1 else 0

    def _by_column(self, of_ticks: Sequence[T]) -> Iterator[Sequence[T]]:
        return (of_ticks[at : at + self.ticks_per_column] for at in range(0, len(of_ticks), self.ticks_per_column))


def _by_kind(column: Sequence[tuple[Kind | None, int]]) -> list[tuple[Kind | None, int]]:
    """Sort the ticks of a column by kind, in the order of each kind's first tick."""
    order = [kind for kind, _ in column]
    return sorted(column, key=lambda part: order.index(part[0]))


def select_view(timeline: Timeline, requests: Collection[int] | None, ticks: range | None) -> View:
    """Select the requests and ticks of a picture within its limits.

    Args:
        requests: the ids of the requests to draw; None for all.
        ticks: the numbers of the ticks to draw; None for all ticks of the drawn requests.
    """
    matches = [row for name, row in sorted(timeline.requests.items()) if requests is None or name in requests]
    rows = matches[:MAX_ROWS]
    numbers = [tick for tick in timeline.ticks if ticks is None or tick in ticks]
    if ticks is None and len(rows) < len(timeline.requests):
        active = {at for row in rows for at, kind in enumerate(row.kinds(numbers)) if kind is not None}
        numbers = numbers[min(active) : max(active) + 1] if active else []
    omitted = {"request": len(timeline.requests) - len(rows), "tick": len(timeline.ticks) - len(numbers)}
    hidden = [f"{quantity(count, noun)} not drawn" for noun, count in omitted.items() if count]
    return View(timeline, rows, numbers, max(1, ceil(len(numbers) / MAX_COLUMNS)), hidden)


def mean_seconds(ticks: Sequence[Tick]) -> float | None:
    """Return the mean duration of the ticks in seconds; None without a tick of known duration."""
    durations = [tick.seconds for tick in ticks if tick.seconds is not None]
    return sum(durations) / len(durations) if durations else None
