"""Make records of traces: of facts by hand, of a scheduler with notes, and of a whole session."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial

from rekindle.core.messages import Message, Plan, Stopped, Withdraw
from rekindle.core.messages.record import MessageRecord
from rekindle.core.scheduler.requests.state import RequestState
from rekindle.core.scheduler.stats import SchedulerStats
from rekindle.testing import VOCAB_SIZE, ByHand, CheckedScheduler, fake_session
from rekindle.views.records import Fact, TraceRecord, trace_record
from rekindle.views.trace import Trace

SEEDS = range(8)


def recorded(*facts: Fact) -> list[TraceRecord]:
    """Make a record of each fact, a second after the other."""
    return [TraceRecord("scheduler", "", "", (), None, (), at, at + 0.5, (fact,)) for at, fact in enumerate(facts)]


class Truth(CheckedScheduler):
    """A traced scheduler with notes of its own work.

    Attributes:
        records: a trace of it.
        plans: all plans, in order.
        losses: the requests without their former pages, each with the next tick, in order.
        waiting, live: the waiting requests, and all without an end, at the plan of each tick.
    """

    records: list[TraceRecord]
    plans: list[Plan]
    losses: list[tuple[int, int]]
    waiting: dict[int, set[int]]
    live: dict[int, set[int]]

    def handle(self, message: Message) -> list[Message]:
        if not hasattr(self, "records"):
            self.records, self.plans, self.losses, self.waiting, self.live = [], [], [], {}, {}
            self.table.preempt = partial(self._preempt, self.table.preempt)  # type: ignore[method-assign]
        answers = super().handle(message)
        at = float(len(self.records))
        self.records.append(trace_record(MessageRecord("scheduler", message, tuple(answers), at, at + 0.5), 0.0))
        return answers

    def _plans(self) -> Iterator[Message]:
        for message in super()._plans():
            if isinstance(message, Plan):
                self.plans.append(message)
                self.waiting[message.tick] = {state.request.id for state in self.table.waiting}
                self.live[message.tick] = {state.request.id for state in self.table}
            yield message

    def _preempt(self, preempt: Callable[[RequestState], None], state: RequestState) -> None:
        preempt(state)
        self.losses.append((state.request.id, self.table.counts.ticks + 1))


@cache
def crowded(seed: int) -> Truth:
    """Run random requests, more than there are pages for; some are withdrawn, stopped, or to be held."""
    draws = random.Random(seed)
    engine = ByHand(
        ticks=draws.choice(["alternate", "prefill-first", "combined"]),
        overlap=draws.random() < 0.7,
        page_size=16,
        num_pages=draws.randint(4, 8),
        max_running=draws.randint(2, 5),
        prefill_chunk=draws.choice([16, 512]),
        host_cache_bytes=draws.choice([0, 1 << 20]),
    )
    engine.scheduler = truth = Truth(engine.limits)
    requests, prefixes = 0, set[int]()
    for _ in range(120):
        what, who = draws.random(), max(0, requests - draws.randint(0, 8))
        if what < 0.15:
            prompt = [draws.randint(1, 2)] * min(draws.choice([20, 20, 20, 70]), engine.limits.max_context - 1)
            del prompt[draws.randint(1, len(prompt)) :]
            ends = draws.sample(range(VOCAB_SIZE), draws.choice([0, 0, 5]))
            if hold := draws.random() < 0.15:
                prefixes.add(requests)
            engine.admit(requests, prompt, 1 if hold else draws.randint(20, 60), end_ids=ends, hold=hold)
            requests += 1
        elif what < 0.19:
            engine.say(Withdraw(who))
        elif what < 0.21 and who not in prefixes:  # a prefix writes no text that could stop it
            engine.say(Stopped(who, draws.randint(0, len(engine.tokens[who]))))
        elif engine.in_flight and what < 0.8:
            engine.settle()
        elif engine.fetching:
            engine.settle_fetch()
        elif engine.offloading:
            engine.settle_offload()
    engine.drain()
    for each in range(requests):
        engine.say(Withdraw(each))  # this releases the held prefixes
    # The next plan tells of the losses that no plan could tell of yet.
    engine.admit(requests, [3], max_tokens=1)
    engine.drain()
    return truth


@cache
def traced() -> tuple[Trace, SchedulerStats]:
    """Trace a session with requests that wait, lose their pages, are cancelled and refused; return its stats too."""
    with fake_session(page_size=16, num_pages=6, max_running=4) as session, session.trace() as trace:
        first = session.submit(token_ids=[9] * 15, max_tokens=60)
        handles = [session.submit(token_ids=[number] * 15, max_tokens=30) for number in range(8)]
        for handle in handles[:2]:
            handle.result()
        first.cancel()
        for handle in (*handles[2:], first, session.submit("text")):
            with suppress(Exception):
                handle.result()
        stats = session.stats.scheduler
    assert stats.preemptions > 0
    return trace, stats
