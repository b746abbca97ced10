"""The router: the actor between the shared actors of an engine and its lanes. It assigns requests to lanes."""

from collections.abc import Iterable, Iterator, Sequence

from rekindle.assembly.routing.lane_requests import LaneRequests, LaneView, RouterEntry
from rekindle.assembly.routing.pages import PageCounts, pages_of
from rekindle.assembly.routing.tickets import Tickets
from rekindle.core.errors import ReplicaLost
from rekindle.core.messages import (
    AdapterPut,
    Admit,
    CacheSaved,
    CacheSaving,
    FromLane,
    Inspect,
    Inspected,
    KeepWeights,
    LaneBack,
    LaneLost,
    Message,
    NewWeights,
    Output,
    Outputs,
    PutAdapter,
    Rejected,
    Returned,
    SaveCache,
    Started,
    Stopped,
    ToLane,
    WeightsKept,
    WeightsReplaced,
    WeightsUsed,
    Withdraw,
)
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.words import quantity
from rekindle.settings.route import Choose, Routing, prefix

MOST_LOSSES = 3
"""Lane losses survived by a request; it fails at the next one."""


class Router:
    """The router actor: assigns requests to lanes, and merges the lanes' answers.

    An engine with several lanes has one router, or a `Relay` in its place if prompts have separate devices. Each lane
    gets the messages about its requests. Questions to all lanes, about weights or the saving of caches, get one merged
    answer. A request that begins with a held prefix goes to a lane with the prefix, as long as it has a free slot. A
    lane with a stuck tick gets no request while another serves: its requests have failed, so it looks the emptiest.

    Requests of a lost lane move to other lanes, with their tokens so far. While no lane serves they wait; once no lane
    will ever serve again, they fail with `ReplicaLost`. A request also fails after more than `MOST_LOSSES` losses.

    Args:
        lanes: the router's views of the lanes.
        route: the name of a route, or a function.
        limits: the limits of one lane.
    """

    def __init__(self, lanes: Sequence[LaneView], route: str | Choose, limits: EngineLimits):
        self._page_size = limits.pool.page_size
        self._slots = limits.data * limits.max_running
        self._lanes = [LaneRequests(number, view) for number, view in enumerate(lanes)]
        self._routing = Routing(route)
        self._entries: dict[int, RouterEntry] = {}
        self._held_prefixes: dict[int, RouterEntry] = {}
        self._tickets = Tickets(len(lanes))

    def handle(self, message: Message) -> Iterable[Message]:
        """Pass messages to lanes in `ToLane`; unwrap `FromLane` for the shared actors."""
        match message:
            case FromLane(lane, answer):
                return self._take(lane, answer)
            case Admit(request):
                entry = self._entries[request.id] = RouterEntry(message, pages_of(request, self._page_size))
                return self._place(entry)
            case Withdraw() | Stopped():
                return self._forward_end(message)
            case NewWeights() | KeepWeights() | SaveCache() | PutAdapter() | Inspect():
                return self._tickets.ask(message)
        raise wrong_receiver("router", message)

    def check(self) -> None:
        """Assert the invariants: each lane has exactly its unended requests."""
        for number, lane in enumerate(self._lanes):
            own = {request_id: entry for request_id, entry in self._entries.items() if entry.lane == number}
            assert lane.in_flight == len(own), "a lane has other requests than its own"
            assert not (own and lane.loss), "a lost lane has requests"
            pending = {request_id: entry for request_id, entry in own.items() if entry.tokens}
            assert lane.pending == pending, "pending prompts are miscounted"
            counts = PageCounts()
            for entry in pending.values():
                counts.add(entry.pages)
            assert counts == lane.expected_pages, "expected pages are miscounted"
        waiting = any(entry.lane is None for entry in self._entries.values())
        assert not waiting or all(lane.loss for lane in self._lanes), "a request waits for a lane though one serves"

    # Requests

    def _place(self, entry: RouterEntry) -> list[Message]:
        """Assign a request to a lane, if one serves."""
        serving = [lane for lane in self._lanes if lane.loss is None]
        if not serving:
            return [self._fail_unassigned(entry, "and no other replica is left")] if self._all_lost else []
        request, pages = entry.admit.request, entry.pages
        able = [lane for lane in serving if not lane.overdue] or serving
        loads = [lane.load(request, pages, self._page_size, self._slots) for lane in able]
        holding = self._holding(pages)
        pinned = [load for load in loads if load.lane in holding and not load.full]
        number = prefix(request, pinned) if pinned else self._routing.lane(request, loads, len(self._lanes))
        uncached = next(load.uncached for load in loads if load.lane == number)
        self._lanes[number].take(entry, uncached)
        return [ToLane(number, entry.admit)]

    def _holding(self, pages: Sequence[int]) -> set[int | None]:
        """Return the lanes with the longest held prefix of a request's pages."""
        own_pages = set(pages)
        prefixes = [each for each in self._held_prefixes.values() if each.pages and each.pages[-1] in own_pages]
        longest = max((len(each.pages) for each in prefixes), default=0)
        return {each.lane for each in prefixes if len(each.pages) == longest}

    def _forward_end(self, message: Withdraw | Stopped) -> list[Message]:
        """Forward the end of a request to its lane; a request without a lane ends here."""
        entry = self._entries.get(message.request_id)
        if entry is None:
            holder = self._held_prefixes.pop(message.request_id, None) if isinstance(message, Withdraw) else None
            return [] if holder is None or holder.lane is None else [ToLane(holder.lane, message)]
        if entry.ending is None or isinstance(message, Withdraw):
            entry.ending = "cancelled" if isinstance(message, Withdraw) else "stop"
        return [self._end_unassigned(entry)] if entry.lane is None else [ToLane(entry.lane, message)]

    def _take(self, lane: int, message: Message) -> Iterator[Message]:
        match message:
            case Outputs(outputs):
                for output in outputs:
                    entry = self._entries.get(output.request.id)
                    if entry is None:
                        continue
                    if output.end is not None:
                        self._end(entry)
                        if output.end == "held" and entry.ending != "cancelled":
                            self._held_prefixes[entry.id] = entry
                    elif output.token_ids and not self._lanes[lane].is_computing(entry.id):
                        self._lanes[lane].mark_computed(entry)
                yield message
            case Started(request_id):
                entry = self._entries.get(request_id)
                if entry is None or not entry.started:
                    yield message
                if entry is not None:
                    entry.started = True
            case Rejected(request_id):
                if request_id in self._entries:
                    self._end(self._entries[request_id])
                yield message
            case WeightsUsed() | WeightsKept() | AdapterPut() | Inspected() | CacheSaving() | CacheSaved():
                if isinstance(message, WeightsUsed):  # new weights release all held prefixes of a lane
                    self._forget_held(lane)
                yield from self._tickets.answer(lane, message)
            case WeightsReplaced():
                self._forget_held(lane)
                yield message
            case LaneLost():
                yield from self._lose(lane, message)
            case Returned(admit):
                yield from self._place_again(admit)
            case LaneBack():
                self._lanes[lane].loss = None
                for entry in [entry for entry in self._entries.values() if entry.lane is None]:
                    yield from self._place(entry)
            case _:
                yield message

    def _end(self, entry: RouterEntry) -> None:
        del self._entries[entry.id]
        if entry.lane is not None:
            self._lanes[entry.lane].leave(entry)

    # Lost lanes

    @property
    def _all_lost(self) -> bool:
        """True if no lane will ever serve again."""
        return all(lane.for_good for lane in self._lanes)

    def _lose(self, number: int, message: LaneLost) -> Iterator[Message]:
        """Assign the requests of a lost lane to others."""
        lane = self._lanes[number]
        lane.loss, lane.for_good = message.error, message.for_good
        self._forget_held(number)
        for admit in message.admits:
            entry = self._entries.get(admit.request.id)
            if entry is not None:
                entry.losses += 1
                yield from self._place_again(admit)
        if self._all_lost:
            for entry in [entry for entry in self._entries.values() if entry.lane is None]:
                yield self._fail_unassigned(entry, "and no other replica is left")

    def _place_again(self, admit: Admit) -> Iterator[Message]:
        """Assign a request of a lost lane to another, unless it was ended meanwhile or has lost too many lanes."""
        entry = self._entries.get(admit.request.id)
        if entry is None:
            return
        if entry.lane is not None:
            self._lanes[entry.lane].leave(entry)
        entry.admit, entry.pages, entry.lane = admit, pages_of(admit.request, self._page_size), None
        if entry.ending is not None:
            yield self._end_unassigned(entry)
        elif entry.losses > MOST_LOSSES:
            yield self._fail_unassigned(entry, f"as were {quantity(entry.losses - 1, 'replica')} with it before")
        else:
            yield from self._place(entry)

    def _end_unassigned(self, entry: RouterEntry) -> Message:
        """End a request without a lane, with its end reason."""
        self._end(entry)
        return Outputs((Output(entry.admit.request, (), entry.ending),))

    def _fail_unassigned(self, entry: RouterEntry, more: str) -> Message:
        """Fail a request without a lane."""
        self._end(entry)
        errors = [lane.loss for lane in self._lanes if lane.loss is not None]
        reason = str(errors[-1]) if errors else "its process is gone"
        error = ReplicaLost(f"the replica that computed the request was lost, {more}: {reason}")
        error.__cause__ = errors[-1] if errors else None
        return Rejected(entry.id, error)

    def _forget_held(self, lane: int) -> None:
        prefixes = self._held_prefixes.items()
        self._held_prefixes = {request_id: each for request_id, each in prefixes if each.lane != lane}
