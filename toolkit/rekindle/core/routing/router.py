"""The router: the actor between the lanes of an engine and what they share. It gives each request to a lane."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from rekindle.core.messages import (
    Admit,
    CacheSaved,
    CacheSaving,
    FromLane,
    KeepWeights,
    Message,
    NewWeights,
    Outputs,
    Rejected,
    SaveCache,
    Stopped,
    ToLane,
    WeightsKept,
    WeightsUsed,
    Withdraw,
)
from rekindle.core.request.request import Request
from rekindle.core.route import Choose, LaneLoad, Routing, prefix
from rekindle.core.routing.pages import PageCounts, pages_of
from rekindle.core.routing.tickets import Tickets
from rekindle.core.scheduler.limits import EngineLimits


class LaneView(Protocol):
    """The scheduler of a lane as the router sees it, on the engine's loop."""

    def uncached(self, request: Request) -> int:
        """Return the number of a request's known tokens that would have to be computed now."""

    def remaining(self, request_id: int) -> int | None:
        """Return the number of tokens that a running request has to compute until its next one; None for others."""


@dataclass(slots=True)
class _Given:
    """A request that was given to a lane.

    Attributes:
        pages: of its known tokens, by `pages_of`.
        tokens: those that it was reckoned to compute; 0 once its first token is there.
        withdrawn: whether it was told to end.
    """

    request: Request
    lane: int
    pages: tuple[int, ...]
    tokens: int
    withdrawn: bool = False


class _Lane:
    """The requests that were given to one lane.

    Attributes:
        pending: the requests whose prompts are not computed yet, by id.
        coming: the pages of these.
        in_flight, given: see `LaneLoad`.
    """

    def __init__(self, number: int, view: LaneView):
        self._number, self._view = number, view
        self.pending: dict[int, _Given] = {}
        self.coming = PageCounts()
        self.in_flight = 0
        self.given = 0

    def load(self, request: Request, pages: Sequence[int], page_size: int, slots: int) -> LaneLoad:
        """Return how it stands, for a request with these pages."""
        tokens = len(request.known)
        coming = self.coming.prefix(pages[: (tokens - 1) // page_size]) * page_size
        uncached = min(self._view.uncached(request), tokens - coming)
        pending = sum(map(self._left, self.pending.values()))
        return LaneLoad(self._number, pending, uncached, self.in_flight, self.given, slots)

    def is_computing(self, request_id: int) -> bool:
        """Tell whether tokens of a request that were known are still to be computed, though some are told."""
        return bool(self._view.remaining(request_id))

    def _left(self, given: _Given) -> int:
        left = self._view.remaining(given.request.id)
        return given.tokens if left is None else min(given.tokens, left)


class Router:
    """Gives requests to lanes, and joins what the lanes say.

    Each lane gets the messages about its requests. Questions that concern all lanes go to each, and their answers are
    joined. A request that begins with a prefix that is held goes to a lane that holds it, as long as that has a slot.

    Args:
        lanes: the schedulers of the lanes, as the router sees them.
        route: the name of a route, or a function.
        limits: those of one lane.
    """

    def __init__(self, lanes: Sequence[LaneView], route: str | Choose, limits: EngineLimits):
        self._page_size = limits.pool.page_size
        self._slots = limits.data * limits.max_running
        self._lanes = [_Lane(number, view) for number, view in enumerate(lanes)]
        self._routing = Routing(route)
        self._given: dict[int, _Given] = {}
        self._held: dict[int, _Given] = {}
        self._tickets = Tickets(len(lanes))

    def handle(self, message: Message) -> Iterable[Message]:
        """Pass messages to lanes as `ToLane`, and what comes of them as `FromLane` to others, as it is."""
        match message:
            case FromLane(lane, said):
                return self._take(lane, said)
            case Admit(request):
                return [ToLane(self._give(request), message)]
            case Withdraw(request_id):
                given = self._given.get(request_id) or self._held.pop(request_id, None)
                if given is not None:
                    given.withdrawn = True
                return [] if given is None else [ToLane(given.lane, message)]
            case Stopped(request_id):
                given = self._given.get(request_id)
                return [] if given is None else [ToLane(given.lane, message)]
            case NewWeights() | KeepWeights() | SaveCache():
                return self._tickets.ask(message)
        raise TypeError(
            "the router takes Admit, Withdraw, Stopped, NewWeights, KeepWeights, SaveCache and FromLane, got "
            f"{message!r:.80}"
        )

    def check(self) -> None:
        """Assert the invariants: each lane has what it was given and has not ended, and nothing else."""
        for number, lane in enumerate(self._lanes):
            own = {request_id: given for request_id, given in self._given.items() if given.lane == number}
            assert lane.in_flight == len(own), "a lane has requests that it was not given, or lost some"
            pending = {request_id: given for request_id, given in own.items() if given.tokens}
            assert lane.pending == pending, "a prompt is pending that is computed, or is not and should be"
            counts = PageCounts()
            for given in pending.values():
                counts.add(given.pages)
            assert counts == lane.coming, "pages are expected that no pending prompt has"

    def _give(self, request: Request) -> int:
        """Choose a lane for a request, and return its number."""
        pages = pages_of(request, self._page_size)
        loads = [lane.load(request, pages, self._page_size, self._slots) for lane in self._lanes]
        holding = self._holding(request, pages)
        pinned = [load for load in loads if load.lane in holding and not load.full]
        number = prefix(request, pinned) if pinned else self._routing.lane(request, loads)
        lane = self._lanes[number]
        lane.given += 1
        lane.in_flight += 1
        given = _Given(request, number, pages, max(1, loads[number].uncached))
        self._given[request.id] = lane.pending[request.id] = given
        lane.coming.add(pages)
        return number

    def _holding(self, request: Request, pages: Sequence[int]) -> set[int]:
        """Return the lanes that hold the longest of the held prefixes that a request begins with."""
        there = set(pages)
        begun = [held for held in self._held.values() if held.pages and held.pages[-1] in there]
        longest = max((len(held.pages) for held in begun), default=0)
        return {held.lane for held in begun if len(held.pages) == longest}

    def _take(self, lane: int, said: Message) -> Iterator[Message]:
        match said:
            case Outputs(outputs):
                for output in outputs:
                    if output.end is not None:
                        self._end(output.request.id, held=output.end == "held")
                    elif output.token_ids and not self._lanes[lane].is_computing(output.request.id):
                        self._computed(output.request.id)
                yield said
            case Rejected(request_id):
                self._end(request_id, held=False)
                yield said
            case WeightsUsed() | WeightsKept() | CacheSaving() | CacheSaved():
                if isinstance(said, WeightsUsed):  # a lane that uses other weights holds no prefix any more
                    self._held = {number: held for number, held in self._held.items() if held.lane != lane}
                yield from self._tickets.answer(lane, said)
            case _:
                yield said

    def _computed(self, request_id: int) -> None:
        """Count the prompt of a request as pending no more."""
        given = self._given.get(request_id)
        if given is not None and given.tokens:
            given.tokens = 0
            lane = self._lanes[given.lane]
            del lane.pending[request_id]
            lane.coming.remove(given.pages)

    def _end(self, request_id: int, *, held: bool) -> None:
        self._computed(request_id)
        given = self._given.pop(request_id, None)
        if given is not None:
            self._lanes[given.lane].in_flight -= 1
            if held and not given.withdrawn:
                self._held[request_id] = given
