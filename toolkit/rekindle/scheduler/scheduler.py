"""Continuous batching: which tokens are computed in the next tick. Pure host logic, without a clock, a device or IO.

A request in the waiting queue owns no pages; what a running one owns is in its `Lease`. One that loses its pages
(preemption) publishes them first. Later it is computed again from its tokens, the generated ones included, as far as
they are not found in the cache; so its output does not change.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, TypeVar

from rekindle.errors import PromptTooLong, RekindleError, RequestCancelled, WeightsChanged
from rekindle.messages import (
    Admit,
    Advanced,
    Fetched,
    KeepWeights,
    Message,
    NewWeights,
    Offloaded,
    Output,
    Outputs,
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
from rekindle.request.allowed import Allowed
from rekindle.results.figures import CachedTokens
from rekindle.results.generation import EndReason
from rekindle.scheduler.advances import Advances
from rekindle.scheduler.archiving import Archiving
from rekindle.scheduler.cache.errands import Errands
from rekindle.scheduler.cache.nodes import Node
from rekindle.scheduler.cache.tree import PrefixTree
from rekindle.scheduler.draft import Draft
from rekindle.scheduler.groups import Group, least_loaded, requests_of
from rekindle.scheduler.lease import Lease
from rekindle.scheduler.limits import Limits
from rekindle.scheduler.stats import Counts, SchedulerStats
from rekindle.scheduler.tracked import Tracked
from rekindle.scheduler.waiting import WaitingQueue

T = TypeVar("T")

CONTINUED_ELSEWHERE: Final = (
    "a damaged program took the pages of the request with it, and deterministic=True does not compute generated tokens "
    "a second time, in another way; submit the request again"
)


class Scheduler:
    """The scheduling actor: it plans every tick, and decides every end.

    Attributes:
        groups: their pages and prefix trees are the scheduler's own, unless they are asked through `look`.
        stats: a snapshot, replaced after each message; safe to read from any thread.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._lock = threading.RLock()  # a policy may look at the cache while it is asked
        self._tracked: dict[int, Tracked] = {}
        self._in_flight = 0
        self._last_had_rows = False
        self._new_weights: deque[NewWeights] = deque()
        self._outputs: list[Output] = []
        self._counts = Counts()
        self._errands = Errands()
        self._advances = Advances()
        self.groups = [Group(limits, self._errands, number) for number in range(limits.data)]
        self._waiting = WaitingQueue(limits, self.groups, self._counts)
        self._archiving = Archiving(limits, [group.cache for group in self.groups])
        self.stats = self._snapshot()

    def handle(self, message: Message) -> list[Message]:
        """Take in a message and plan as far ahead as the depth allows."""
        with self._lock:
            return self._handle(message)

    def look(self, at: Callable[[Sequence[PrefixTree]], T]) -> T:
        """Return what `at` says of the groups' prefix trees, between two messages.

        Any thread may ask; the engine waits.
        """
        with self._lock:
            return at([group.cache.tree for group in self.groups])

    def restore(self, pages: Iterable[StoredPage]) -> None:
        """Know of the pages that an earlier session wrote to disk, parents before children."""
        pages = list(pages)
        with self._lock:
            for group in self.groups:
                group.cache.tree.restore(pages)
            self.stats = self._snapshot()

    def check(self) -> None:
        """Assert the invariants: every page and slot has exactly one holder, every request one place."""
        for group in self.groups:
            group.running.check()
            group.cache.check([page for tracked in group.running if tracked.lease for page in tracked.lease.own])
            waiting = [tracked for tracked in self._waiting if tracked.group == group.number]
            assert group.owed == sum(tracked.owed for tracked in waiting), "a group owes what nobody waits for"
        placed = [*requests_of(self.groups), *self._waiting]
        assert len(placed) == len(self._tracked), "a request is in two places, or in none"
        assert set(placed) == set(self._tracked.values()), "a request is nowhere"
        assert all(tracked.lease is None for tracked in self._waiting), "a waiting request has pages"

    def _handle(self, message: Message) -> list[Message]:
        said = list(self._take_in(message))
        said += [*self._change_weights(), *self._plans(), *self._unblock()]
        said += self._advances.said(requests_of(self.groups))
        if self._outputs:  # after the plans, so that the device does not wait for what callers are told
            said.append(Outputs(tuple(self._outputs)))
            self._outputs = []
        for group in self.groups:
            group.cache.offload_ahead()
        said += self._archiving.go_on(self._counts.ticks, idle=not self._tracked and not self._in_flight)
        said += self._errands.said()
        self.stats = self._snapshot()
        return said

    def _take_in(self, message: Message) -> Iterator[Message]:
        match message:
            case Admit(request) if request.complete:
                yield Started(request.id, request.prompt, request.params.seed, CachedTokens())
                self._counts.ended += 1
                self._counts.forced(len(request.given) - len(request.begun))
                by_token = request.given[-1] in request.end_ids
                self._outputs.append(Output(request, request.given, "stop" if by_token else None))
                self._outputs += [] if by_token else [Output(request, (), "stop")]
            case Admit(request):
                self._tracked[request.id] = tracked = Tracked.of(request, self._limits)
                tracked.group = least_loaded(self.groups, tracked).number
                self._waiting.join(tracked)
            case Withdraw(request_id):
                holders = [group.cache for group in self.groups if request_id in group.cache.held]
                if holders:
                    holders[0].release(request_id)
                elif request_id in self._tracked:
                    self._end(self._tracked[request_id], "cancelled")
            case Stopped(request_id, tokens):
                if request_id in self._tracked:
                    self._stop(self._tracked[request_id], tokens)
            case Advanced(outcomes, late):
                for request_id, outcome in outcomes:
                    if request_id in self._tracked:
                        yield from self._advance(self._tracked[request_id], outcome)
                for request_id in late:
                    if request_id in self._tracked:
                        self._tracked[request_id].late = True
                        self._advances.late.append(request_id)
            case Settled(losses=losses):
                if losses > self._losses:
                    yield from self._lose_device()
                self._settle(message)
            case NewWeights():
                self._new_weights.append(message)
            case KeepWeights(ticket):
                self._new_weights = deque(new for new in self._new_weights if new.ticket != ticket)
            case Offloaded():
                for group in self.groups:
                    group.cache.offloaded(message)
            case Written():
                self._archiving.written(message)
            case SaveCache(ticket):
                self._archiving.ask(ticket)
            case Fetched():
                self._waiting.fetched(message)
            case _:
                raise TypeError(
                    "the scheduler takes Admit, Withdraw, Stopped, NewWeights, KeepWeights, Settled, Advanced, "
                    f"Offloaded, Fetched, Written and SaveCache, got {message!r}"
                )

    # Planning

    def _plans(self) -> Iterator[Message]:
        """Yield a plan for each tick that may be in flight, as long as there is something to compute.

        All wait for what a constrained request may have next, unless that is late: such a request is slower by half
        where ticks go on without it.
        """
        while self._in_flight < self._limits.depth and not any(each.waited_for for each in requests_of(self.groups)):
            changes, draft = self._waiting.changes, self._draft()
            if not draft.empty:
                self._in_flight += 1
                self._counts.ticks += 1
                self._last_had_rows = bool(draft.rows)
                yield from self._errands.said()
                yield draft.plan(self._counts.ticks, self._preempted(), self._losses)
            yield from draft.said
            # After the plan, so that a page is found only by ticks that come after the one that computes it.
            for tracked in draft.computing:
                tracked.publish()
            # If the queue changed meanwhile, the next draft may have work though this one has none.
            if draft.empty and self._waiting.changes == changes:
                return

    def _draft(self) -> Draft:
        draft, ticks = Draft(self._limits.max_prefill_tokens, len(self.groups)), self._limits.ticks
        rows_first = ticks == "combined" or (ticks == "alternate" and not self._last_had_rows)
        if rows_first:
            self._add_rows(draft)
        if ticks == "combined" or not draft.rows:
            self._add_chunks(draft)
        if not rows_first and not draft.chunks:
            self._add_rows(draft)
        return draft

    def _add_rows(self, draft: Draft) -> None:
        """Add a decode row for each request that can have one, rows of similar context side by side."""
        able = [tracked for tracked in requests_of(self.groups) if tracked.wants_token and self._reserve_next(tracked)]
        for tracked in sorted(able, key=attrgetter("computed")):
            assert tracked.lease is not None, "only those behind it in the running set were preempted since"
            page = tracked.lease.pages[tracked.computed // self._limits.page_size]
            params = tracked.request.params
            slot = self._group(tracked).running.slots[tracked]
            row = Row(tracked.request.id, slot, page, params.logprobs, tracked.length, tracked.allowed_bits)
            draft.rows.append(row)
            tracked.computed += 1
            tracked.pending += 1

    def _reserve_next(self, tracked: Tracked) -> bool:
        """See that the next position has a page, preempting the last of the running set as long as none is to be had.

        Return False if the request was preempted itself, as one is that has to be computed again because its tokens
        turn otherwise from now on, once all of them are known.
        """
        if tracked.outgrown:
            if not tracked.pending:
                self._preempt(tracked)
            return False
        return self._reserve(tracked, tracked.computed + 1)

    def _reserve(self, tracked: Tracked, tokens: int) -> bool:
        """See that so many tokens of a request have pages, as `_reserve_next` does; return False if it has none now."""
        while (lease := tracked.lease) is not None:
            missing = -(-tokens // self._limits.page_size) - len(lease.pages)
            if missing <= 0 or lease.reserve(missing):
                return True
            self._preempt(self._group(tracked).running.last)
        return False

    def _preempt(self, tracked: Tracked) -> None:
        running = self._group(tracked).running
        running.leave(tracked)
        running.preempted.append(tracked.request.id)
        self._waiting.join(tracked, first=True)
        self._counts.preemptions += 1

    def _add_chunks(self, draft: Draft) -> None:
        """Add chunks of prompts within the token budget, those that are already under way first."""
        for tracked in requests_of(self.groups):
            if tracked.in_prefill and draft.budgets[tracked.group]:
                self._add_chunk(draft, tracked)
        roomy = {group.number for group in self.groups if group.running.free_slots}
        able = {number for number in roomy if draft.budgets[number]}
        next_tick = roomy - able
        # While new weights are to come, what has not started waits for them.
        ready = self._waiting.ready(able, next_tick, draft.coming, draft.said, only_started=bool(self._new_weights))
        while able and (candidate := next(ready, None)):
            tracked, nodes = candidate
            admitted = self._admit(tracked, nodes, draft)
            if admitted and tracked.in_prefill:
                self._add_chunk(draft, tracked)
            elif admitted:
                self._hold(tracked)
            full = not draft.budgets[tracked.group]
            if not admitted or full or not self._group(tracked).running.free_slots:
                able.discard(tracked.group)
            if admitted and full and self._group(tracked).running.free_slots:
                next_tick.add(tracked.group)

    def _admit(self, tracked: Tracked, nodes: Sequence[Node], draft: Draft) -> bool:
        """Give a request a slot and pages for all its tokens, the cached ones first; return False if there is no room.

        A page is left for each running request, or its admission would soon preempt it.
        """
        request, group = tracked.request, self._group(tracked)
        warm = [node for node in nodes if node.page is not None]
        lease = Lease(group.cache, tracked.namespace, warm)
        needed = self._pages_for(tracked) - len(warm)
        if needed + len(group.running) > group.cache.available or not lease.reserve(needed):
            lease.release()
            return False
        onload = self._waiting.onload(tracked, nodes[len(warm) :], lease)
        if onload is not None:
            draft.onloads.append(onload)
        tracked.begin(lease)
        cached = tracked.cached(onload)
        self._waiting.leave(tracked)
        group.running.join(tracked)
        self._archiving.use(group.cache, lease.tip)
        self._counts.admitted(tracked.prefill_end, cached, again=tracked.started)
        if not tracked.started:
            tracked.started = True
            group.cache.tree.hit(lease.tip)
            draft.said.append(Started(request.id, request.prompt, request.params.seed, cached))
            if request.given:
                self._counts.forced(len(request.given) - len(request.begun))
                self._outputs.append(Output(request, request.given, None))
        return True

    def _pages_for(self, tracked: Tracked) -> int:
        """Return how many pages a request needs before it starts."""
        # One that was preempted would compute its output again by another program, with other last digits.
        tokens = tracked.final_length if self._limits.one_shape else len(tracked.tokens)
        return -(-tokens // self._limits.page_size)

    def _add_chunk(self, draft: Draft, tracked: Tracked) -> None:
        most = min(self._limits.prefill_chunk, draft.budgets[tracked.group])
        chunk = tracked.next_chunk(self._group(tracked).running.slots[tracked], most)
        if tracked.request.hold and not tracked.in_prefill:
            tracked.held_at = self._counts.ticks + 1
        draft.add(chunk, tracked)

    def _unblock(self) -> Iterator[Message]:
        """Make room for the first who waits, when nothing runs and only staged or held pages are in its way."""
        while not self._in_flight and not requests_of(self.groups):
            first = self._waiting.blocked(only_started=bool(self._new_weights))
            if first is None:
                return
            if not self._waiting.give_up_staged(first) and not self._moved(first):
                assert self._group(first).cache.held, "a request has no room though nobody holds any"
                yield self._reject(first, PromptTooLong(self._held_up(first)))
            yield from self._change_weights()
            yield from self._plans()

    def _moved(self, tracked: Tracked) -> bool:
        """Let a request that its own group has no room for wait for one that has; return False if there is none."""
        roomiest = max(self.groups, key=lambda group: group.cache.available)
        if self._pages_for(tracked) > roomiest.cache.available:
            return False
        assert roomiest is not self._group(tracked), "a request has no room though it fits"
        self._waiting.move(tracked, roomiest)
        return True

    def _held_up(self, tracked: Tracked) -> str:
        """Say that a request has no room beside the prefixes that are held, and what the caller can do."""
        then = "go on, with the tokens that it has generated" if tracked.started else "start"
        left = max(group.cache.available for group in self.groups)
        return (
            f"the request needs {self._pages_for(tracked)} pages to {then}, and prefixes that are held leave "
            f"{left} of {self._limits.num_pages - 1}; release one, or raise num_pages in open()"
        )

    # Ends

    def _settle(self, settled: Settled) -> None:
        """Take in what one tick gave; what is of requests that ended meanwhile is surplus and dropped."""
        self._in_flight -= 1
        for tracked in [tracked for tracked in requests_of(self.groups) if tracked.held_at == settled.tick]:
            self._hold(tracked)
        for request_id, scores in settled.prompt_logprobs.items():
            if request_id in self._tracked:
                tracked = self._tracked[request_id]
                tracked.scores_settled += len(scores)
                self._outputs.append(Output(tracked.request, (), None, prompt_logprobs=scores))
        for request_id, states in settled.sums.items():
            if request_id in self._tracked:
                tracked = self._tracked[request_id]
                tracked.sums_settled += states.count
                self._outputs.append(Output(tracked.request, (), None, states=states))
        for request_id, token in settled.tokens:
            if request_id in self._tracked:
                tracked = self._tracked[request_id]
                if tracked.final_length == len(tracked.tokens):  # its prompt was to be computed, and nothing more
                    self._end(tracked, "length")
                    continue
                end = tracked.take(token)
                logprob = settled.logprobs.get(request_id)
                self._counts.generated_tokens += 1
                self._outputs.append(Output(tracked.request, (token,), end, (logprob,) if logprob else ()))
                if tracked.asked:
                    self._advances.taken.append((tracked.request, token))
                if end is not None:
                    self._leave(tracked)

    def _advance(self, tracked: Tracked, outcome: Allowed | RekindleError) -> Iterator[Message]:
        """Go on with a constrained request, now that it is known what may follow."""
        tracked.asked = tracked.late = False
        if isinstance(outcome, RekindleError):
            yield self._reject(tracked, outcome)
            return
        tracked.allowed = outcome
        if outcome.forced:
            self._outputs.append(Output(tracked.request, outcome.forced, None))
            self._counts.forced(len(outcome.forced))
            turned = not tracked.jump(outcome.forced)
        if outcome.complete or tracked.full:
            self._end(tracked, "stop" if outcome.complete else "length")
        elif outcome.forced and tracked.lease is not None:
            if turned:
                self._preempt(tracked)
            else:
                self._reserve(tracked, len(tracked.tokens))

    def _stop(self, tracked: Tracked, tokens: int) -> None:
        """End a request after this many tokens, which complete a stop string; those settled since are surplus."""
        request = tracked.request
        length = len(request.prompt) + tokens
        self._counts.generated_tokens -= len(tracked.tokens) - max(length, len(request.prompt) + len(request.begun))
        del tracked.tokens[length:]
        self._end(tracked, "stop")

    def _hold(self, tracked: Tracked) -> None:
        """End a request whose prefix is computed; the prefix stays locked until it is withdrawn."""
        assert tracked.lease is not None
        tracked.publish()
        self._group(tracked).cache.hold(tracked.request.id, tracked.lease.tip)
        self._end(tracked, "held")

    def _reject(self, tracked: Tracked, error: Exception) -> Rejected:
        self._end(tracked, "cancelled")
        return Rejected(tracked.request.id, error)

    def _end(self, tracked: Tracked, end: EndReason) -> None:
        self._leave(tracked)
        self._outputs.append(Output(tracked.request, (), end))

    def _leave(self, tracked: Tracked) -> None:
        del self._tracked[tracked.request.id]
        self._counts.ended += 1
        if tracked.allowed is not None:
            self._advances.ended.append(tracked.request.id)
        if tracked.lease is not None:
            self._group(tracked).running.leave(tracked)
        else:
            self._waiting.leave(tracked)

    # The device state is lost

    def _lose_device(self) -> Iterator[Message]:
        """Let all requests that run begin again from their tokens, since nothing is left of the pages on the device."""
        for tracked in list(self._tracked.values()):
            tracked.lose_dispatched()
            if self._limits.one_shape and len(tracked.tokens) > len(tracked.request.known):
                yield self._reject(tracked, RequestCancelled(CONTINUED_ELSEWHERE))
        for tracked in requests_of(self.groups)[::-1]:
            self._preempt(tracked)
        self._waiting.forget_cache()
        for group in self.groups:
            group.cache.lose_device()

    # New weights

    def _change_weights(self) -> Iterator[Message]:
        """Use new weights once no request is left that started on the old ones; what those computed is forgotten."""
        if any(new.fail for new in self._new_weights):
            for tracked in [tracked for tracked in self._tracked.values() if tracked.started]:
                yield self._reject(tracked, WeightsChanged("the request was ended by update_weights; submit it again"))
        while self._new_weights and not any(tracked.started for tracked in self._tracked.values()):
            new = self._new_weights.popleft()
            self._waiting.forget_cache()
            for group in self.groups:
                group.cache.forget()
            self._archiving.stop()
            yield UseWeights(new.ticket, new.weights)

    # Groups and statistics

    def _group(self, tracked: Tracked) -> Group:
        return self.groups[tracked.group]

    def _preempted(self) -> tuple[int, ...]:
        """Return, once, who lost its pages; the next plan tells, even if none came of the draft that took them."""
        preempted = tuple(request_id for group in self.groups for request_id in group.running.preempted)
        for group in self.groups:
            group.running.preempted.clear()
        return preempted

    @property
    def _losses(self) -> int:
        return self.groups[0].cache.losses

    def _snapshot(self) -> SchedulerStats:
        trees = [group.cache.tree for group in self.groups]
        return SchedulerStats(
            waiting=len(self._waiting),
            running=sum(len(group.running) for group in self.groups),
            pages=(self._limits.num_pages - 1) * len(self.groups),
            free_pages=sum(group.cache.available for group in self.groups),
            cached_pages=sum(tree.device_pages for tree in trees),
            evictable_pages=sum(tree.evictable for tree in trees),
            device_losses=self._losses,
            host_pages=sum(tree.host_pages for tree in trees),
            disk_pages=max(tree.disk_pages for tree in trees),
            **vars(self._counts),
        )
