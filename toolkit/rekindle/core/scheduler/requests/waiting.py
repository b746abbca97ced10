"""The waiting queue: admission order, and waits for pages in progress, the host tier and the disk."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice

from rekindle.core.messages import Copy, Fetch, Fetched, Message, Onload
from rekindle.core.policy import PATIENCE_TICKS, Candidate, Ordering
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.cache.tree import NextPage
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.requests.aspects.queued import Fetching
from rekindle.core.scheduler.requests.groups import Group, least_loaded
from rekindle.core.scheduler.requests.lease import Lease
from rekindle.core.scheduler.requests.state import RequestState
from rekindle.core.scheduler.stats import Counts


class PriorityQueue:
    """Queued requests, the lowest priority number first; a part of the `WaitingQueue`."""

    def __init__(self) -> None:
        # By id, so that each of a hundred thousand requests can leave without a search.
        self._by_priority: dict[int, OrderedDict[int, RequestState]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_priority.values()))

    def __iter__(self) -> Iterator[RequestState]:
        for priority in sorted(self._by_priority):
            yield from self._by_priority[priority].values()

    def append(self, state: RequestState) -> None:
        """Add a request behind all others of its priority."""
        self._of(state)[state.request.id] = state

    def appendleft(self, state: RequestState) -> None:
        """Add a request before all others of its priority."""
        alike = self._of(state)
        alike[state.request.id] = state
        alike.move_to_end(state.request.id, last=False)

    def remove(self, state: RequestState) -> None:
        """Remove a request."""
        priority = state.request.params.priority
        del self._by_priority[priority][state.request.id]
        if not self._by_priority[priority]:
            del self._by_priority[priority]

    def overdue(self, since: int, most: int) -> list[RequestState]:
        """Return the requests queued at tick `since` or before, in the order of joining.

        Args:
            since: the latest tick of joining.
            most: the number of requests examined in each priority, to bound the cost for a long queue.
        """
        overdue: list[RequestState] = []
        for waiting in self._by_priority.values():
            for state in islice(waiting.values(), most):
                if state.queued.joined <= since:
                    overdue.append(state)
                elif not state.started:  # the rest joined later: only preempted requests are ahead of older ones
                    break
        return sorted(overdue, key=lambda state: state.queued.joined)

    def _of(self, state: RequestState) -> OrderedDict[int, RequestState]:
        return self._by_priority.setdefault(state.request.params.priority, OrderedDict())


CONSIDERED = 64
"""Queued requests considered in one tick."""
STAGED_PART = 4
"""Staged pages take at most one part in this many of the pool's size; a single request may always stage all its own."""


class WaitingQueue:
    """The waiting queue: requests without pages, in the order of admission.

    The `RequestTable` owns it. The `Planner` takes requests from it, and the `Scheduler` reports fetched copies to it.

    Args:
        limits: the policy, and the sizes of pool and page.
        groups: the groups for the requests, with their prefix trees.
        counts: the scheduler's counters, including the number of planned ticks.

    Attributes:
        changes: the number of changes: a request joined, left, or started to wait for copies.
    """

    def __init__(self, limits: EngineLimits, groups: Sequence[Group], counts: Counts):
        self._limits = limits
        self._groups = groups
        self._counts = counts
        self._ordering = Ordering(limits.policy)
        self._queue = PriorityQueue()
        self._fetching: dict[int, RequestState] = {}
        self.changes = 0

    def __len__(self) -> int:
        return len(self._queue) + len(self._fetching)

    def __iter__(self) -> Iterator[RequestState]:
        yield from self._queue
        yield from self._fetching.values()

    def blocked(self, *, only_started: bool) -> RequestState | None:
        """Return the blocked head of the queue, or None if pending copies may unblock it."""
        if self._fetching or any(group.cache.offloading for group in self._groups):
            return None
        first = next(iter(self._candidates(only_started)), None)
        return None if first is not None and first.unsettled else first

    def join(self, state: RequestState, *, first: bool = False) -> None:
        """Queue a request for its group, behind all others of its priority or before them."""
        self.changes += 1
        state.queued.joined = self._counts.ticks
        state.queued.shared.clear()
        self._count_uncached(state)  # the lookups of each tick, for up to 64 requests, continue this one
        if first:
            self._queue.appendleft(state)
        else:
            self._queue.append(state)

    def leave(self, state: RequestState) -> None:
        """Remove a request, and release its staged copies."""
        self.changes += 1
        self._release_staged(state)
        self._groups[state.group].queued_tokens -= state.queued.uncached
        if self._fetching.pop(state.request.id, None) is None:
            self._queue.remove(state)

    def move(self, state: RequestState, group: Group) -> None:
        """Move a request to another group, and release its staged copies."""
        self.changes += 1
        self._release_staged(state)
        self._groups[state.group].queued_tokens -= state.queued.uncached
        state.group, state.queued.prefix_nodes, state.queued.fetchable = group.number, [], True
        self._count_uncached(state)

    def ready(
        self,
        able: Collection[int],
        next_tick: Collection[int],
        expected_pages: Sequence[Collection[NextPage | None]],
        messages: list[Message],
        *,
        only_started: bool,
    ) -> Iterator[tuple[RequestState, list[Node]]]:
        """Yield the requests ready for admission, each with the nodes of its cached prefix; some may leave meanwhile.

        A request of a group without admissions moves to another group, unless waiting for the next tick saves
        computation.

        Args:
            able: the groups able to admit a request. The caller may change the collection between two requests.
            next_tick: the groups with a free slot, but without room in this tick.
            expected_pages: for each group, the pages that this tick computes. A request waits if its first uncached
                page is one of these.
            messages: receives the messages to the host tier.
            only_started: skip requests that have not started.
        """
        full = False
        candidates = self._candidates(only_started)
        for place, state in enumerate(candidates):
            if state.unsettled:
                return  # preempted while one of its tokens was in flight
            if state.group not in able:
                if state.queued.fetching is not None or not able:
                    continue
                other = least_loaded([self._groups[number] for number in sorted(able)], state)
                if state.group in next_tick and other.uncached(state) > state.queued.uncached:
                    continue
                self.move(state, other)
            cache, nodes = self._groups[state.group].cache, self._match(state)
            after = nodes[-1] if nodes else state.namespace
            page = cache.tree.next_page(after, state.reusable, state.marks)
            if page is not None and page in expected_pages[state.group]:
                continue
            copies = self._copies_to_fetch(state, nodes)
            if state.queued.fetching is None and self._awaits_state(state, copies):
                continue
            if not copies or state.queued.fetching is not None or not state.queued.fetchable:
                yield state, nodes
            elif not full and not self._is_fetched(copies[0]) and not any(map(cache.is_offloading, copies)):
                full = not self._make_room_to_stage(copies, candidates[place + 1 :])  # also for later ones
                if not full:
                    messages.append(self._fetch(state, copies))

    def on_fetched(self, message: Fetched) -> None:
        """Record the result of a request's fetch: staged copies, or a failure. The request is queued again."""
        state = self._fetching.pop(message.request_id, None)
        if state is None:
            return  # it ended meanwhile
        self._queue.appendleft(state)
        if state.queued.fetching is None:
            return  # its cached prefix was forgotten
        if message.staged is not None:
            state.queued.fetching.staged = message.staged
            return
        nodes, state.queued.fetchable = state.queued.fetching.nodes, bool(message.bad)
        self._release_staged(state)
        self._groups[state.group].cache.forget_unreadable(node for node in nodes if _copy_of(node) in message.bad)

    def onload(self, state: RequestState, nodes: Sequence[Node], lease: Lease, slot: int) -> Onload | None:
        """Return the onload of the staged copies of these nodes into the lease of a request; None without copies.

        Args:
            slot: the slot of the request, for its staged state.
        """
        fetching = state.queued.fetching
        if fetching is None:
            return None
        staged = dict(zip(fetching.nodes, fetching.staged, strict=True))
        usable = [node for node in nodes if node in staged]
        if not usable and fetching.state is None:
            return None
        from_disk = len(fetching.from_disk.intersection(usable))
        pages = tuple(lease.onload(usable)) if usable else ()
        onload = Onload(tuple(staged[node] for node in usable), pages, from_disk)
        last = fetching.state
        if last is None or last.depth > lease.tip.depth:  # pages before the state may have left the disk meanwhile
            return onload if usable else None
        return replace(onload, state=staged[last], slot=slot)

    def release_staged(self, first: RequestState) -> bool:
        """Release the staged copies of all requests except `first`, to unlock pages; return whether there were any."""
        staged = [state for state in self._queue if state.queued.fetching is not None and state is not first]
        for state in staged:
            self._release_staged(state)
        return bool(staged)

    def forget_cache(self) -> None:
        """Forget all cached prefixes and staged copies."""
        for state in self:  # requests with a fetch stay: its answer must not match a later fetch
            self._release_staged(state)
            state.queued.prefix_nodes = []

    def _candidates(self, only_started: bool) -> list[RequestState]:
        """Return the candidates of a tick: overdue requests, then by priority and by policy."""
        overdue = [
            state
            for state in self._queue.overdue(self._counts.ticks - PATIENCE_TICKS, CONSIDERED)
            if state.started or not only_started
        ][:CONSIDERED]
        chosen_first = set(overdue)
        able = (each for each in self._queue if (each.started or not only_started) and each not in chosen_first)
        considered = islice(able, CONSIDERED - len(overdue))
        for _, alike in groupby(considered, key=lambda state: state.request.params.priority):
            overdue += self._ordering.sort(alike, self._candidate)
        return overdue

    def _candidate(self, state: RequestState) -> Candidate:
        def path() -> Sequence[Node]:
            return () if state.unsettled else self._match(state)

        waited = self._counts.ticks - state.queued.joined
        return Candidate(state.request, state.started, waited, self._limits.pool.page_size, path)

    def _match(self, state: RequestState) -> list[Node]:
        tree = self._groups[state.group].cache.tree
        state.queued.prefix_nodes = tree.match(state.namespace, state.reusable, state.queued.prefix_nodes, state.marks)
        return state.queued.prefix_nodes

    def _count_uncached(self, state: RequestState) -> None:
        """Add the uncached tokens of a request to its group's `queued_tokens`."""
        last = state.last_usable(self._match(state))
        state.queued.uncached = len(state.tokens) - (last.depth if last else 0) * self._limits.pool.page_size
        self._groups[state.group].queued_tokens += state.queued.uncached

    def departures(self, running: RequestState) -> set[int]:
        """Return the positions at which the tokens of queued requests leave those of a running one, in whole pages.

        A state after each of these positions spares the queued requests the earlier tokens.
        """
        positions: set[int] = set()
        for state in islice(self._queue, CONSIDERED):
            if state.group == running.group and state.namespace == running.namespace:
                positions.add(_shared_tokens(state, running))
        return positions - {0}

    def _copies_to_fetch(self, state: RequestState, nodes: Sequence[Node]) -> list[Node]:
        """Return the copies to stage for a request: of pages, and of the state after these in a model with states."""
        colder = [node for node in nodes if node.page is None]
        if not state.has_states:
            return colder
        last = state.last_usable(nodes)
        if last is None or last.state is None:
            return []
        return [*(node for node in colder if node.depth <= last.depth), last.state]

    def _awaits_state(self, state: RequestState, copies: Sequence[Node]) -> bool:
        """Return True if another request of the group is about to compute a later state of the same tokens.

        The other one is running, or begins soon: copies for it are fetched.
        """
        if state.keeping is None:
            return False
        page_size = self._limits.pool.page_size
        usable = copies[-1].depth * page_size if copies else 0
        others = [
            (running, running.keeping.cuts) for running in self._groups[state.group].running if running.keeping
        ] + [
            (queued, [len(queued.queued.prefix_nodes) * page_size])
            for queued in self._fetching.values()  # once staged, it may still wait for pages
            if queued.queued.fetching is not None and queued.group == state.group
        ]
        for other, cuts in others:
            cut = next((cut for cut in cuts if cut > usable), None)
            if cut is not None and other.namespace == state.namespace and cut <= _shared_tokens(state, other):
                return True
        return False

    def _is_fetched(self, node: Node) -> bool:
        """Return True if a page's copy is staged or being fetched, for any request; several may stage one state."""
        return not node.is_state and any(
            state.queued.fetching is not None and node in state.queued.fetching.nodes for state in self
        )

    def _make_room_to_stage(self, nodes: list[Node], later: list[RequestState]) -> bool:
        """Return True if nodes may be staged, after releasing staged copies of later requests, last first.

        Otherwise the copies of a later request could keep an earlier one waiting.
        """
        for state in reversed([other for other in later if other.queued.fetching is not None]):
            if self._has_room_to_stage(nodes):
                break
            self._release_staged(state)
        return self._has_room_to_stage(nodes)

    def _has_room_to_stage(self, nodes: list[Node]) -> bool:
        staged = sum(self._room(state.queued.fetching.nodes) for state in self if state.queued.fetching is not None)
        return not staged or staged + self._room(nodes) <= self._limits.pool.num_pages // STAGED_PART

    def _room(self, nodes: Sequence[Node]) -> int:
        """Return the room of staged copies, in pages."""
        return sum(self._limits.pool.state_pages if node.is_state else 1 for node in nodes)

    def _fetch(self, state: RequestState, nodes: list[Node]) -> Fetch:
        self.changes += 1
        self._groups[state.group].cache.tree.lock(nodes[-1])
        state.queued.fetching = Fetching(nodes, {node for node in nodes if node.host is None})
        self._queue.remove(state)
        self._fetching[state.request.id] = state
        return Fetch(state.request.id, tuple(map(_copy_of, nodes)))

    def _release_staged(self, state: RequestState) -> None:
        if state.queued.fetching is not None:
            self._groups[state.group].cache.tree.unlock(state.queued.fetching.nodes[-1])
            state.queued.fetching = None


def _shared_tokens(state: RequestState, other: RequestState) -> int:
    """Return the number of first tokens in whole pages that a queued request shares with another one.

    The last token of the queued request does not count: it is always computed. The result is remembered, because each
    tick asks for up to 64 requests, perhaps of many pages.
    """
    assert state.keeping is not None
    if other.request.id in state.queued.shared:
        return state.queued.shared[other.request.id]
    size, mine, theirs = state.keeping.page_size, state.reusable, other.tokens
    most = min(len(mine), len(theirs), len(state.tokens) - 1 + state.request.hold)
    end = 0
    while end + size <= most and mine[end : end + size] == theirs[end : end + size]:
        if state.marks.get(end // size) != other.marks.get(end // size):
            break
        end += size
    state.queued.shared[other.request.id] = end
    return end


def _copy_of(node: Node) -> Copy:
    return Copy(node.host, node.disk if node.host is None else None)
