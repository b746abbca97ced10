"""The waiting queue: who comes next, who waits for what another computes, and who for the host tier or the disk."""

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, islice

from rekindle.core.messages import Copy, Fetch, Fetched, Message, Onload
from rekindle.core.policy import PATIENCE_TICKS, Candidate, Ordering
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.cache.tree import NextPage
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.requests.groups import Group, least_loaded
from rekindle.core.scheduler.requests.lease import Lease
from rekindle.core.scheduler.requests.line import Line
from rekindle.core.scheduler.requests.queued import Fetching
from rekindle.core.scheduler.requests.state import RequestState
from rekindle.core.scheduler.stats import Counts

CONSIDERED = 64
"""How many of the waiting requests are looked at for one tick."""
STAGED_PART = 4
"""This part of the pool's size may be staged beside it for those who wait; of one request, all that it needs."""


class WaitingQueue:
    """Requests without pages, in the order in which they are to get some.

    Args:
        limits: the policy, and the sizes of pool and page.
        groups: which are to compute them, and where their prefixes may be found.
        counts: the scheduler's, which say how many ticks are planned.

    Attributes:
        changes: how often a request joined, left, or began to wait for copies.
    """

    def __init__(self, limits: EngineLimits, groups: Sequence[Group], counts: Counts):
        self._limits = limits
        self._groups = groups
        self._counts = counts
        self._ordering = Ordering(limits.policy)
        self._queue = Line()
        self._fetching: dict[int, RequestState] = {}
        self.changes = 0

    def __len__(self) -> int:
        return len(self._queue) + len(self._fetching)

    def __iter__(self) -> Iterator[RequestState]:
        yield from self._queue
        yield from self._fetching.values()

    def blocked(self, *, only_started: bool) -> RequestState | None:
        """Return who comes next; None if nobody waits, or something is under way that may change that it waits."""
        if self._fetching or any(group.cache.offloading for group in self._groups):
            return None
        first = next(iter(self._candidates(only_started)), None)
        return None if first is not None and first.unsettled else first

    def join(self, state: RequestState, *, first: bool = False) -> None:
        """Let a request wait for its group, behind all others of its priority or before them."""
        self.changes += 1
        state.queued.joined = self._counts.ticks
        self._owe(state)  # it is looked for now, when it is one request; later looks go on, at 64 in one tick
        if first:
            self._queue.appendleft(state)
        else:
            self._queue.append(state)

    def leave(self, state: RequestState) -> None:
        """Let a request wait no longer, and give up what is staged for it."""
        self.changes += 1
        self._give_up(state)
        self._groups[state.group].owed -= state.queued.owed
        if self._fetching.pop(state.request.id, None) is None:
            self._queue.remove(state)

    def move(self, state: RequestState, group: Group) -> None:
        """Let a request wait for another group, and give up what is staged for it."""
        self.changes += 1
        self._give_up(state)
        self._groups[state.group].owed -= state.queued.owed
        state.group, state.queued.found, state.queued.fetchable = group.number, [], True
        self._owe(state)

    def ready(
        self,
        able: Collection[int],
        next_tick: Collection[int],
        coming: Sequence[Collection[NextPage | None]],
        said: list[Message],
        *,
        only_started: bool,
    ) -> Iterator[tuple[RequestState, list[Node]]]:
        """Yield who could be admitted now, each with the nodes of its cached prefix; some may leave meanwhile.

        Who waits for a group that admits nobody moves to one that does, unless less is to be computed in the next tick.

        Args:
            able: the groups that may admit somebody, looked at anew for each request.
            next_tick: those of the others in whose way only the size of the tick is.
            coming: for each group, the pages that it computes; who would begin with one of them waits for it instead.
            said: gets the messages to the host tier.
            only_started: pass over those that have not started.
        """
        full = False
        candidates = self._candidates(only_started)
        for place, state in enumerate(candidates):
            if state.unsettled:
                return  # it lost its pages, and a token of it is still on its way
            if state.group not in able:
                if state.queued.fetching is not None or not able:
                    continue
                other = least_loaded([self._groups[number] for number in sorted(able)], state)
                if state.group in next_tick and other.uncached(state) > state.queued.owed:
                    continue
                self.move(state, other)
            cache, nodes = self._groups[state.group].cache, self._found(state)
            after = nodes[-1] if nodes else state.namespace
            page = cache.tree.next_page(after, state.reusable)
            if page is not None and page in coming[state.group]:
                continue
            colder = [node for node in nodes if node.page is None]
            if not colder or state.queued.fetching is not None or not state.queued.fetchable:
                yield state, nodes
            elif not full and not self._is_fetched(colder[0]) and not any(map(cache.is_offloading, colder)):
                full = not self._make_room_to_stage(colder, candidates[place + 1 :])  # also for later ones
                if not full:
                    said.append(self._fetch(state, colder))

    def fetched(self, message: Fetched) -> None:
        """Take in that what a request waited for is staged on the device, or could not be."""
        state = self._fetching.pop(message.request_id, None)
        if state is None:
            return  # it ended meanwhile
        self._queue.appendleft(state)
        if state.queued.fetching is None:
            return  # what it waited for was forgotten
        if message.staged is not None:
            state.queued.fetching.staged = message.staged
            return
        nodes, state.queued.fetchable = state.queued.fetching.nodes, bool(message.bad)
        self._give_up(state)
        self._groups[state.group].cache.unreadable(node for node in nodes if _copy_of(node) in message.bad)

    def onload(self, state: RequestState, nodes: Sequence[Node], lease: Lease) -> Onload | None:
        """Let what is staged for a request of these nodes go to the pages of its lease; None if nothing is."""
        if state.queued.fetching is None:
            return None
        staged = dict(zip(state.queued.fetching.nodes, state.queued.fetching.staged, strict=True))
        usable = [node for node in nodes if node in staged]
        if not usable:
            return None
        from_disk = len(state.queued.fetching.from_disk.intersection(usable))
        return Onload(tuple(staged[node] for node in usable), tuple(lease.onload(usable)), from_disk)

    def give_up_staged(self, first: RequestState) -> bool:
        """Give up what is staged for others than `first`, since it keeps pages locked; return whether anything was."""
        staged = [state for state in self._queue if state.queued.fetching is not None and state is not first]
        for state in staged:
            self._give_up(state)
        return bool(staged)

    def forget_cache(self) -> None:
        """Give up everything that was found."""
        for state in self:  # who waits for copies goes on when they come, or would take them for later ones
            self._give_up(state)
            state.queued.found = []

    def _candidates(self, only_started: bool) -> list[RequestState]:
        """Return the candidates of a tick: overdue requests, then by priority, and in the policy's order within one."""
        overdue = [
            state
            for state in self._queue.overdue(self._counts.ticks - PATIENCE_TICKS, CONSIDERED)
            if state.started or not only_started
        ][:CONSIDERED]
        passed = set(overdue)
        able = (each for each in self._queue if (each.started or not only_started) and each not in passed)
        considered = islice(able, CONSIDERED - len(overdue))
        for _, alike in groupby(considered, key=lambda state: state.request.params.priority):
            overdue += self._ordering.sort(alike, self._candidate)
        return overdue

    def _candidate(self, state: RequestState) -> Candidate:
        def path() -> Sequence[Node]:
            return () if state.unsettled else self._found(state)

        waited = self._counts.ticks - state.queued.joined
        return Candidate(state.request, state.started, waited, self._limits.pool.page_size, path)

    def _found(self, state: RequestState) -> list[Node]:
        tree = self._groups[state.group].cache.tree
        state.queued.found = tree.match(state.namespace, state.reusable, state.queued.found)
        return state.queued.found

    def _owe(self, state: RequestState) -> None:
        """Count the tokens that a request is to compute as its group's."""
        state.queued.owed = len(state.tokens) - len(self._found(state)) * self._limits.pool.page_size
        self._groups[state.group].owed += state.queued.owed

    def _is_fetched(self, node: Node) -> bool:
        """Return whether a node's copy is staged, or on its way, for any request."""
        return any(state.queued.fetching is not None and node in state.queued.fetching.nodes for state in self)

    def _make_room_to_stage(self, nodes: list[Node], later: list[RequestState]) -> bool:
        """Return whether these may be staged; what is staged for those who come later gives way, the last first.

        Or who comes first might wait for one whom all others pass.
        """
        for state in reversed([other for other in later if other.queued.fetching is not None]):
            if self._has_room_to_stage(nodes):
                break
            self._give_up(state)
        return self._has_room_to_stage(nodes)

    def _has_room_to_stage(self, nodes: list[Node]) -> bool:
        staged = sum(len(state.queued.fetching.nodes) for state in self if state.queued.fetching is not None)
        return not staged or staged + len(nodes) <= self._limits.pool.num_pages // STAGED_PART

    def _fetch(self, state: RequestState, nodes: list[Node]) -> Fetch:
        self.changes += 1
        self._groups[state.group].cache.tree.lock(nodes[-1])
        state.queued.fetching = Fetching(nodes, {node for node in nodes if node.host is None})
        self._queue.remove(state)
        self._fetching[state.request.id] = state
        return Fetch(state.request.id, tuple(map(_copy_of, nodes)))

    def _give_up(self, state: RequestState) -> None:
        if state.queued.fetching is not None:
            self._groups[state.group].cache.tree.unlock(state.queued.fetching.nodes[-1])
            state.queued.fetching = None


def _copy_of(node: Node) -> Copy:
    return Copy(node.host, node.disk if node.host is None else None)
