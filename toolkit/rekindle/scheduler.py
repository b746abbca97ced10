"""Continuous batching: which tokens are computed in the next tick. Pure host logic, without a clock, a device or IO.

A request in the waiting queue owns no pages; what a running one owns is in its lease (`prefix_cache`). One that loses
its pages (preemption) publishes them first. Later it is computed again from its tokens, the generated ones included, as
far as they are not found in the cache; so its output does not change.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from rekindle.buckets import QUERY_BLOCK
from rekindle.config import Limits
from rekindle.errors import PromptTooLong, WeightsChanged
from rekindle.messages import (
    Admit,
    Chunk,
    Drop,
    Fetch,
    Fetched,
    Message,
    NewWeights,
    Onload,
    Output,
    Plan,
    Rejected,
    Row,
    Save,
    Saved,
    Scoring,
    Settled,
    Started,
    Stopped,
    UseWeights,
    Withdraw,
)
from rekindle.metrics import SchedulerStats
from rekindle.prefix_cache import Lease, NextPage, PrefixCache
from rekindle.prefix_nodes import Node
from rekindle.prefix_tree import PrefixTree
from rekindle.request import Request
from rekindle.results import EndReason

T = TypeVar("T")
CONSIDERED = 64
"""How many of the waiting requests are looked at for one tick."""


@dataclass(slots=True, eq=False)
class Fetching:
    """What a waiting request gets from the host tier.

    Attributes:
        nodes: whose copies; the last one is locked.
        staged: the copy of each on the device, once they are there.
    """

    nodes: list[Node]
    staged: Sequence[Any] = ()


@dataclass(slots=True, eq=False)
class Tracked:
    """One request as the scheduler sees it.

    Attributes:
        tokens: the prompt and every settled token.
        computed: positions whose keys and values are written by dispatched ticks, or were found.
        prefill_end: how many tokens were known when it last got its pages; up to there it is computed in chunks.
        pending: sampled tokens that are dispatched and not settled.
        slot: its row of the decode batch while it runs.
        lease: its pages while it runs.
        fetching: what it waits for from the host tier, or has from there, while it waits.
        fetchable: whether the host tier is to be asked; not again after it had no room.
        started: whether it ever left the waiting queue.
        scored: tokens of the prompt whose log-probabilities, if wanted, are settled or dispatched; the first has none.
        held_at: the tick that computes the last of a prefix that is to be held.
    """

    request: Request
    tokens: list[int]
    computed: int = 0
    prefill_end: int = 0
    pending: int = 0
    slot: int | None = None
    lease: Lease | None = None
    fetching: Fetching | None = None
    fetchable: bool = True
    started: bool = False
    scored: int = 1
    held_at: int | None = None

    @property
    def final_length(self) -> int:
        """The length at which it ends at the latest."""
        if self.request.hold:
            return len(self.tokens)
        return min(len(self.request.prompt) + self.request.params.max_tokens, self.request.capacity)

    @property
    def in_prefill(self) -> bool:
        """Whether known tokens are left to compute before the next one is sampled."""
        return self.computed < self.prefill_end

    @property
    def wants_token(self) -> bool:
        """Whether a decode row is to be planned for it."""
        return not self.in_prefill and self.computed + 1 < self.final_length

    @property
    def reusable(self) -> int:
        """How many of its tokens may be found instead of computed: the last one gives the logits of the next."""
        if self.request.hold:
            return len(self.tokens)
        return 0 if self.request.params.prompt_logprobs is not None else len(self.tokens) - 1


class Scheduler:
    """The scheduling actor: waiting queue, running set, pages and slots.

    Attributes:
        cache: the pages and the prefix tree; the scheduler's own, unless it is asked through `look`.
        stats: a snapshot, replaced after each message; safe to read from any thread.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._free_slots = list(range(limits.max_running))[::-1]
        self._waiting: deque[Tracked] = deque()
        self._fetching: dict[int, Tracked] = {}
        self._running: list[Tracked] = []
        self._tracked: dict[int, Tracked] = {}
        self._held: dict[int, Node] = {}
        self._counts = Counts()
        self._in_flight = 0
        self._new_weights: deque[NewWeights] = deque()
        self._lock = threading.Lock()
        self.cache = PrefixCache(limits)
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
        said = [
            *changed,
            *self._plans(),
            *taken_in,
        ]  # plans first: the device should not wait for what callers are told
        said += self._unblock()
        self.cache.save_ahead()
        said += self._saves()
        if self.cache.dropped:
            said.append(Drop(tuple(self.cache.dropped)))
            self.cache.dropped = []
        self.stats = self._snapshot()
        return said

    def check(self) -> None:
        """Assert the invariants: every page and slot has exactly one holder, every request one place."""
        leases = [tracked.lease for tracked in self._running if tracked.lease is not None]
        self.cache.check(leases)
        slots = [tracked.slot for tracked in self._running if tracked.slot is not None]
        assert sorted([*slots, *self._free_slots]) == list(range(self._limits.max_running)), "slots do not add up"
        placed = [*self._running, *self._waiting, *self._fetching.values()]
        assert len(placed) == len(self._tracked), "a request is in two places, or in none"
        assert {id(t) for t in placed} == {id(t) for t in self._tracked.values()}
        assert all(t.lease is None and t.slot is None for t in placed[len(self._running) :]), "a waiter holds pages"
        for tracked, lease in zip(self._running, leases, strict=True):
            assert tracked.computed <= len(lease.pages) * self._limits.page_size, "computed past its pages"
            assert tracked.computed <= len(tracked.tokens) + tracked.pending, "computed past its tokens"
            assert lease.published <= tracked.computed, "published before it was computed"

    def _take_in(self, message: Message) -> Iterator[Message]:
        match message:
            case Admit(request):
                whole = len(request.prompt) // self._limits.page_size * self._limits.page_size
                tracked = Tracked(request, list(request.prompt[:whole] if request.hold else request.prompt))
                self._tracked[request.id] = tracked
                self._waiting.append(tracked)
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
            case Saved():
                self.cache.saved(message)
            case Fetched():
                self._fetched(message)
            case _:
                taken = "Admit, Withdraw, Stopped, NewWeights, Settled, Saved and Fetched"
                raise TypeError(f"the scheduler takes {taken}, got {message!r}")

    # Planning

    def _plans(self) -> Iterator[Message]:
        while self._in_flight < self._limits.depth:
            draft, preempted = Draft(self._limits.max_prefill_tokens), self._counts.preemptions
            rows: tuple[Row, ...] = ()
            if self._limits.combined:
                rows = self._plan_rows()
            self._plan_chunks(draft)
            if not self._limits.combined and not draft.chunks:
                rows = self._plan_rows()
            planned = bool(rows or draft.chunks or draft.onloads)
            if planned:
                self._in_flight += 1
                self._counts.ticks += 1
                yield from self._saves()
                yield Plan(self._counts.ticks, tuple(draft.chunks), rows, tuple(draft.onloads))
            yield from draft.said
            self._publish(draft)
            if not planned and self._counts.preemptions == preempted:
                return

    def _saves(self) -> list[Save]:
        saves, self.cache.saves = self.cache.saves, []
        return saves

    def _plan_rows(self) -> tuple[Row, ...]:
        """A decode row for each request that can have one, rows of similar context side by side."""
        planned: list[Tracked] = []
        for tracked in list(self._running):
            if tracked.slot is not None and tracked.wants_token and self._reserve_next(tracked):
                planned.append(tracked)
        rows = []
        for tracked in sorted(planned, key=lambda t: t.computed):
            assert tracked.slot is not None, "only those behind it in the running set were preempted since"
            assert tracked.lease is not None
            page = tracked.lease.pages[tracked.computed // self._limits.page_size]
            rows.append(Row(tracked.request.id, tracked.slot, page, tracked.request.params.logprobs))
            tracked.computed += 1
            tracked.pending += 1
        return tuple(rows)

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

    def _plan_chunks(self, draft: "Draft") -> None:
        """Chunks of prompts, those that are already under way first, within the token budget."""
        coming = {self._page_after(tracked) for tracked in self._running if tracked.in_prefill}
        for tracked in self._running:
            if tracked.in_prefill and draft.budget:
                self._add_chunk(draft, tracked)
        for tracked in self._candidates():
            if not draft.budget or not self._free_slots:
                return
            if tracked.pending:
                return  # it lost its pages, and a token of it is still on its way
            nodes = self.cache.find(tracked.request.namespace, tracked.tokens[: tracked.reusable])
            if self._is_coming(tracked, nodes, coming) or self._begins_fetch(tracked, nodes, draft):
                continue
            if not self._admit(tracked, nodes, draft):
                return
            if tracked.in_prefill:
                self._add_chunk(draft, tracked)
                coming.add(self._page_after(tracked))
            else:
                draft.said.append(self._hold(tracked))

    def _candidates(self) -> list[Tracked]:
        first = list(islice(self._waiting, CONSIDERED))
        if self._new_weights:  # what has not started waits for them
            first = [tracked for tracked in first if tracked.started]
        if self._limits.policy == "longest-prefix" and self._free_slots:
            found = {
                id(t): len(self.cache.find(t.request.namespace, t.tokens[: t.reusable])) for t in first if not t.pending
            }
            first.sort(key=lambda t: -found.get(id(t), 0))
        return first

    def _is_coming(self, tracked: Tracked, nodes: Sequence[Node], coming: set[NextPage | None]) -> bool:
        """Whether another request is computing, or fetching, the page that this one would begin with."""
        known = tracked.tokens[: tracked.reusable]
        page = self.cache.next_page(tracked.request.namespace, nodes, known)
        if page is not None and page in coming:
            return True
        colder = next((node for node in nodes if node.page is None), None)
        others = [t.fetching for t in (*self._fetching.values(), *self._waiting) if t.fetching and t is not tracked]
        return colder is not None and tracked.fetching is None and any(colder in other.nodes for other in others)

    def _page_after(self, tracked: Tracked) -> NextPage | None:
        assert tracked.lease is not None
        return self.cache.page_after(tracked.lease, tracked.tokens[: tracked.prefill_end])

    def _begins_fetch(self, tracked: Tracked, nodes: Sequence[Node], draft: "Draft") -> bool:
        """Set a request aside whose prefix goes on in the host tier, until it is staged on the device."""
        colder = [node for node in nodes if node.page is None]
        if not colder or tracked.fetching is not None or not tracked.fetchable:
            return False
        if any(self.cache.is_on_its_way(node) for node in colder):
            return True  # it waits for its copy as for its pages
        self.cache.tree.lock(colder[-1])
        tracked.fetching = Fetching(colder)
        self._waiting.remove(tracked)
        self._fetching[tracked.request.id] = tracked
        entries = tuple(node.host for node in colder if node.host is not None)
        draft.said.append(Fetch(tracked.request.id, entries))
        return True

    def _fetched(self, message: Fetched) -> None:
        tracked = self._fetching.pop(message.request_id, None)
        if tracked is None:
            return  # cancelled meanwhile
        assert tracked.fetching is not None
        self._waiting.appendleft(tracked)
        if message.staged is not None:
            tracked.fetching.staged = message.staged
        else:
            nodes, tracked.fetchable = tracked.fetching.nodes, bool(message.bad)
            self._let_go(tracked)
            self.cache.unreadable(node for node in nodes if node.host in message.bad)

    def _let_go(self, tracked: Tracked) -> None:
        if tracked.fetching is not None:
            self.cache.tree.unlock(tracked.fetching.nodes[-1])
            tracked.fetching = None

    def _admit(self, tracked: Tracked, nodes: Sequence[Node], draft: "Draft") -> bool:
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
        onloaded = self._onload(tracked, nodes[len(warm) :], lease, draft)
        self._waiting.remove(tracked)
        self._running.append(tracked)
        tracked.lease, tracked.slot = lease, self._free_slots.pop()
        tracked.computed, tracked.prefill_end = lease.published, len(tracked.tokens)
        self._count_admission(tracked, onloaded * size)
        if not tracked.started:
            tracked.started = True
            draft.said.append(Started(request.id, len(request.prompt), tracked.computed))
        return True

    def _onload(self, tracked: Tracked, colder: Sequence[Node], lease: Lease, draft: "Draft") -> int:
        """Have what was staged for it written to its pages; how many nodes that gives it."""
        if tracked.fetching is None:
            return 0
        staged = tracked.fetching
        usable = [node for node in colder if node in staged.nodes]
        if usable:
            copies = dict(zip(map(id, staged.nodes), staged.staged, strict=True))
            pages = tuple(self.cache.onload(lease, usable))
            draft.onloads.append(Onload(tuple(copies[id(node)] for node in usable), pages))
        self._let_go(tracked)
        return len(usable)

    def _add_chunk(self, draft: "Draft", tracked: Tracked) -> None:
        chunk = self._chunk(tracked, draft.budget)
        if tracked.request.hold and not tracked.in_prefill:
            tracked.held_at = self._counts.ticks + 1
        draft.budget -= -(-len(chunk.tokens) // QUERY_BLOCK) * QUERY_BLOCK
        draft.chunks.append(chunk)
        draft.computing.append(tracked)

    def _chunk(self, tracked: Tracked, budget: int) -> Chunk:
        request, start, left = tracked.request, tracked.computed, tracked.prefill_end - tracked.computed
        size = min(left, self._limits.prefill_chunk, budget)
        last = size == left and not request.hold
        assert tracked.slot is not None
        assert tracked.lease is not None
        tracked.computed += size
        tracked.pending += last
        pages = tracked.lease.pages
        return Chunk(
            request_id=request.id,
            slot=tracked.slot,
            start=start,
            tokens=tuple(tracked.tokens[start : start + size]),
            pages=tuple(pages[at // self._limits.page_size] for at in range(start, start + size, QUERY_BLOCK)),
            table=tuple(pages),
            completes=request if last else None,
            generated=tuple(tracked.tokens[len(request.prompt) :]) if last else (),
            scoring=_scoring(tracked, start, start + size),
        )

    def _publish(self, draft: "Draft") -> None:
        """After the plan, so that a page is found only by ticks that come after the one that computes it."""
        for tracked in draft.computing:
            if tracked.lease is not None:
                self.cache.publish(tracked.lease, tracked.tokens, tracked.computed)

    def _unblock(self) -> Iterator[Message]:
        """With nothing under way, what holds pages without running has to make room for the first who waits."""
        if self._in_flight or self._running or self._fetching or self.cache.saving or not self._waiting:
            return
        first, *others = self._waiting
        staged = [tracked for tracked in others if tracked.fetching is not None]
        for tracked in staged:
            self._let_go(tracked)
        if not staged:
            assert self._held, "a request has no room though nobody holds any"
            room = self.cache.available * self._limits.page_size
            yield Rejected(
                first.request.id,
                PromptTooLong(
                    f"the request needs pages for {len(first.tokens)} tokens, and prefixes that are held leave {room}; "
                    "release one, or raise num_pages in open()"
                ),
            )
            yield self._end(first, "cancelled")
        yield from self._plans()
        yield from self._unblock()

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
            self._let_go(tracked)
            if self._fetching.pop(tracked.request.id, None) is None:
                self._waiting.remove(tracked)

    def _preempt(self, tracked: Tracked) -> None:
        self._give_back(tracked)
        tracked.computed = tracked.prefill_end = 0
        tracked.held_at = None
        self._waiting.appendleft(tracked)
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
            for tracked in (*self._fetching.values(), *self._waiting):
                self._let_go(tracked)
            self._waiting.extend(self._fetching.values())
            self._fetching.clear()
            for node in self._held.values():
                self.cache.tree.unlock(node)
            self._held.clear()
            self.cache.forget()
            yield UseWeights(new.ticket, new.weights)

    # Statistics

    def _count_admission(self, tracked: Tracked, onloaded: int) -> None:
        counts, left = self._counts, tracked.prefill_end - tracked.computed
        if tracked.started:
            counts.recomputed_tokens += left
            return
        counts.prompt_tokens += tracked.prefill_end
        counts.device_hit_tokens += tracked.computed - onloaded
        counts.host_hit_tokens += onloaded
        counts.computed_tokens += left

    def _snapshot(self) -> SchedulerStats:
        tree = self.cache.tree
        return SchedulerStats(
            waiting=len(self._waiting) + len(self._fetching),
            running=len(self._running),
            pages=self._limits.num_pages - 1,
            free_pages=self.cache.available,
            cached_pages=tree.device_pages,
            host_pages=tree.host_pages,
            **vars(self._counts),
        )


@dataclass
class Counts:
    """What only grows; the names are those of `SchedulerStats`."""

    ended: int = 0
    ticks: int = 0
    prompt_tokens: int = 0
    device_hit_tokens: int = 0
    host_hit_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0


class Draft:
    """A plan while it is being made.

    Attributes:
        budget: prompt tokens that it has room for.
        chunks, onloads: its parts.
        computing: the requests of the chunks.
        said: what is to be said besides the plan.
    """

    def __init__(self, budget: int):
        self.budget = budget
        self.chunks: list[Chunk] = []
        self.onloads: list[Onload] = []
        self.computing: list[Tracked] = []
        self.said: list[Message] = []


def _scoring(tracked: Tracked, start: int, end: int) -> Scoring | None:
    """What to score when the positions from `start` to `end` are computed; each tells of the token after it."""
    prompt, alternatives = tracked.request.prompt, tracked.request.params.prompt_logprobs
    tokens = prompt[tracked.scored : end + 1]
    if alternatives is None or not tokens:
        return None
    first = tracked.scored - 1 - start
    tracked.scored += len(tokens)
    return Scoring(first, tokens, alternatives)
