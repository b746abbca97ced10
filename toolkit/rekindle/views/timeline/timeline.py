"""What became of each request, tick by tick, as a trace tells it."""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rekindle.views.records import Begun, Cut, Fact, Given, Joined, Over, Part, Planned, Read, Seen, Sent

Kind = Literal["queued", "prefill", "decode", "idle", "preempted", "surplus"]
"""What a request did in a tick.

queued: it waited for its first. prefill: known tokens of it were computed. decode: it got one more token. idle: it had
its pages, and nothing of it was computed. preempted: it had lost its pages, and waited again. surplus: a token was
computed and dropped, because the end of the request was not known yet when the tick was planned.
"""

NEVER = sys.maxsize
"""A tick that does not come."""


class Stretch(NamedTuple):
    """Ticks in which a request did the same: from the first one to the last one before `after`."""

    kind: Kind
    first: int
    after: int


@dataclass(slots=True)
class Cell:
    """What one tick computed for one request.

    Attributes:
        start: the position of its first token; None of a decode row.
        tokens: how many.
        prefill: whether they are a chunk; else they are the one of a decode row.
        samples: whether a new token comes of it.
        given: whether the request got that token.
    """

    start: int | None
    tokens: int
    prefill: bool
    samples: bool
    given: bool = False


@dataclass(slots=True)
class Tick:
    """One plan, and when what came of it, in seconds since the trace began.

    Attributes:
        planned: when it was made.
        began, ended: when the device began with it, at the earliest, and when its tokens were read; None if not seen.
    """

    number: int
    chunks: tuple[Part, ...]
    rows: tuple[int, ...]
    onloaded: int
    planned: float
    began: float | None = None
    ended: float | None = None

    @property
    def seconds(self) -> float | None:
        """How long the device took at most."""
        return None if self.began is None or self.ended is None else self.ended - self.began


@dataclass(slots=True)
class Course:
    """One request.

    Attributes:
        prompt, cached: tokens of its prompt, and those found in the prefix cache; None where that was not seen.
        hold: whether it is a prefix to be held.
        joined: the first tick that could have computed something for it; None if it began before the trace.
        cells: what was computed, by tick.
        lost: the ticks before which it lost its pages; after `last`, if its end was only known after that.
        last: the last tick that it had a part in; None if it ended before any.
        how, why: as in `Over`; empty while it has not ended.
        at: seconds since the trace began when it "joined", when its first "token" was given, and when it "ended".
    """

    request: int
    prompt: int | None = None
    cached: int | None = None
    hold: bool = False
    joined: int | None = None
    cells: dict[int, Cell] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    last: int | None = None
    how: str = ""
    why: str = ""
    at: dict[str, float] = field(default_factory=dict)

    @property
    def generated(self) -> int:
        """Tokens that it was given."""
        return sum(cell.given for cell in self.cells.values())

    @property
    def latest(self) -> int:
        """The last tick that computed something for it; -1 for none."""
        return next(reversed(self.cells), -1)

    @property
    def known(self) -> bool:
        """Whether more was seen of it than that it lost its pages."""
        return self.joined is not None or bool(self.cells or self.how)

    @property
    def whole(self) -> bool:
        """Whether it was seen from its beginning; one that is turned away at once joins nobody."""
        return self.joined is not None or (self.how == "rejected" and not self.cells)

    def there(self, tick: int) -> bool:
        """Whether it waited or ran then, as far as was seen, and had not ended."""
        first, after = self._there
        return first <= tick < after

    def kinds(self, ticks: Sequence[int]) -> Sequence[Kind | None]:
        """What it did in each of these ticks, which are in order; None where it was not there."""
        kinds: list[Kind | None] = [None] * len(ticks)
        for kind, first, after in self.stretches():
            start, end = bisect_left(ticks, first), bisect_left(ticks, after)
            kinds[start:end] = [kind] * (end - start)
        return kinds

    def stretches(self) -> Iterator[Stretch]:
        """What it did, in order. How many there are depends on what was computed of it, not on how long it waited."""
        there, gone = self._there
        latest = -1
        for tick, cell in self.cells.items():
            yield from self._waited(latest, there, min(gone, tick))
            dropped = self.how and not cell.given
            yield Stretch("prefill" if cell.prefill else "surplus" if dropped else "decode", tick, tick + 1)
            latest = tick
        yield from self._waited(latest, there, gone)

    @property
    def _there(self) -> tuple[int, int]:
        """The tick from which on it was there, and the one from which on it was not."""
        seen = min(next(iter(self.lost), NEVER), next(iter(self.cells), NEVER))
        last = -1 if self.last is None else self.last
        return seen if self.joined is None else self.joined, last + 1 if self.how else NEVER

    def _waited(self, latest: int, there: int, after: int) -> Iterator[Stretch]:
        """What it did from its latest cell, or from when it was there, until after that."""
        first = max(there, latest + 1)
        losses = bisect_right(self.lost, latest)
        lost = max(first, self.lost[losses]) if losses < len(self.lost) else after
        if first < min(lost, after):
            yield Stretch("queued" if latest < 0 else "idle", first, min(lost, after))
        if lost < after:
            yield Stretch("preempted", lost, after)


class Timeline:
    """The requests and ticks of a trace.

    Args:
        records: what was seen, in order. They may begin in the middle of a run.

    Attributes:
        ticks: by number, in order.
        courses: by request id, in the order in which they were seen first.
    """

    def __init__(self, records: Iterable[Seen]):
        self.ticks: dict[int, Tick] = {}
        self.courses: dict[int, Course] = {}
        self._open: dict[int, Course] = {}
        self._read = 0.0
        for record in records:
            before = self._newest
            for fact in record.facts:
                self._take_in(fact, record, before)
        # A loss may be told late: who is known by nothing else may have ended before the trace.
        self.courses = {name: course for name, course in self.courses.items() if course.known}

    @property
    def _newest(self) -> int | None:
        return next(reversed(self.ticks), None)

    def _take_in(self, fact: Fact, record: Seen, before: int | None) -> None:
        match fact:
            case Joined():
                course = self._course(fact.request)
                course.prompt, course.hold = fact.prompt, fact.hold
                course.joined = 0 if before is None else before + 1
                course.at["joined"] = record.began
            case Begun():
                course = self._course(fact.request)
                course.prompt, course.cached = fact.prompt, fact.cached
                if course.joined is None:  # it waited since before the trace
                    course.joined = 0
            case Planned():
                self._planned(fact, record.ended)
            case Sent():
                if fact.tick in self.ticks:
                    self.ticks[fact.tick].began = record.began
            case Read():
                self._settled(fact.tick, record.ended)
            case Given():
                for course in self._those(fact.requests):
                    if fact.tick in course.cells:
                        course.cells[fact.tick].given = True
                        course.at.setdefault("token", record.ended)
            case Cut():
                for course in self._those((fact.request,)):
                    _cut(course, fact.tokens)
            case Over():
                self._over(fact, record.ended, before)

    def _course(self, request: int) -> Course:
        if request not in self.courses:
            self.courses[request] = self._open[request] = Course(request)
        return self.courses[request]

    def _those(self, requests: Iterable[int]) -> Iterator[Course]:
        """Those of them that are known and have not ended."""
        return (self._open[request] for request in requests if request in self._open)

    def _planned(self, plan: Planned, at: float) -> None:
        tick = plan.tick
        self.ticks[tick] = Tick(tick, plan.chunks, plan.rows, plan.onloaded, at)
        for request in plan.preempted:
            self._course(request).lost.append(tick)
        for part in plan.chunks:
            self._course(part.request).cells[tick] = Cell(part.start, part.tokens, True, part.samples)
        for request in plan.rows:
            self._course(request).cells[tick] = Cell(None, 1, False, True)

    def _settled(self, number: int, at: float) -> None:
        tick = self.ticks.get(number)
        if tick is not None and tick.began is not None:
            # It was given to the device while that worked on the one before.
            tick.began, tick.ended = max(tick.began, self._read), at
        self._read = at

    def _over(self, over: Over, at: float, before: int | None) -> None:
        """Said by the scheduler or the intake, and then by the detokenizer, who may know better how it ended."""
        course = self._course(over.request)
        if course.how:
            course.how = course.how if course.how == "rejected" else over.how
            return
        given = [tick for tick, cell in course.cells.items() if cell.given]
        course.how, course.why, course.at["ended"] = over.how, over.why, at
        # What ends a request by itself is known only after later ticks were planned.
        if over.how in {"stop", "length"} and given:
            course.last = max(given)
        else:
            # A prefix that was found whole is held as soon as the plan is made that copies its pages in.
            found = not course.cells or any(lost > course.latest for lost in course.lost)
            course.last = before if over.how != "held" else self._newest if found else course.latest
        del self._open[over.request]


def _cut(course: Course, tokens: int) -> None:
    """Its tokens after so many were not its own; of one that began before the trace, some of these may not be known."""
    given = [cell for cell in course.cells.values() if cell.given]
    for cell in given[tokens:]:
        cell.given = False
