"""A timeline says exactly which requests lost their pages and when, whatever is asked of the scheduler."""

import random
from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest

from rekindle.engine.handled import Handled
from rekindle.messages import Message, Plan, Stopped, Withdraw
from rekindle.scheduler.requests.tracked import Tracked
from rekindle.testing import VOCAB_SIZE, ByHand, CheckedScheduler
from rekindle.views.records import Fact, Given, Joined, Over, Part, Planned, Seen, seen
from rekindle.views.timeline.courses import Timeline
from rekindle.views.timeline.drawing import RED, draw
from rekindle.views.timeline.perfetto import phases
from rekindle.views.timeline.words import LETTERS
from tests.unit.test_trace_timeline import recorded


class Truth(CheckedScheduler):
    """A scheduler that is traced, and that notes what it does while it does it.

    Attributes:
        records: a trace of it.
        lost: the requests that lost their pages, each with the tick that is planned next, in order.
        waiting, known: the requests that wait, and that have not ended, when the plan of each tick is made.
    """

    records: list[Seen]
    lost: list[tuple[int, int]]
    waiting: dict[int, set[int]]
    known: dict[int, set[int]]

    def handle(self, message: Message) -> list[Message]:
        if not hasattr(self, "records"):
            self.records, self.lost, self.waiting, self.known = [], [], {}, {}
            self.roster.preempt = partial(self._preempt, self.roster.preempt)  # type: ignore[method-assign]
        said = super().handle(message)
        at = float(len(self.records))
        self.records.append(seen(Handled("scheduler", message, tuple(said), at, at + 0.5), 0.0))
        return said

    def _plans(self) -> Iterator[Message]:
        for said in super()._plans():
            if isinstance(said, Plan):
                self.waiting[said.tick] = {tracked.request.id for tracked in self.roster.waiting}
                self.known[said.tick] = {tracked.request.id for tracked in self.roster}
            yield said

    def _preempt(self, preempt: Callable[[Tracked], None], tracked: Tracked) -> None:
        preempt(tracked)
        self.lost.append((tracked.request.id, self.roster.counts.ticks + 1))


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
    asked = 0
    for _ in range(120):
        what, who = draws.random(), max(0, asked - draws.randint(0, 8))
        if what < 0.15:
            prompt = [draws.randint(1, 2)] * min(draws.choice([20, 20, 20, 70]), engine.limits.max_context - 1)
            del prompt[draws.randint(1, len(prompt)) :]
            ends = draws.sample(range(VOCAB_SIZE), draws.choice([0, 0, 5]))
            hold = draws.random() < 0.15
            engine.admit(asked, prompt, 1 if hold else draws.randint(20, 60), end_ids=ends, hold=hold)
            asked += 1
        elif what < 0.19:
            engine.say(Withdraw(who))
        elif what < 0.21:
            engine.say(Stopped(who, draws.randint(0, len(engine.tokens[who]))))
        elif engine.in_flight and what < 0.8:
            engine.settle()
        elif engine.fetching:
            engine.settle_fetch()
        elif engine.offloading:
            engine.settle_offload()
    engine.drain()
    for each in range(asked):
        engine.say(Withdraw(each))  # this releases the held prefixes
    # The next plan tells of the losses that no plan could tell of yet.
    engine.admit(asked, [3], max_tokens=1)
    engine.drain()
    return truth


SEEDS = range(30)


def losses(timeline: Timeline) -> list[tuple[int, int]]:
    """Return (request, tick) of each loss, ordered."""
    return sorted((name, tick) for name, course in timeline.courses.items() for tick in course.lost)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_losses_of_a_timeline_are_those_of_the_scheduler_each_at_its_tick(seed: int) -> None:
    truth = crowded(seed)
    lost = losses(Timeline(truth.records))
    assert lost == sorted(truth.lost)
    assert len(lost) == truth.stats.preemptions


def test_the_random_requests_lose_pages_also_just_before_they_end() -> None:
    truths = [crowded(seed) for seed in SEEDS]
    assert sum(len(truth.lost) for truth in truths) > 100
    assert sum(name not in truth.known[tick] for truth in truths for name, tick in truth.lost) > 20


@pytest.mark.parametrize("seed", SEEDS)
def test_a_request_waits_in_a_timeline_in_the_ticks_in_which_it_waits_in_the_scheduler(seed: int) -> None:
    truth = crowded(seed)
    timeline = Timeline(truth.records)
    ticks = list(timeline.ticks)
    for name, course in timeline.courses.items():
        for tick, kind in zip(ticks, course.kinds(ticks), strict=True):
            if name not in truth.known[tick]:
                continue
            if kind is None:
                assert course.how, "that it had ended by itself was known later"
                assert tick > course.last
                continue
            lost = any(loser == name and at <= tick for loser, at in truth.lost)
            waits = {"preempted"} if lost else {"queued"}
            assert (kind in waits) == (name in truth.waiting[tick]), (name, tick, kind)


@pytest.mark.parametrize("seed", SEEDS[::3])
def test_a_trace_that_begins_anywhere_knows_each_loss_since_of_whoever_is_seen_in_it(seed: int) -> None:
    truth = crowded(seed)
    whole = Timeline(truth.records)
    for first in range(0, len(truth.records), 7):
        timeline = Timeline(truth.records[first:])
        ticks = list(timeline.ticks)
        seen_of = [(name, tick) for name, tick in truth.lost if tick in timeline.ticks and name in timeline.courses]
        assert losses(timeline) == sorted(seen_of)
        for name, course in timeline.courses.items():
            kinds, expected = (list(each.kinds(ticks)) for each in (course, whole.courses[name]))
            if course.lost and "surplus" not in expected:
                at = ticks.index(course.lost[0])
                assert kinds[at:] == expected[at:], "from its loss on all is known"
            for span in phases(course, timeline, float(len(truth.records))):
                assert span.began < span.ended
        computed = {name for name, course in whole.courses.items() if course.cells.keys() & timeline.ticks.keys()}
        assert computed <= timeline.courses.keys()


# By hand

MARK = f'stroke="rgb({RED})" stroke-width="2.5"'
"""The mark of a loss in a drawing."""


def planned(tick: int, *rows: int, chunks: tuple[Part, ...] = (), preempted: tuple[int, ...] = ()) -> Planned:
    return Planned(tick, chunks, rows, 0, preempted)


def drawn(*facts: Fact) -> dict[int, str]:
    """Return the letters of each request."""
    timeline = Timeline(recorded(*facts))
    return {
        name: "".join(LETTERS[kind] if kind else " " for kind in course.kinds(list(timeline.ticks)))
        for name, course in timeline.courses.items()
    }


def test_one_that_ran_since_before_the_trace_waits_from_its_loss_on() -> None:
    again = planned(4, chunks=(Part(7, 0, 40, True),))
    assert drawn(planned(1, 3), planned(2, 3, preempted=(7,)), planned(3, 3), again) == {3: "ddd-", 7: " xxP"}


def test_one_that_is_cancelled_while_it_waits_again_is_there_until_then() -> None:
    facts = (planned(1, 3, 7), planned(2, 3, preempted=(7,)), planned(3, 3), Over(7, "cancelled", ""), planned(4, 3))
    assert drawn(*facts) == {3: "dddd", 7: "sxx "}
    assert draw(Timeline(recorded(*facts))).svg.count(MARK) == 1


def test_one_whose_last_token_comes_after_its_loss_ended_before_that() -> None:
    facts = (planned(1, 3, 7), planned(2, 3, preempted=(7,)), Given(1, (3, 7)), Over(7, "stop", ""), planned(3, 3))
    assert drawn(*facts) == {3: "ddd", 7: "d  "}
    timeline = Timeline(recorded(*facts))
    course = timeline.courses[7]
    assert course.lost == [2]
    assert MARK not in draw(timeline).svg
    spans = [(span.doing, span.began, span.ended) for span in phases(course, timeline, 9.0)]
    assert spans == [("decode", 0.5, 1.5), ("preempted", 1.5, 3.5)], "in seconds it did wait"


def test_a_prefix_that_lost_its_pages_and_is_found_whole_is_held_with_the_plan_that_finds_it() -> None:
    first = planned(1, chunks=(Part(7, 0, 16, False),))
    facts = (planned(0, 3), Joined(7, 32, True), first, planned(2, 3, preempted=(7,)), planned(3, 3))
    assert drawn(*facts, Over(7, "held", "")) == {3: "d-dd", 7: " Pxx"}


def test_one_that_ended_before_the_trace_is_not_in_it_though_its_loss_is_told_late() -> None:
    assert drawn(planned(5, 3, preempted=(7,)), planned(6, 3)) == {3: "dd"}


def test_a_loss_and_pages_again_in_one_tick_is_no_wait() -> None:
    both = planned(2, chunks=(Part(7, 16, 4, True),), preempted=(7,))
    facts = (Joined(7, 16, False), planned(1, chunks=(Part(7, 0, 16, True),)), both, planned(3, 3), planned(4, 3, 7))
    assert drawn(*facts) == {3: "  dd", 7: "PP-d"}
