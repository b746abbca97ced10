"""Continuous batching: which tokens are computed in the next tick. Pure host logic, without a clock, a device or IO.

A request in the waiting queue owns no pages; what a running one owns is in its lease (`prefix_cache`). One that loses
its pages (preemption) publishes them first. Later it is computed again from its tokens, the generated ones included, as
far as they are not found in the cache; so its output does not change.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from rekindle.buckets import QUERY_BLOCK
from rekindle.errors import PromptTooLong, WeightsChanged
from rekindle.messages import (
    Admit,
    Drop,
    Fetched,
    KeepWeights,
    Message,
    NewWeights,
    Offload,
    Offloaded,
    Output,
    Rejected,
    Row,
    SaveCache,
    Settled,
    Started,
    Stopped,
    UseWeights,
    Withdraw,
    Written,
)
from rekindle.page import StoredPage
from rekindle.results import EndReason
from rekindle.scheduler.archiving import Archiving
from rekindle.scheduler.cache.nodes import Node
from rekindle.scheduler.cache.tree import PrefixTree
from rekindle.scheduler.draft import Draft
from rekindle.scheduler.leases import NextPage, PrefixCache
from rekindle.scheduler.limits import Limits
from rekindle.scheduler.stats import Counts, SchedulerStats
from rekindle.scheduler.tracked import Tracked
from rekindle.scheduler.waiting import WaitingQueue

T = TypeVar("T")


class Scheduler:
    """The scheduling actor: waiting queue, running set, pages and slots.

    Attributes:
        cache: the pages and the prefix tree; the scheduler's own, unless it is asked through `look`.
        stats: a snapshot, replaced after each message; safe to read from any thread.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._free_slots = list(range(limits.max_running))[::-1]
        self._running: list[Tracked] = []
        self._preempted: list[int] = []
        self._tracked: dict[int, Tracked] = {}
        self._held: dict[int, Node] = {}
        self._counts = Counts()
        self._in_flight = 0
        self._new_weights: deque[NewWeights] = deque()
        self._lock = threading.Lock()
        self.cache = PrefixCache(limits)
        self._waiting = WaitingQueue(limits, self.cache)
        self._archiving = Archiving(self.cache, enabled=limits.snapshots)
        self.stats = self._snapshot()

    def handle(self, message: Message) -> list[Message]:
        """Take in a message and plan as far ahead as the depth allows."""
        with self._lock:
            return self._handle(message)

    def look(self, at: Callable[[PrefixTree], T]) -> T:
        """What `at` says of the prefix tree, between two messages. Any thread may ask; the engine waits meanwhile."""
        with self._lock:
            return at(self.cache.tree)

    def _handle(self, message: Message) -> list[Message]:
        taken_in = list(self._take_in(message))
        changed = list(self._change_weights())
        # Plans before what callers are told, so that the device does not wait for them.
        said = [*changed, *self._plans(), *taken_in, *self._unblock()]
        self.cache.offload_ahead()
        said += self._archiving.go_on(self._counts.ticks, idle=not self._tracked and not self._in_flight)
        said += self._offloads()
        if self.cache.dropped:
            said.append(Drop(tuple(self.cache.dropped)))
            self.cache.dropped = []
        self.stats = self._snapshot()
        return said

    def restore(self, pages: Iterable[StoredPage]) -> None:
        """Know of the pages that an earlier session wrote to disk."""
        with self._lock:
            self.cache.restore(pages)
            self.stats = self._snapshot()

    def check(self) -> None:
        """Assert the invariants: every page and slot has exactly one holder, every request one place."""
        leases = [tracked.lease for tracked in self._running if tracked.lease is not None]
        self.cache.check(leases)
        slots = [tracked.slot for tracked in self._running if tracked.slot is not None]
        assert sorted([*slots, *self._free_slots]) == list(range(self._limits.max_running)), "slots do not add up"
        placed = [*self._running, *self._waiting]
        assert len(placed) == len(self._tracked), "a request is in two places, or in none"
        assert {id(t) for t in placed} == {id(t) for t in self._tracked.values()}
        assert all(t.lease is None and t.slot is None for t in placed[len(self._running) :]), "a waiter holds pages"
        for tracked, lease in zip(self._running, leases, strict=True):
            assert tracked.computed <= len(lease.pages) * self._limits.page_size, "computed past its pages"
            assert tracked.computed <= len(tracked.tokens) + tracked.pending, "computed past its tokens"
            assert lease.published <= tracked.computed + QUERY_BLOCK, "published before it was computed"

    def _take_in(self, message: Message) -> Iterator[Message]:
        match message:
            case Admit(request):
                self._tracked[request.id] = Tracked.of(request, self._limits.page_size)
                self._waiting.join(self._tracked[request.id])
            case Withdraw(request_id):
                if request_id in self._held:
                    self.cache.tree.unlock(self._held.pop(request_id))
                elif request_id in self._tracked:
                    yield self._end(self._tracked[request_id], "cancelled")
            case Stopped(request_id, kept):
                if request_id in self._tracked:
                    yield self._stop(self._tracked[request_id], kept)
            case Settled():
                self._in_flight -= 1
                yield from self._settle(message)
            case NewWeights():
                self._new_weights.append(message)
                if message.fail:
                    yield from self._fail_running()
            case KeepWeights(ticket):
                self._new_weights = deque(new for new in self._new_weights if new.ticket != ticket)
            case Offloaded():
                self.cache.offloaded(message)
            case Written():
                self._archiving.written(message)
            case SaveCache(ticket):
                self._archiving.ask(ticket)
            case Fetched():
                self._waiting.fetched(message)
            case _:
                raise TypeError(
                    "the scheduler takes Admit, Withdraw, Stopped, NewWeights, KeepWeights, Settled, Offloaded, "
                    f"Fetched, Written and SaveCache, got {message!r}"
                )

    # Planning

    def _plans(self) -> Iterator[Message]:
        while self._in_flight < self._limits.depth:
            draft, preemptions = Draft(self._limits.max_prefill_tokens), self._counts.preemptions
            if self._limits.combined:
                self._plan_rows(draft)
            self._plan_chunks(draft)
            if not self._limits.combined and not draft.chunks:
                self._plan_rows(draft)
            if not draft.empty:
                self._in_flight += 1
                self._counts.ticks += 1
                yield from self._offloads()
                # Pages may be given back though no plan comes of it: the next one tells.
                preempted, self._preempted = tuple(self._preempted), []
                yield draft.plan(self._counts.ticks, preempted)
            yield from draft.said
            self._publish(draft)
            # Who is held or fetched has left the queue: the next draft looks at others.
            if draft.empty and not draft.said and self._counts.preemptions == preemptions:
                return

    def _offloads(self) -> list[Offload]:
        offloads, self.cache.offloads = self.cache.offloads, []
        return offloads

    def _plan_rows(self, draft: Draft) -> None:
        """A decode row for each request that can have one, rows of similar context side by side."""
        planned: list[Tracked] = []
        for tracked in list(self._running):
            if tracked.slot is not None and tracked.wants_token and self._reserve_next(tracked):
                planned.append(tracked)
        for tracked in sorted(planned, key=lambda t: t.computed):
            assert tracked.slot is not None, "only those behind it in the running set were preempted since"
            assert tracked.lease is not None
            page = tracked.lease.pages[tracked.computed // self._limits.page_size]
            draft.rows.append(Row(tracked.request.id, tracked.slot, page, tracked.request.params.logprobs))
            tracked.computed += 1
            tracked.pending += 1

    def _reserve_next(self, tracked: Tracked) -> bool:
        """See that the next position has a page, taking pages from the last of the running set if none is to be had."""
        assert tracked.lease is not None
        if tracked.computed < len(tracked.lease.pages) * self._limits.page_size:
            return True
        while not self.cache.reserve(tracked.lease, 1):
            victim = self._running[-1]
            self._preempt(victim)
            if victim is tracked:
                return False
        return True

    def _plan_chunks(self, draft: Draft) -> None:
        """Chunks of prompts, those that are already under way first, within the token budget."""
        coming = {self._page_after(tracked) for tracked in self._running if tracked.in_prefill}
        for tracked in self._running:
            if tracked.in_prefill and draft.budget:
                self._add_chunk(draft, tracked)
        if not draft.budget or not self._free_slots:
            return
        # While new weights are to come, what has not started waits for them.
        for tracked, nodes in self._waiting.ready(coming, draft.said, only_started=bool(self._new_weights)):
            if not draft.budget or not self._free_slots or not self._admit(tracked, nodes, draft):
                return
            if tracked.in_prefill:
                coming.add(self._page_after(tracked))
                self._add_chunk(draft, tracked)
            else:
                draft.said.append(self._hold(tracked))

    def _page_after(self, tracked: Tracked) -> NextPage | None:
        assert tracked.lease is not None
        return self.cache.page_after(tracked.lease, tracked.tokens[: tracked.prefill_end])

    def _admit(self, tracked: Tracked, nodes: Sequence[Node], draft: Draft) -> bool:
        """Give it a slot and pages for all its tokens, the cached ones first; False if there is no room.

        A page is left for each running request, or its admission would soon preempt it.
        """
        request, size = tracked.request, self._limits.page_size
        warm = [node for node in nodes if node.page is not None]
        lease = self.cache.lease(request.namespace, warm)
        needed = -(-len(tracked.tokens) // size) - len(warm)
        if needed + len(self._running) > self.cache.available or not self.cache.reserve(lease, needed):
            self.cache.release(lease)
            return False
        onload = self._waiting.onload(tracked, nodes[len(warm) :], lease)
        if onload is not None:
            draft.onloads.append(onload)
        tracked.lease, tracked.slot = lease, self._free_slots.pop()
        tracked.begin(lease.published)
        cached = tracked.cached(onload, size)
        self._waiting.leave(tracked)
        self._running.append(tracked)
        if not tracked.started:
            self.cache.tree.hit(lease.tip)
        self._archiving.use(lease.tip)
        self._counts.admitted(tracked.prefill_end, cached, again=tracked.started)
        if not tracked.started:
            tracked.started = True
            draft.said.append(Started(request.id, len(request.prompt), cached))
        return True

    def _add_chunk(self, draft: Draft, tracked: Tracked) -> None:
        chunk = tracked.next_chunk(min(self._limits.prefill_chunk, draft.budget), self._limits.page_size)
        if tracked.request.hold and not tracked.in_prefill:
            tracked.held_at = self._counts.ticks + 1
        draft.add(chunk, tracked)

    def _publish(self, draft: Draft) -> None:
        """After the plan, so that a page is found only by ticks that come after the one that computes it."""
        for tracked in draft.computing:
            if tracked.lease is not None:
                self.cache.publish(tracked.lease, tracked.tokens, tracked.computed)

    def _unblock(self) -> Iterator[Message]:
        """With nothing under way, what holds pages without running has to make room for the first who waits."""
        while not self._in_flight and not self._running:
            first = self._waiting.blocked(only_started=bool(self._new_weights))
            if first is None:
                return
            if not self._waiting.let_go_of_staged(first):
                assert self._held, "a request has no room though nobody holds any"
                needed = -(-len(first.tokens) // self._limits.page_size)
                assert needed > self.cache.available, "turned away though it fits"
                room = self.cache.available * self._limits.page_size
                yield Rejected(
                    first.request.id,
                    PromptTooLong(
                        f"the request needs pages for {len(first.tokens)} tokens, and prefixes that are held leave "
                        f"{room}; release one, or raise num_pages in open()"
                    ),
                )
                yield self._end(first, "cancelled")
            yield from self._change_weights()
            yield from self._plans()

    # Ends

    def _settle(self, settled: Settled) -> Iterator[Output]:
        """Take in what one tick gave; what is of requests that ended meanwhile is surplus and dropped."""
        for computed in [t for t in self._running if t.held_at == settled.tick]:
            yield self._hold(computed)
        for request_id, scores in settled.prompt_logprobs.items():
            if request_id in self._tracked:
                yield Output(self._tracked[request_id].request, (), None, prompt_logprobs=scores)
        for request_id, token in settled.tokens:
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            tracked.pending -= 1
            tracked.tokens.append(token)
            end: EndReason | None = None
            if token in tracked.request.end_ids:
                end = "stop"
            elif len(tracked.tokens) >= tracked.final_length:
                end = "length"
            logprob = settled.logprobs.get(request_id)
            self._counts.generated_tokens += 1
            if end is not None:
                self._leave(tracked)
            yield Output(tracked.request, (token,), end, (logprob,) if logprob else ())

    def _end(self, tracked: Tracked, end: EndReason) -> Output:
        self._leave(tracked)
        return Output(tracked.request, (), end)

    def _stop(self, tracked: Tracked, kept: int) -> Output:
        """A stop string was found in the text; tokens settled since it was complete are surplus."""
        length = len(tracked.request.prompt) + kept
        self._counts.generated_tokens -= len(tracked.tokens) - length
        del tracked.tokens[length:]
        return self._end(tracked, "stop")

    def _hold(self, tracked: Tracked) -> Output:
        """A prefix is computed: it stays locked until it is withdrawn."""
        lease = tracked.lease
        assert lease is not None
        self.cache.publish(lease, tracked.tokens, tracked.computed)
        self.cache.tree.lock(lease.tip)
        self._held[tracked.request.id] = lease.tip
        return self._end(tracked, "held")

    def _leave(self, tracked: Tracked) -> None:
        del self._tracked[tracked.request.id]
        self._counts.ended += 1
        if tracked.slot is not None:
            self._give_back(tracked)
        else:
            self._waiting.leave(tracked)

    def _preempt(self, tracked: Tracked) -> None:
        self._give_back(tracked)
        tracked.computed = tracked.prefill_end = 0
        tracked.held_at = None
        self._waiting.join(tracked, first=True)
        self._preempted.append(tracked.request.id)
        self._counts.preemptions += 1

    def _give_back(self, tracked: Tracked) -> None:
        assert tracked.slot is not None
        assert tracked.lease is not None
        self._running.remove(tracked)
        self._free_slots.append(tracked.slot)
        self.cache.publish(tracked.lease, tracked.tokens, min(tracked.computed, len(tracked.tokens)))
        self.cache.release(tracked.lease)
        tracked.slot = tracked.lease = None

    # New weights

    def _fail_running(self) -> Iterator[Message]:
        for tracked in [t for t in self._tracked.values() if t.started]:
            yield Rejected(
                tracked.request.id, WeightsChanged("the request was ended by update_weights; submit it again")
            )
            yield self._end(tracked, "cancelled")

    def _change_weights(self) -> Iterator[Message]:
        """Once no request is left that started on the old weights: nothing that they computed is found any more."""
        while self._new_weights and not any(tracked.started for tracked in self._tracked.values()):
            new = self._new_weights.popleft()
            self._waiting.forget_cache()
            for node in self._held.values():
                self.cache.tree.unlock(node)
            self._held.clear()
            self.cache.forget()
            self._archiving.stop()
            yield UseWeights(new.ticket, new.weights)

    # Statistics

    def _snapshot(self) -> SchedulerStats:
        tree = self.cache.tree
        return SchedulerStats(
            waiting=len(self._waiting),
            running=len(self._running),
            pages=self._limits.num_pages - 1,
            free_pages=self.cache.available,
            cached_pages=tree.device_pages,
            evictable_pages=tree.evictable,
            host_pages=tree.host_pages,
            disk_pages=tree.disk_pages,
            **vars(self._counts),
        )
