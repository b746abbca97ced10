"""The timeline of each request of a trace, tick by tick."""

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rekindle.views.records import (
    ChunkRecord,
    Cut,
    Fact,
    Given,
    JoinRecord,
    Over,
    Planned,
    Read,
    Sent,
    StartRecord,
    TraceRecord,
)

Kind = Literal["queued", "prefill", "decode", "idle", "preempted", "surplus"]
"""What a request did in a tick.

queued: it waited for its first tick. prefill: a chunk of its known tokens was computed. decode: it got new tokens.
idle: it had its pages, but nothing of it was computed. preempted: it had lost its pages and waited again. surplus: a
token was computed and dropped, because the end of the request was not yet known when the tick was planned.
"""

NEVER = sys.maxsize
"""A tick number that is never reached."""


class Interval(NamedTuple):
    """A range of ticks in which a request did the same thing: from `first` up to, but not including, `after`."""

    kind: Kind
    first: int
    after: int


@dataclass(slots=True)
class TickWork:
    """The tokens that one tick computed for one request.

    Attributes:
        start: the position of the first token; None for a decode row.
        tokens: how many tokens were computed.
        samples: whether a new token was sampled.
        given: how many new tokens the request got.
    """

    start: int | None
    tokens: int
    samples: bool
    given: int = 0

    @property
    def prefill(self) -> bool:
        """Tell whether its tokens are a chunk; otherwise they are those of a decode row."""
        return self.start is not None


@dataclass(slots=True)
class Tick:
    """One plan, and its times in seconds since the trace began.

    Attributes:
        rows: the requests that have a decode row, once for each token that it may get.
        onloaded: how many pages are copied to the device for it.
        planned: when the plan was made.
        began, ended: when the device could begin with it, and when its tokens were read; None if not seen.
    """

    number: int
    chunks: tuple[ChunkRecord, ...]
    rows: tuple[int, ...]
    onloaded: int
    planned: float
    began: float | None = None
    ended: float | None = None

    @property
    def seconds(self) -> float | None:
        """Return how long the device took at most, in seconds; None if that was not seen."""
        return None if self.began is None or self.ended is None else self.ended - self.began


@dataclass(slots=True)
class RequestTimeline:
    """All that is known of one request.

    Attributes:
        request: its id.
        prompt, cached: tokens of its prompt, and how many of them were cached; None if that was not seen.
        hold: whether it is a prefix to be held.
        joined: the first tick that could have computed something for it; None if it began before the trace.
        cells: what was computed, by tick, in order.
        lost: the ticks at whose planning it lost its pages, in order. They may come after `last`, because the end of a
            request may be known late.
        last: the last tick that it had a part in; -1 if it ended before any.
        how, why: how and why it ended, as in `Over`; empty while it has not ended.
        group: the group of devices that computed it last; None if all that was seen is of one group.
        at: seconds since the trace began when it "joined", when its first "token" was given, and when it "ended".
    """

    request: int
    prompt: int | None = None
    cached: int | None = None
    hold: bool = False
    joined: int | None = None
    cells: dict[int, TickWork] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    last: int = -1
    how: str = ""
    why: str = ""
    group: int | None = None
    at: dict[str, float] = field(default_factory=dict)

    @property
    def generated(self) -> int:
        """The number of tokens that it was given."""
        return sum(cell.given for cell in self.cells.values())

    @property
    def latest(self) -> int:
        """The last tick that computed something for it; -1 if none did."""
        return next(reversed(self.cells), -1)

    @property
    def known(self) -> bool:
        """Tell whether the trace saw more of it than a loss of its pages."""
        return self.joined is not None or bool(self.cells or self.how)

    @property
    def whole(self) -> bool:
        """Tell whether it was seen from its beginning. A request that is rejected at once never joins the queue."""
        return self.joined is not None or (self.how == "rejected" and not self.cells)

    def there(self, tick: int) -> bool:
        """Return whether it waited or ran in a tick, as far as the trace knows."""
        first, after = self._there
        return first <= tick < after

    def kinds(self, ticks: Sequence[int]) -> Sequence[Kind | None]:
        """Return what it did in each of these ticks, which are in order; None where it was not there."""
        kinds: list[Kind | None] = [None] * len(ticks)
        for kind, first, after in self.intervals():
            start, end = bisect_left(ticks, first), bisect_left(ticks, after)
            kinds[start:end] = [kind] * (end - start)
        return kinds

    def intervals(self) -> Iterator[Interval]:
        """Yield what it did, in order. However long it waits, that is one stretch."""
        there, gone = self._there
        latest = -1
        for tick, cell in self.cells.items():
            yield from self._waited(latest, there, min(gone, tick))
            new: Kind = "surplus" if self.how and not cell.given else "decode"
            yield Interval("prefill" if cell.prefill else new, tick, tick + 1)
            latest = tick
        yield from self._waited(latest, there, gone)

    @property
    def _there(self) -> tuple[int, int]:
        """The first tick in which it was there, and the first one in which it was gone."""
        seen = min(next(iter(self.lost), NEVER), next(iter(self.cells), NEVER))
        return seen if self.joined is None else self.joined, self.last + 1 if self.how else NEVER

    def _waited(self, latest: int, there: int, after: int) -> Iterator[Interval]:
        """Yield what it did after its latest cell, or since it was there, and before the tick `after`."""
        first = max(there, latest + 1)
        losses = bisect_right(self.lost, latest)
        lost = min(after, max(first, self.lost[losses])) if losses < len(self.lost) else after
        if first < lost:
            yield Interval("queued" if latest < 0 else "idle", first, lost)
        if lost < after:
            yield Interval("preempted", lost, after)


class Timeline:
    """The requests and ticks of a trace.

    Args:
        records: what the trace saw, in order. They may begin in the middle of a run.

    Attributes:
        ticks: the ticks by number, in order.
        request_timelines: the requests by id, in the order in which they were first seen.
    """

    def __init__(self, records: Iterable[TraceRecord]):
        self.ticks: dict[int, Tick] = {}
        self.request_timelines: dict[int, RequestTimeline] = {}
        self._open: dict[int, RequestTimeline] = {}
        self._last_read = 0.0
        for record in records:
            before = self._newest
            for fact in record.facts:
                self._add(fact, record, before)
        # A loss may be told late. A request of which nothing else is known may have ended before the trace.
        self.request_timelines = {
            name: request_timeline
            for name, request_timeline in self.request_timelines.items()
            if request_timeline.known
        }
        if not any(request_timeline.group for request_timeline in self.request_timelines.values()):
            for request_timeline in self.request_timelines.values():
                request_timeline.group = None

    @property
    def _newest(self) -> int:
        """The number of the newest tick; -1 if there is none."""
        return next(reversed(self.ticks), -1)

    def _add(self, fact: Fact, record: TraceRecord, before: int) -> None:
        """Add a fact; `before` was the newest tick before its record."""
        match fact:
            case JoinRecord():
                request_timeline = self._course(fact.request)
                request_timeline.prompt, request_timeline.hold = fact.prompt, fact.hold
                request_timeline.joined = before + 1
                request_timeline.at["joined"] = record.began
            case StartRecord():
                request_timeline = self._course(fact.request)
                request_timeline.prompt, request_timeline.cached = fact.prompt, fact.cached
                if request_timeline.joined is None:  # it waited since before the trace
                    request_timeline.joined = 0
            case Planned():
                self._planned(fact, record.ended)
            case Sent():
                if fact.tick in self.ticks:
                    self.ticks[fact.tick].began = record.began
            case Read():
                self._read_back(fact.tick, record.ended)
            case Given():
                for request_timeline in self._running(fact.requests):
                    if fact.tick in request_timeline.cells:
                        request_timeline.cells[fact.tick].given += 1
                        request_timeline.at.setdefault("token", record.ended)
            case Cut():
                for request_timeline in self._running((fact.request,)):
                    _cut(request_timeline, fact.tokens)
            case Over():
                self._over(fact, record.ended, before)

    def _course(self, request: int) -> RequestTimeline:
        if request not in self.request_timelines:
            self.request_timelines[request] = self._open[request] = RequestTimeline(request)
        return self.request_timelines[request]

    def _running(self, requests: Iterable[int]) -> Iterator[RequestTimeline]:
        """Yield the timelines of the requests that are known and have not ended."""
        return (self._open[request] for request in requests if request in self._open)

    def _planned(self, plan: Planned, at: float) -> None:
        tick = plan.tick
        self.ticks[tick] = Tick(tick, plan.chunks, plan.rows, plan.onloaded, at)
        for request in plan.preempted:
            self._course(request).lost.append(tick)
        for part in plan.chunks:
            request_timeline = self._course(part.request)
            request_timeline.cells[tick], request_timeline.group = (
                TickWork(part.start, part.tokens, part.samples),
                part.group,
            )
        for request, tokens in Counter(plan.rows).items():
            self._course(request).cells[tick] = TickWork(None, tokens, True)

    def _read_back(self, number: int, at: float) -> None:
        tick = self.ticks.get(number)
        if tick is not None and tick.began is not None:
            # The device may still have worked on the tick before when it was given this one.
            tick.began, tick.ended = max(tick.began, self._last_read), at
        self._last_read = at

    def _over(self, over: Over, at: float, before: int) -> None:
        """End a request. The scheduler or the intake says so, then the detokenizer, which may know better how."""
        request_timeline = self._course(over.request)
        if request_timeline.how:
            if request_timeline.how != "rejected":
                request_timeline.how = over.how
            return
        request_timeline.how, request_timeline.why, request_timeline.at["ended"] = over.how, over.why, at
        request_timeline.last = self._last(request_timeline, before)
        del self._open[over.request]

    def _last(self, request_timeline: RequestTimeline, before: int) -> int:
        """Return the last tick that a request had a part in, which has just ended."""
        given = [tick for tick, cell in request_timeline.cells.items() if cell.given]
        if request_timeline.how in {"stop", "length"} and given:
            return given[-1]  # such an end is known only after later ticks were planned
        if request_timeline.how != "held":
            return before
        # A prefix that is found whole is held as soon as the plan is made that copies its pages in.
        found = not request_timeline.cells or any(lost > request_timeline.latest for lost in request_timeline.lost)
        return self._newest if found else request_timeline.latest


def _cut(request_timeline: RequestTimeline, tokens: int) -> None:
    """Take back the tokens after so many. If the request began before the trace, its first tokens are not counted."""
    for cell in request_timeline.cells.values():
        cell.given = min(cell.given, tokens)
        tokens -= cell.given
