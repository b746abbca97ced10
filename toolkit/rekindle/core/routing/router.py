"""The router: the actor between the lanes of an engine and what they share. It gives each request to a lane."""

from collections.abc import Iterable, Iterator, Sequence

from rekindle.core.errors import ReplicaLost
from rekindle.core.markup import quantity
from rekindle.core.messages import (
    Admit,
    CacheSaved,
    CacheSaving,
    FromLane,
    KeepWeights,
    LaneBack,
    LaneLost,
    Message,
    NewWeights,
    Output,
    Outputs,
    Rejected,
    Returned,
    SaveCache,
    Started,
    Stopped,
    ToLane,
    WeightsKept,
    WeightsUsed,
    Withdraw,
)
from rekindle.core.route import Choose, Routing, prefix
from rekindle.core.routing.pages import PageCounts, pages_of
from rekindle.core.routing.placed import LaneView, Placed, PlacedLane
from rekindle.core.routing.tickets import Tickets
from rekindle.core.scheduler.limits import EngineLimits

MOST_LOSSES = 3
"""The number of lanes that may be lost with a request for which it is given to another one."""


class Router:
    """Gives requests to lanes, and joins what the lanes say.

    Each lane gets the messages about its requests. Questions that concern all lanes go to each, and their answers are
    joined. A request that begins with a prefix that is held goes to a lane that holds it, as long as that has a slot.

    Requests of a lane that is lost go to other lanes, with their tokens so far. They wait while all are lost, and fail
    with `ReplicaLost` if these are so for good, or if more than `MOST_LOSSES` lanes were lost with them.

    Args:
        lanes: the schedulers of the lanes, as the router sees them.
        route: the name of a route, or a function.
        limits: those of one lane.
    """

    def __init__(self, lanes: Sequence[LaneView], route: str | Choose, limits: EngineLimits):
        self._page_size = limits.pool.page_size
        self._slots = limits.data * limits.max_running
        self._lanes = [PlacedLane(number, view) for number, view in enumerate(lanes)]
        self._routing = Routing(route)
        self._placed: dict[int, Placed] = {}
        self._held: dict[int, Placed] = {}
        self._tickets = Tickets(len(lanes))

    def handle(self, message: Message) -> Iterable[Message]:
        """Pass messages to lanes as `ToLane`, and what comes of them as `FromLane` to others, as it is."""
        match message:
            case FromLane(lane, said):
                return self._take(lane, said)
            case Admit(request):
                placed = self._placed[request.id] = Placed(message, pages_of(request, self._page_size))
                return self._place(placed)
            case Withdraw() | Stopped():
                return self._tell(message)
            case NewWeights() | KeepWeights() | SaveCache():
                return self._tickets.ask(message)
        raise TypeError(
            "the router takes Admit, Withdraw, Stopped, NewWeights, KeepWeights, SaveCache and FromLane, got "
            f"{message!r:.80}"
        )

    def check(self) -> None:
        """Assert the invariants: each lane has what it was given and has not ended, and nothing else."""
        for number, lane in enumerate(self._lanes):
            own = {request_id: placed for request_id, placed in self._placed.items() if placed.lane == number}
            assert lane.in_flight == len(own), "a lane has requests that it was not given, or lost some"
            assert not (own and lane.lost), "a lane that is lost has requests"
            pending = {request_id: placed for request_id, placed in own.items() if placed.tokens}
            assert lane.pending == pending, "a prompt is pending that is computed, or is not and should be"
            counts = PageCounts()
            for placed in pending.values():
                counts.add(placed.pages)
            assert counts == lane.coming, "pages are expected that no pending prompt has"
        waiting = any(placed.lane is None for placed in self._placed.values())
        assert not waiting or all(lane.lost for lane in self._lanes), "a request waits for a lane, and there is one"

    # Requests

    def _place(self, placed: Placed) -> list[Message]:
        """Give a request to a lane, if there is one."""
        serving = [lane for lane in self._lanes if lane.lost is None]
        if not serving:
            return [self._failed(placed, "and no other replica is left")] if self._over else []
        request, pages = placed.admit.request, placed.pages
        loads = [lane.load(request, pages, self._page_size, self._slots) for lane in serving]
        holding = self._holding(pages)
        pinned = [load for load in loads if load.lane in holding and not load.full]
        number = prefix(request, pinned) if pinned else self._routing.lane(request, loads)
        uncached = next(load.uncached for load in loads if load.lane == number)
        self._lanes[number].take(placed, uncached)
        return [ToLane(number, placed.admit)]

    def _holding(self, pages: Sequence[int]) -> set[int | None]:
        """Return the lanes that hold the longest of the held prefixes that a request with these pages begins with."""
        there = set(pages)
        begun = [held for held in self._held.values() if held.pages and held.pages[-1] in there]
        longest = max((len(held.pages) for held in begun), default=0)
        return {held.lane for held in begun if len(held.pages) == longest}

    def _tell(self, message: Withdraw | Stopped) -> list[Message]:
        """Tell the lane of a request that it is to end; one without a lane ends here."""
        placed = self._placed.get(message.request_id)
        if placed is None:
            held = self._held.pop(message.request_id, None) if isinstance(message, Withdraw) else None
            return [] if held is None or held.lane is None else [ToLane(held.lane, message)]
        if placed.ending is None or isinstance(message, Withdraw):
            placed.ending = "cancelled" if isinstance(message, Withdraw) else "stop"
        return [self._ended(placed)] if placed.lane is None else [ToLane(placed.lane, message)]

    def _take(self, lane: int, said: Message) -> Iterator[Message]:
        match said:
            case Outputs(outputs):
                for output in outputs:
                    placed = self._placed.get(output.request.id)
                    if placed is None:
                        continue
                    if output.end is not None:
                        self._end(placed)
                        if output.end == "held" and placed.ending != "cancelled":
                            self._held[placed.id] = placed
                    elif output.token_ids and not self._lanes[lane].is_computing(placed.id):
                        self._lanes[lane].computed(placed)
                yield said
            case Started(request_id):
                placed = self._placed.get(request_id)
                if placed is None or not placed.started:
                    yield said
                if placed is not None:
                    placed.started = True
            case Rejected(request_id):
                if request_id in self._placed:
                    self._end(self._placed[request_id])
                yield said
            case WeightsUsed() | WeightsKept() | CacheSaving() | CacheSaved():
                if isinstance(said, WeightsUsed):  # a lane that uses other weights holds no prefix any more
                    self._forget_held(lane)
                yield from self._tickets.answer(lane, said)
            case LaneLost():
                yield from self._lose(lane, said)
            case Returned(admit):
                yield from self._place_again(admit)
            case LaneBack():
                self._lanes[lane].lost = None
                for placed in [placed for placed in self._placed.values() if placed.lane is None]:
                    yield from self._place(placed)
            case _:
                yield said

    def _end(self, placed: Placed) -> None:
        del self._placed[placed.id]
        if placed.lane is not None:
            self._lanes[placed.lane].leave(placed)

    # Lanes that are lost

    @property
    def _over(self) -> bool:
        """Tell whether no lane will ever serve again."""
        return all(lane.for_good for lane in self._lanes)

    def _lose(self, number: int, said: LaneLost) -> Iterator[Message]:
        """Give the requests of a lost lane to others."""
        lane = self._lanes[number]
        lane.lost, lane.for_good = said.error, said.for_good
        self._forget_held(number)
        for admit in said.admits:
            placed = self._placed.get(admit.request.id)
            if placed is not None:
                placed.losses += 1
                yield from self._place_again(admit)
        if self._over:
            for placed in [placed for placed in self._placed.values() if placed.lane is None]:
                yield self._failed(placed, "and no other replica is left")

    def _place_again(self, admit: Admit) -> Iterator[Message]:
        """Give a request that a lost lane had to another lane, unless it was told to end, or lost too many."""
        placed = self._placed.get(admit.request.id)
        if placed is None:
            return
        if placed.lane is not None:
            self._lanes[placed.lane].leave(placed)
        placed.admit, placed.pages, placed.lane = admit, pages_of(admit.request, self._page_size), None
        if placed.ending is not None:
            yield self._ended(placed)
        elif placed.losses > MOST_LOSSES:
            yield self._failed(placed, f"as were {quantity(placed.losses - 1, 'replica')} with it before")
        else:
            yield from self._place(placed)

    def _ended(self, placed: Placed) -> Message:
        """End a request without a lane as it was told to."""
        self._end(placed)
        return Outputs((Output(placed.admit.request, (), placed.ending),))

    def _failed(self, placed: Placed, more: str) -> Message:
        """Fail a request without a lane."""
        self._end(placed)
        errors = [lane.lost for lane in self._lanes if lane.lost is not None]
        reason = str(errors[-1]) if errors else "its process is gone"
        error = ReplicaLost(f"the replica that computed the request was lost, {more}: {reason}")
        error.__cause__ = errors[-1] if errors else None
        return Rejected(placed.id, error)

    def _forget_held(self, lane: int) -> None:
        self._held = {request_id: held for request_id, held in self._held.items() if held.lane != lane}
