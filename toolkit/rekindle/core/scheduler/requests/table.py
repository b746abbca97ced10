"""The requests that have not ended: each runs, with a slot and pages, or waits.

A request in the waiting queue owns no pages; what a running one owns is in its `Lease`. One that loses its pages
(preemption) publishes them first. Later it is computed again from its tokens, the generated ones included, as far as
they are not found in the cache; so its output does not change.
"""

from collections.abc import Iterator

from rekindle.core.messages import Output, Rejected
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason
from rekindle.core.scheduler.cache.outbox import HostTierOutbox
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.requests.grammar_outbox import GrammarOutbox
from rekindle.core.scheduler.requests.groups import Group, least_loaded, requests_of
from rekindle.core.scheduler.requests.state import RequestState
from rekindle.core.scheduler.requests.waiting import WaitingQueue
from rekindle.core.scheduler.stats import Counts, SchedulerStats


class RequestTable:
    """Knows where every request is, and moves it: from the queue to a group, back, or out.

    Args:
        limits: how many groups, slots and pages there are.
        outbox: what the host tier is to be told of the groups' pages.

    Attributes:
        groups: their running sets have the requests that run.
        waiting: the others.
        counts: counters that only grow.
        exchanges: how often the weights were exchanged.
        outputs: what callers are to be told.
        grammar_outbox: what the grammars are to be told.
    """

    def __init__(self, limits: EngineLimits, outbox: HostTierOutbox):
        self._limits = limits
        self._tracked: dict[int, RequestState] = {}
        self.counts = Counts()
        self.groups = [Group(limits, outbox, number) for number in range(limits.data)]
        self.waiting = WaitingQueue(limits, self.groups, self.counts)
        self.exchanges = 0
        self.outputs: list[Output] = []
        self.grammar_outbox = GrammarOutbox()

    def __len__(self) -> int:
        return len(self._tracked)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(tuple(self._tracked.values()))

    def get(self, request_id: int) -> RequestState | None:
        """Return a request; None if it has ended."""
        return self._tracked.get(request_id)

    @property
    def running(self) -> list[RequestState]:
        """The requests that run, those of each group in the order in which they were admitted."""
        return requests_of(self.groups)

    @property
    def losses(self) -> int:
        """The number of times that the device state was lost."""
        return self.groups[0].cache.losses

    def group_of(self, state: RequestState) -> Group:
        """Return the group that computes a request, or is to compute it."""
        return self.groups[state.group]

    # Ways in, and between the queue and the groups

    def join(self, request: Request, *, started: bool = False) -> None:
        """Let a request that is new here wait for the group that would come soonest to its next token."""
        self._tracked[request.id] = state = RequestState.of(request, self._limits)
        state.started = started
        state.group = least_loaded(self.groups, state).number
        self.waiting.join(state)

    def reserve(self, state: RequestState, tokens: int) -> bool:
        """See that so many tokens of a request have pages, preempting others as long as none is to be had.

        Return False if the request has no pages now: it may have been the next to give its own back.
        """
        while (lease := state.lease) is not None:
            missing = -(-tokens // self._limits.pool.page_size) - len(lease.pages)
            if missing <= 0 or lease.reserve(missing):
                return True
            self.preempt(self.group_of(state).running.victim)
        return False

    def preempt(self, state: RequestState) -> None:
        """Take slot and pages from a request, which waits before all others from now on."""
        running = self.group_of(state).running
        running.leave(state)
        running.preempted.append(state.request.id)
        self.waiting.join(state, first=True)
        self.counts.preemptions += 1

    def preempted(self) -> tuple[int, ...]:
        """Return, once, who lost its pages; the next plan tells, even if none came of the draft that took them."""
        preempted = tuple(request_id for group in self.groups for request_id in group.running.preempted)
        for group in self.groups:
            group.running.preempted.clear()
        return preempted

    # Ends

    def hold(self, state: RequestState) -> None:
        """End a request whose prefix is computed; the prefix stays locked until it is withdrawn."""
        assert state.lease is not None
        state.publish()
        self.group_of(state).cache.hold(state.request.id, state.lease.tip)
        self.end(state, "held")

    def release(self, request_id: int) -> bool:
        """Unlock a prefix that is held under the id of its request; return False if there is none."""
        holders = [group.cache for group in self.groups if request_id in group.cache.held]
        if holders:
            holders[0].release(request_id)
        return bool(holders)

    def reject(self, state: RequestState, error: Exception) -> Rejected:
        """End a request with an error; return what its caller is to be told."""
        self.end(state, "cancelled")
        return Rejected(state.request.id, error)

    def end(self, state: RequestState, end: EndReason) -> None:
        """End a request, and tell its caller why."""
        self.leave(state)
        self.outputs.append(Output(state.request, (), end))

    def leave(self, state: RequestState) -> None:
        """Forget a request whose caller is told that it has ended."""
        del self._tracked[state.request.id]
        self.counts.ended += 1
        if state.masking.constrained:
            self.grammar_outbox.ended.append(state.request.id)
        if state.lease is not None:
            self.group_of(state).running.leave(state)
        else:
            self.waiting.leave(state)

    # What is there

    def check(self) -> None:
        """Assert the invariants: every page and slot has exactly one holder, every request one place."""
        for group in self.groups:
            group.running.check()
            group.cache.check([page for state in group.running if state.lease for page in state.lease.own])
            waiting = [state for state in self.waiting if state.group == group.number]
            assert group.owed == sum(state.queued.owed for state in waiting), "a group owes what nobody waits for"
        placed = [*self.running, *self.waiting]
        assert len(placed) == len(self._tracked), "a request is in two places, or in none"
        assert set(placed) == set(self._tracked.values()), "a request is nowhere"
        assert all(state.lease is None for state in self.waiting), "a waiting request has pages"

    def stats(self) -> SchedulerStats:
        """Return a snapshot of all counters."""
        trees = [group.cache.tree for group in self.groups]
        return SchedulerStats(
            waiting=len(self.waiting),
            running=sum(len(group.running) for group in self.groups),
            pages=(self._limits.pool.num_pages - 1) * len(self.groups),
            free_pages=sum(group.cache.available for group in self.groups),
            cached_pages=sum(tree.device_pages for tree in trees),
            evictable_pages=sum(tree.evictable for tree in trees),
            device_losses=self.losses,
            host_pages=sum(tree.host_pages for tree in trees),
            disk_pages=max(tree.disk_pages for tree in trees),
            **vars(self.counts),
        )
