"""Table of the requests in progress: running in a group, with a slot and pages, or queued.

A queued request owns no pages; a running one owns its `Lease`. A preempted request publishes its pages first. Later its
tokens, including generated ones, are computed again unless cached, so its output does not change.
"""

from collections.abc import Iterator, Mapping, Sequence

from rekindle.core.messages import Advance, Message, Output, Rejected
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason
from rekindle.core.scheduler.cache.outbox import HostTierOutbox
from rekindle.core.scheduler.gallery import Gallery
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.requests.drafter import Drafter
from rekindle.core.scheduler.requests.groups import Group, least_loaded, requests_of
from rekindle.core.scheduler.requests.state import RequestState
from rekindle.core.scheduler.requests.waiting import WaitingQueue
from rekindle.core.scheduler.stats import Counts, SchedulerStats


class GrammarOutbox:
    """News of constrained requests for the grammars actor, collected while the scheduler handles a message.

    Attributes:
        tokens: requests with a new token, each with the token.
        ended: the ids of ended requests.
        late: the ids of requests without an answer in time; the scheduler asks for it again.
    """

    def __init__(self) -> None:
        self.tokens: list[tuple[Request, int]] = []
        self.ended: list[int] = []
        self.late: list[int] = []

    def drain(self, running: Sequence[RequestState], drafts: Mapping[int, tuple[int, ...]]) -> list[Message]:
        """Remove the news and return it as one `Advance`, with the numbers of running requests; [] without news.

        Args:
            running: the running requests.
            drafts: the drafts of requests with new tokens.
        """
        if not self.tokens and not self.ended and not self.late:
            return []
        free = sum(not state.masking.constrained for state in running)
        message = Advance(tuple(self.tokens), tuple(self.ended), len(running), free, tuple(self.late), drafts)
        self.tokens, self.ended, self.late = [], [], []
        return [message]


class RequestTable:
    """All requests in progress, by id. It moves them between the waiting queue and the groups, and ends them.

    The `Scheduler` owns the table and sends its collected messages; the `Planner` admits and preempts through it.

    Args:
        limits: the numbers of groups, slots and pages.
        outbox: receives the groups' messages to the host tier.

    Attributes:
        get: function from an id to the request in progress, or None; stored, as a tick calls it for each token.
        groups: the groups, with the running requests.
        waiting: the queued requests.
        counts: counters without a current state.
        drafter: chooses and measures drafts.
        gallery: the images on the device.
        exchanges: the number of weight exchanges, and the version of the weights in use.
        outputs: outputs to send to the detokenizer.
        grammar_outbox: news for the grammars actor.
    """

    def __init__(self, limits: EngineLimits, outbox: HostTierOutbox):
        self._limits = limits
        self._states: dict[int, RequestState] = {}
        self.get = self._states.get
        self.counts = Counts()
        self.drafter = Drafter(limits, self.counts)
        self.groups = [Group(limits, outbox, number) for number in range(limits.data)]
        self.waiting = WaitingQueue(limits, self.groups, self.counts)
        self.gallery = Gallery(limits.picture_rows, self.counts, keeps=limits.pool.snapshots)
        self.exchanges = 0
        self.outputs: list[Output] = []
        self.grammar_outbox = GrammarOutbox()

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(tuple(self._states.values()))

    @property
    def running(self) -> list[RequestState]:
        """The running requests, those of each group in the order of admission."""
        return requests_of(self.groups)

    @property
    def losses(self) -> int:
        """The number of losses of the device state."""
        return self.groups[0].cache.losses

    def group_of(self, state: RequestState) -> Group:
        """Return the group of a request, running or queued."""
        return self.groups[state.group]

    # Arrivals, and moves between the queue and the groups

    def join(self, request: Request, *, started: bool = False) -> None:
        """Queue a new request for the least loaded group; `started` if it began in another lane."""
        self._states[request.id] = state = RequestState.of(request, self._limits)
        state.started = started
        self.drafter.join(state)
        state.group = least_loaded(self.groups, state).number
        self.waiting.join(state)

    def reserve(self, state: RequestState, tokens: int) -> bool:
        """Reserve pages for the first `tokens` tokens of a request, preempting others as needed.

        Return False if the request itself was preempted, as the next victim.
        """
        while (lease := state.lease) is not None:
            missing = -(-tokens // self._limits.pool.page_size) - len(lease.pages)
            if missing <= 0 or lease.reserve(missing):
                return True
            self.preempt(self.group_of(state).running.victim)
        return False

    def preempt(self, state: RequestState) -> None:
        """Take slot and pages from a request, and queue it before all others of its priority."""
        running = self.group_of(state).running
        running.leave(state)
        running.preempted.append(state.request.id)
        self.waiting.join(state, first=True)
        self.counts.preemptions += 1

    def drain_preempted(self) -> tuple[int, ...]:
        """Remove and return the ids of requests preempted since the last plan."""
        preempted = tuple(request_id for group in self.groups for request_id in group.running.preempted)
        for group in self.groups:
            group.running.preempted.clear()
        return preempted

    # Ends

    def hold(self, state: RequestState) -> None:
        """End a request after computing its prefix to hold; the prefix stays locked until `release`."""
        assert state.lease is not None
        state.publish()
        self.group_of(state).cache.hold(state.request.id, state.lease.tip)
        self.end(state, "held")

    def release(self, request_id: int) -> bool:
        """Release the held prefix of a request; return False if there is none."""
        holders = [group.cache for group in self.groups if request_id in group.cache.held_nodes]
        if holders:
            holders[0].release(request_id)
        return bool(holders)

    def reject(self, state: RequestState, error: Exception) -> Rejected:
        """End a request with an error; return the message to its caller."""
        self.end(state, "cancelled")
        return Rejected(state.request.id, error)

    def end(self, state: RequestState, end: EndReason) -> None:
        """End a request, and output its end reason."""
        self.leave(state)
        self.outputs.append(Output(state.request, (), end))

    def leave(self, state: RequestState) -> None:
        """Remove an ended request; the caller outputs its end."""
        del self._states[state.request.id]
        self.counts.ended += 1
        self.drafter.leave(state)
        if state.request.pictures:
            self.gallery.leave(state.request.id)
        if state.masking.constrained:
            self.grammar_outbox.ended.append(state.request.id)
        if state.lease is not None:
            self.group_of(state).running.leave(state)
        else:
            self.waiting.leave(state)

    # Inspection

    def check(self) -> None:
        """Assert the invariants: each page and slot has exactly one holder, each request exactly one place."""
        self.gallery.check()
        for group in self.groups:
            group.running.check()
            pages = [page for state in group.running if state.lease for page in state.lease.own_pages]
            copied = [entry for state in group.running if state.keeping for _, entry in state.keeping.copies]
            group.cache.check(pages, copied)
            waiting = [state for state in self.waiting if state.group == group.number]
            uncached = sum(state.queued.uncached for state in waiting)
            assert group.queued_tokens == uncached, "queued tokens are miscounted"
        states = [*self.running, *self.waiting]
        assert len(states) == len(self._states), "a request is in two places, or in none"
        assert set(states) == set(self._states.values()), "a request is nowhere"
        assert all(state.lease is None for state in self.waiting), "a waiting request has pages"

    def stats(self) -> SchedulerStats:
        """Return a snapshot of all counters."""
        trees = [group.cache.tree for group in self.groups]
        return SchedulerStats(
            waiting=len(self.waiting),
            running=sum(len(group.running) for group in self.groups),
            pages=(self._limits.pool.num_pages - 1) * len(self.groups),
            free_pages=sum(group.cache.available for group in self.groups),
            cached_pages=sum(tree.ledger.device_pages for tree in trees),
            evictable_pages=sum(tree.ledger.evictable for tree in trees),
            device_losses=self.losses,
            host_pages=sum(tree.ledger.host_pages for tree in trees),
            host_states=sum(tree.ledger.host_states for tree in trees),
            disk_pages=max(tree.records.pages for tree in trees),
            disk_states=max(tree.records.states for tree in trees),
            **vars(self.counts),
        )
