"""Continuous batching: which tokens are computed in the next tick. Pure host logic, without a clock, a device or IO.

Who owns the positions of a running request:

    [0, computed)          private, written by ticks that are dispatched
    [computed, reserved)   private, not yet written; `reserved` is where its pages end

A request in the waiting queue owns no pages. One that lost its pages (preemption) is computed again from its tokens,
the generated ones included, so its output does not change.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rekindle.buckets import QUERY_BLOCK
from rekindle.config import Limits
from rekindle.messages import (
    Admit,
    Chunk,
    Message,
    Output,
    Plan,
    Row,
    Scoring,
    Settled,
    Started,
    Stopped,
    Withdraw,
)
from rekindle.metrics import SchedulerStats
from rekindle.pages import PagePool
from rekindle.request import Request
from rekindle.results import EndReason


@dataclass(slots=True, eq=False)
class Tracked:
    """One request as the scheduler sees it.

    Attributes:
        tokens: the prompt and every settled token.
        computed: positions whose keys and values are written by dispatched ticks.
        prefill_end: how many tokens were known when it last got its pages; up to there it is computed in chunks.
        pending: sampled tokens that are dispatched and not settled.
        slot: its row of the decode batch while it runs.
        pages: its pages, in order of position.
        started: whether it ever left the waiting queue.
        scored: tokens of the prompt whose log-probabilities, if wanted, are settled or dispatched; the first has none.
    """

    request: Request
    tokens: list[int]
    computed: int = 0
    prefill_end: int = 0
    pending: int = 0
    slot: int | None = None
    pages: list[int] = field(default_factory=list)
    started: bool = False
    scored: int = 1

    @property
    def final_length(self) -> int:
        """The length at which it ends at the latest."""
        return min(len(self.request.prompt) + self.request.params.max_tokens, self.request.capacity)

    @property
    def in_prefill(self) -> bool:
        """Whether known tokens are left to compute before the next one is sampled."""
        return self.computed < self.prefill_end

    @property
    def wants_token(self) -> bool:
        """Whether a decode row is to be planned for it."""
        return not self.in_prefill and self.computed + 1 < self.final_length


class Scheduler:
    """The scheduling actor: waiting queue, running set, pages and slots.

    Attributes:
        stats: a snapshot, replaced after each message; safe to read from any thread.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._pool = PagePool(limits.num_pages)
        self._free_slots = list(range(limits.max_running))[::-1]
        self._waiting: deque[Tracked] = deque()
        self._running: list[Tracked] = []
        self._tracked: dict[int, Tracked] = {}
        self._in_flight = 0
        self._tick = 0
        self._preemptions = 0
        self._surplus = 0
        self.stats = SchedulerStats(pages=limits.num_pages - 1, free_pages=limits.num_pages - 1)

    def handle(self, message: Message) -> list[Message]:
        """Take in a message and plan as far ahead as the depth allows."""
        outputs: list[Message] = []
        match message:
            case Admit(request):
                tracked = Tracked(request, list(request.prompt))
                self._tracked[request.id] = tracked
                self._waiting.append(tracked)
            case Withdraw(request_id):
                if request_id in self._tracked:
                    outputs.append(self._end(self._tracked[request_id], "cancelled"))
            case Stopped(request_id, kept):
                if request_id in self._tracked:
                    outputs.append(self._stop(self._tracked[request_id], kept))
            case Settled():
                self._in_flight -= 1
                outputs.extend(self._settle(message))
            case _:
                raise TypeError(f"the scheduler takes Admit, Withdraw, Stopped and Settled, got {message!r}")
        plans = list(self._plans())
        self._count(plans + outputs)
        return plans + outputs

    def check(self) -> None:
        """Assert the invariants: every page and slot has exactly one holder, every request one place."""
        held = [page for tracked in self._running for page in tracked.pages]
        assert len(held) == len(set(held)), "a page has two owners"
        assert len(held) + self._pool.free == self._limits.num_pages - 1, "a page has no owner"
        slots = [tracked.slot for tracked in self._running if tracked.slot is not None]
        assert sorted([*slots, *self._free_slots]) == list(range(self._limits.max_running)), "slots do not add up"
        assert {id(t) for t in [*self._running, *self._waiting]} == {id(t) for t in self._tracked.values()}
        assert all(not tracked.pages and tracked.slot is None for tracked in self._waiting), "a waiter holds pages"
        for tracked in self._running:
            assert tracked.computed <= len(tracked.pages) * self._limits.page_size, "computed past its pages"
            assert tracked.computed <= len(tracked.tokens) + tracked.pending, "computed past its tokens"

    # Planning

    def _plans(self) -> Iterator[Message]:
        while self._in_flight < self._limits.depth:
            started: list[Message] = []
            if self._limits.combined:
                rows = self._plan_rows()
                chunks = self._plan_chunks(started)
            else:
                chunks = self._plan_chunks(started)
                rows = () if chunks else self._plan_rows()
            if not rows and not chunks:
                return
            self._in_flight += 1
            self._tick += 1
            yield Plan(self._tick, chunks, rows)
            yield from started

    def _plan_rows(self) -> tuple[Row, ...]:
        """A decode row for each request that can have one, rows of similar context side by side."""
        planned: list[Tracked] = []
        for tracked in list(self._running):
            if tracked.slot is not None and tracked.wants_token and self._reserve_next(tracked):
                planned.append(tracked)
        rows = []
        for tracked in sorted(planned, key=lambda t: t.computed):
            assert tracked.slot is not None, "only those behind it in the running set were preempted since"
            page = tracked.pages[tracked.computed // self._limits.page_size]
            rows.append(Row(tracked.request.id, tracked.slot, page, tracked.request.params.logprobs))
            tracked.computed += 1
            tracked.pending += 1
        return tuple(rows)

    def _reserve_next(self, tracked: Tracked) -> bool:
        """See that the next position has a page, taking pages from the last of the running set if none is free."""
        if tracked.computed < len(tracked.pages) * self._limits.page_size:
            return True
        while self._pool.free < 1:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is tracked:
                return False
        tracked.pages += self._pool.allocate(1)
        return True

    def _plan_chunks(self, started: list[Message]) -> tuple[Chunk, ...]:
        """Chunks of prompts, the one that is already under way first, within the token budget."""
        chunks: list[Chunk] = []
        budget = self._limits.max_prefill_tokens
        for tracked in self._running:
            if tracked.in_prefill and budget:
                chunks.append(self._chunk(tracked, budget))
                budget -= _padded(len(chunks[-1].tokens))
        while budget and self._waiting and self._free_slots and self._can_admit(self._waiting[0]):
            tracked = self._waiting.popleft()
            tracked.slot = self._free_slots.pop()
            tracked.prefill_end = len(tracked.tokens)
            tracked.pages = self._pool.allocate(self._pages_for(tracked.prefill_end))
            self._running.append(tracked)
            if not tracked.started:
                tracked.started = True
                started.append(Started(tracked.request.id, len(tracked.request.prompt), tracked.computed))
            chunks.append(self._chunk(tracked, budget))
            budget -= _padded(len(chunks[-1].tokens))
        return tuple(chunks)

    def _can_admit(self, tracked: Tracked) -> bool:
        """Whether its tokens fit, with a page left for each running request, or its admission would soon preempt it."""
        spare = len(self._running)
        return tracked.pending == 0 and self._pages_for(len(tracked.tokens)) + spare <= self._pool.free

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._limits.page_size)

    def _chunk(self, tracked: Tracked, budget: int) -> Chunk:
        request, start, left = tracked.request, tracked.computed, tracked.prefill_end - tracked.computed
        size = min(left, self._limits.prefill_chunk, budget)
        last = size == left
        assert tracked.slot is not None
        tracked.computed += size
        tracked.pending += last
        return Chunk(
            request_id=request.id,
            slot=tracked.slot,
            start=start,
            tokens=tuple(tracked.tokens[start : start + size]),
            pages=tuple(tracked.pages[at // self._limits.page_size] for at in range(start, start + size, QUERY_BLOCK)),
            completes=request if last else None,
            generated=tuple(tracked.tokens[len(request.prompt) :]) if last else (),
            scoring=_scoring(tracked, start, start + size),
        )

    # Ends

    def _settle(self, settled: Settled) -> Iterator[Output]:
        """Take in what one tick gave; what is of requests that ended meanwhile is surplus and dropped."""
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
            if end is not None:
                self._leave(tracked)
            yield Output(tracked.request, (token,), end, (logprob,) if logprob else ())

    def _end(self, tracked: Tracked, end: EndReason) -> Output:
        self._leave(tracked)
        return Output(tracked.request, (), end)

    def _stop(self, tracked: Tracked, kept: int) -> Output:
        """A stop string was found in the text; tokens settled since it was complete are surplus."""
        self._surplus += len(tracked.tokens) - len(tracked.request.prompt) - kept
        return self._end(tracked, "stop")

    def _leave(self, tracked: Tracked) -> None:
        del self._tracked[tracked.request.id]
        if tracked.slot is None:
            self._waiting.remove(tracked)
        else:
            self._give_back(tracked)

    def _preempt(self, tracked: Tracked) -> None:
        self._give_back(tracked)
        tracked.computed = tracked.prefill_end = 0
        self._waiting.appendleft(tracked)
        self._preemptions += 1

    def _give_back(self, tracked: Tracked) -> None:
        """Pages may be reused at once: a tick in flight that still writes to them runs before any later one."""
        assert tracked.slot is not None
        self._running.remove(tracked)
        self._free_slots.append(tracked.slot)
        self._pool.release(tracked.pages)
        tracked.slot, tracked.pages = None, []

    def _count(self, said: Sequence[Message]) -> None:
        plans = [message for message in said if isinstance(message, Plan)]
        outputs = [message for message in said if isinstance(message, Output)]
        generated = sum(len(output.token_ids) for output in outputs)
        computed = sum(len(chunk.tokens) for plan in plans for chunk in plan.chunks)
        self.stats = SchedulerStats(
            waiting=len(self._waiting),
            running=len(self._running),
            pages=self._limits.num_pages - 1,
            free_pages=self._pool.free,
            ended=self.stats.ended + sum(output.end is not None for output in outputs),
            ticks=self._tick,
            computed_tokens=self.stats.computed_tokens + computed,
            generated_tokens=self.stats.generated_tokens + generated - self._surplus,
            preemptions=self._preemptions,
        )
        self._surplus = 0


def _padded(tokens: int) -> int:
    return -(-tokens // QUERY_BLOCK) * QUERY_BLOCK


def _scoring(tracked: Tracked, start: int, end: int) -> Scoring | None:
    """What to score when the positions from `start` to `end` are computed; each tells of the token after it."""
    prompt, alternatives = tracked.request.prompt, tracked.request.params.prompt_logprobs
    tokens = prompt[tracked.scored : end + 1]
    if alternatives is None or not tokens:
        return None
    first = tracked.scored - 1 - start
    tracked.scored += len(tokens)
    return Scoring(first, tokens, alternatives)
