"""The timeline of each request of a trace, tick by tick."""

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rekindle.views.records import (
    ChunkRecord,
    DispatchRecord,
    EndRecord,
    Fact,
    JoinRecord,
    PlanRecord,
    ReadbackRecord,
    StartRecord,
    StopRecord,
    TokensRecord,
    TraceRecord,
)

Kind = Literal["queued", "prefill", "decode", "idle", "preempted", "surplus"]
"""The state of a request in a tick.

- queued: waiting for the first tick.
- prefill: a chunk of known tokens computed.
- decode: new tokens generated.
- idle: pages allocated, but nothing computed.
- preempted: pages released, and waiting again.
- surplus: a token computed and dropped, because the tick was planned before the end of the request was known.
"""

NEVER = sys.maxsize
"""A tick number beyond all ticks."""


class Interval(NamedTuple):
    """A range of ticks of a request with one state, from `first` up to, but not including, `after`."""

    kind: Kind
    first: int
    after: int


@dataclass(slots=True)
class TickWork:
    """The tokens of one request computed by one tick.

    Attributes:
        start: the position of the first token; None for a decode row.
        tokens: the number of computed tokens.
        samples: True if the tick samples a new token.
        new_tokens: the number of new tokens delivered to the request.
        drafted: the number of drafted tokens among the computed ones.
    """

    start: int | None
    tokens: int
    samples: bool
    new_tokens: int = 0
    drafted: int = 0

    @property
    def accepted(self) -> int:
        """The number of drafted tokens that were right."""
        return min(self.drafted, max(0, self.new_tokens - 1))

    @property
    def prefill(self) -> bool:
        """True for a chunk of prefill, False for a decode row."""
        return self.start is not None


@dataclass(slots=True)
class Tick:
    """One plan and its times, in seconds since the start of the trace.

    Attributes:
        number: the number of the tick.
        chunks: the chunks of prefill.
        rows: the requests with a decode row, repeated for each token of the row.
        onloaded_pages: the number of pages copied to the device.
        planned_at: the end of planning.
        began, ended: the earliest start on the device, and the readback of its tokens; None if not traced.
    """

    number: int
    chunks: tuple[ChunkRecord, ...]
    rows: tuple[int, ...]
    onloaded_pages: int
    planned_at: float
    began: float | None = None
    ended: float | None = None

    @property
    def seconds(self) -> float | None:
        """The maximum time on the device, in seconds; None if not traced."""
        return None if self.began is None or self.ended is None else self.ended - self.began


@dataclass(slots=True)
class RequestTimeline:
    """The facts about one request.

    Attributes:
        id: the id of the request.
        prompt, cached: the number of prompt tokens, and of cached tokens among them; None if not traced.
        hold: True for a prefix to hold.
        first_tick: the first possible tick, 0 for a request queued before the trace; None for one started before it.
        cells: the work for the request by tick, in order.
        preemptions: the ticks of its preemptions, in order. Some may come after `last`, because the end of a request
            can be known late.
        last: the last tick of the request; -1 if it ended before its first tick.
        end_reason, error: the end, as in `EndRecord`; empty before the end.
        group: the group of devices of the latest chunk; None if all requests of the trace share a group.
        at: the times when the request "joined" the queue, got its first "token" and "ended", in seconds since the start
            of the trace.
    """

    id: int
    prompt: int | None = None
    cached: int | None = None
    hold: bool = False
    first_tick: int | None = None
    cells: dict[int, TickWork] = field(default_factory=dict)
    preemptions: list[int] = field(default_factory=list)
    last: int = -1
    end_reason: str = ""
    error: str = ""
    group: int | None = None
    at: dict[str, float] = field(default_factory=dict)

    @property
    def generated(self) -> int:
        """The number of new tokens."""
        return sum(cell.new_tokens for cell in self.cells.values())

    @property
    def latest(self) -> int:
        """The last tick with work for the request; -1 without one."""
        return next(reversed(self.cells), -1)

    @property
    def is_active(self) -> bool:
        """True if the trace has other facts of the request than preemptions."""
        return self.first_tick is not None or bool(self.cells or self.end_reason)

    @property
    def is_complete(self) -> bool:
        """True if the trace has the start of the request. A request rejected at once never joins the queue."""
        return self.first_tick is not None or (self.end_reason == "rejected" and not self.cells)

    def is_present(self, tick: int) -> bool:
        """Return True if the request waited or ran in a tick, according to the trace."""
        first, after = self._presence
        return first <= tick < after

    def kinds(self, ticks: Sequence[int]) -> Sequence[Kind | None]:
        """Return the state of the request in each of the ordered ticks; None outside of its lifetime."""
        kinds: list[Kind | None] = [None] * len(ticks)
        for kind, first, after in self.intervals():
            start, end = bisect_left(ticks, first), bisect_left(ticks, after)
            kinds[start:end] = [kind] * (end - start)
        return kinds

    def intervals(self) -> Iterator[Interval]:
        """Yield the states of the request in order; a wait of any length is one interval."""
        first, after = self._presence
        latest = -1
        for tick, cell in self.cells.items():
            yield from self._waiting_intervals(latest, first, min(after, tick))
            new: Kind = "surplus" if self.end_reason and not cell.new_tokens else "decode"
            yield Interval("prefill" if cell.prefill else new, tick, tick + 1)
            latest = tick
        yield from self._waiting_intervals(latest, first, after)

    @property
    def _presence(self) -> tuple[int, int]:
        """The first tick of the request, and the first tick after it."""
        first = min(next(iter(self.preemptions), NEVER), next(iter(self.cells), NEVER))
        return first if self.first_tick is None else self.first_tick, self.last + 1 if self.end_reason else NEVER

    def _waiting_intervals(self, latest: int, start: int, after: int) -> Iterator[Interval]:
        """Yield the intervals without work between the tick `latest`, or `start`, and the tick `after`."""
        first = max(start, latest + 1)
        count = bisect_right(self.preemptions, latest)
        preempted = min(after, max(first, self.preemptions[count])) if count < len(self.preemptions) else after
        if first < preempted:
            yield Interval("queued" if latest < 0 else "idle", first, preempted)
        if preempted < after:
            yield Interval("preempted", preempted, after)


class Timeline:
    """The requests and ticks of a trace.

    Args:
        records: the records of the trace in order, possibly from the middle of a run.

    Attributes:
        ticks: the ticks by number, in order.
        requests: the timelines of the requests by id, in order of first occurrence.
    """

    def __init__(self, records: Iterable[TraceRecord]):
        self.ticks: dict[int, Tick] = {}
        self.requests: dict[int, RequestTimeline] = {}
        self._open: dict[int, RequestTimeline] = {}
        self._last_read = 0.0
        for record in records:
            before = self._newest
            for fact in record.facts:
                self._add(fact, record, before)
        # A preemption can be reported late: a request without other facts may have ended before the trace.
        self.requests = {request_id: request for request_id, request in self.requests.items() if request.is_active}
        if not any(request.group for request in self.requests.values()):
            for request in self.requests.values():
                request.group = None

    @property
    def _newest(self) -> int:
        """The number of the newest tick; -1 without ticks."""
        return next(reversed(self.ticks), -1)

    def _add(self, fact: Fact, record: TraceRecord, before: int) -> None:
        """Add a fact of a record; `before` is the newest tick before the record."""
        match fact:
            case JoinRecord():
                request = self._timeline_of(fact.request)
                request.prompt, request.hold = fact.prompt, fact.hold
                request.first_tick = before + 1
                request.at["joined"] = record.began
            case StartRecord():
                request = self._timeline_of(fact.request)
                request.prompt, request.cached = fact.prompt, fact.cached
                if request.first_tick is None:  # queued before the trace
                    request.first_tick = 0
            case PlanRecord():
                self._add_plan(fact, record.ended)
            case DispatchRecord():
                if fact.tick in self.ticks:
                    self.ticks[fact.tick].began = record.began
            case ReadbackRecord():
                self._add_readback(fact.tick, record.ended)
            case TokensRecord():
                for request in self._running(fact.requests):
                    if fact.tick in request.cells:
                        request.cells[fact.tick].new_tokens += 1
                        request.at.setdefault("token", record.ended)
            case StopRecord():
                for request in self._running((fact.request,)):
                    _cut(request, fact.tokens)
            case EndRecord():
                self._end(fact, record.ended, before)

    def _timeline_of(self, request_id: int) -> RequestTimeline:
        if request_id not in self.requests:
            self.requests[request_id] = self._open[request_id] = RequestTimeline(request_id)
        return self.requests[request_id]

    def _running(self, request_ids: Iterable[int]) -> Iterator[RequestTimeline]:
        """Yield the timelines of the traced, unfinished requests."""
        return (self._open[request_id] for request_id in request_ids if request_id in self._open)

    def _add_plan(self, plan: PlanRecord, at: float) -> None:
        tick = plan.tick
        self.ticks[tick] = Tick(tick, plan.chunks, plan.rows, plan.onloaded_pages, at)
        for request_id in plan.preempted:
            self._timeline_of(request_id).preemptions.append(tick)
        for chunk in plan.chunks:
            request = self._timeline_of(chunk.request)
            request.cells[tick], request.group = TickWork(chunk.start, chunk.tokens, chunk.samples), chunk.group
        drafted = Counter(plan.drafted)
        for request_id, tokens in Counter(plan.rows).items():
            work = TickWork(None, tokens, True, drafted=drafted[request_id])
            self._timeline_of(request_id).cells[tick] = work

    def _add_readback(self, number: int, at: float) -> None:
        tick = self.ticks.get(number)
        if tick is not None and tick.began is not None:
            # At dispatch, the device may still have been busy with the previous tick.
            tick.began, tick.ended = max(tick.began, self._last_read), at
        self._last_read = at

    def _end(self, end: EndRecord, at: float, before: int) -> None:
        """End a request. The detokenizer reports the end last, and its reason is the more precise one."""
        request = self._timeline_of(end.request)
        if request.end_reason:
            if request.end_reason != "rejected":
                request.end_reason = end.end_reason
            return
        request.end_reason, request.error, request.at["ended"] = end.end_reason, end.error, at
        request.last = self._last(request, before)
        del self._open[end.request]

    def _last(self, request: RequestTimeline, before: int) -> int:
        """Return the last tick of a request at its end."""
        deliveries = [tick for tick, cell in request.cells.items() if cell.new_tokens]
        if request.end_reason in {"stop", "length"} and deliveries:
            return deliveries[-1]  # the end is known only after the planning of later ticks
        if request.end_reason != "held":
            return before
        # A fully cached prefix is held from the planning of the tick with its page copies.
        is_cached = not request.cells or any(tick > request.latest for tick in request.preemptions)
        return self._newest if is_cached else request.latest


def _cut(request: RequestTimeline, tokens: int) -> None:
    """Remove the new tokens after the first `tokens`. Tokens from before the trace are not counted."""
    for cell in request.cells.values():
        cell.new_tokens = min(cell.new_tokens, tokens)
        tokens -= cell.new_tokens
