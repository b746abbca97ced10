"""A timeline shows the scheduler's work in every tick, for every request, and adds up to the scheduler's counts."""

from contextlib import suppress
from typing import get_args

import pytest

from rekindle.core.errors import RekindleError
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, expected_tokens, fake_session
from rekindle.views.records import ChunkRecord, EndRecord, Fact, JoinRecord, PlanRecord, StopRecord, TokensRecord
from rekindle.views.timeline.drawing import RED, draw
from rekindle.views.timeline.perfetto import phases
from rekindle.views.timeline.requests import Kind, Timeline
from rekindle.views.timeline.words import LETTERS, MEANINGS, facts
from rekindle.views.trace import Trace
from tests.unit.traces import SEEDS, crowded, recorded, traced
from tests.waiting import until_blocking

PROMPT = [3, 1, 4]


def timeline_of(trace: Trace) -> Timeline:
    return Timeline(trace.records)


def kinds_of(timeline: Timeline) -> dict[int, dict[int, Kind | None]]:
    """Return the kind of each request's work, by tick."""
    ticks = list(timeline.ticks)
    return {
        name: dict(zip(ticks, request_timeline.kinds(ticks), strict=True))
        for name, request_timeline in timeline.requests.items()
    }


def losses(timeline: Timeline) -> list[tuple[int, int]]:
    """Return (request, tick) of each loss, ordered."""
    return sorted(
        (name, tick) for name, request_timeline in timeline.requests.items() for tick in request_timeline.preemptions
    )


# Whatever is asked of the scheduler


@pytest.mark.parametrize("seed", SEEDS)
def test_what_each_tick_computed_and_who_lost_its_pages_is_what_the_scheduler_did(seed: int) -> None:
    truth = crowded(seed)
    stats, timeline, kinds = truth.stats, Timeline(truth.records), kinds_of(Timeline(truth.records))
    request_timelines = timeline.requests
    assert list(timeline.ticks) == [plan.tick for plan in truth.plans] == list(range(1, stats.ticks + 1))
    for plan in truth.plans:
        of_kind = {name: kinds[name][plan.tick] for name in request_timelines}
        chunks = {chunk.request_id: len(chunk.tokens) for chunk in plan.chunks}
        assert {name for name, kind in of_kind.items() if kind == "prefill"} == set(chunks)
        assert {name: request_timelines[name].cells[plan.tick].tokens for name in chunks} == chunks
        decoded = {name for name, kind in of_kind.items() if kind in {"decode", "surplus"}}
        assert decoded == {each.request_id for each in plan.rows}
    cells = [cell for request_timeline in request_timelines.values() for cell in request_timeline.cells.values()]
    assert sum(cell.tokens for cell in cells if cell.prefill) == stats.computed_tokens + stats.recomputed_tokens
    assert sum(cell.new_tokens for cell in cells) == stats.generated_tokens
    assert losses(timeline) == sorted(truth.losses)
    assert len(truth.losses) == stats.preemptions


def test_the_random_requests_lose_pages_also_just_before_they_end_and_under_each_order_of_ticks() -> None:
    truths = [crowded(seed) for seed in SEEDS]
    assert sum(len(truth.losses) for truth in truths) > 40
    assert sum(name not in truth.live[tick] for truth in truths for name, tick in truth.losses) > 10
    assert {truth._limits.ticks for truth in truths} == {"alternate", "prefill-first", "combined"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_request_waits_in_a_timeline_in_the_ticks_in_which_it_waits_in_the_scheduler(seed: int) -> None:
    truth = crowded(seed)
    timeline = Timeline(truth.records)
    for name, kinds in kinds_of(timeline).items():
        for tick, kind in kinds.items():
            if name not in truth.live[tick]:
                continue
            if kind is None:
                assert timeline.requests[name].end_reason, "that it had ended by itself was known later"
                assert tick > timeline.requests[name].last
                continue
            after_loss = any(loser == name and at <= tick for loser, at in truth.losses)
            waits = {"preempted"} if after_loss else {"queued"}
            assert (kind in waits) == (name in truth.waiting[tick]), (name, tick, kind)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_trace_that_begins_or_ends_anywhere_knows_each_loss_in_it_of_whoever_is_seen_in_it(seed: int) -> None:
    truth = crowded(seed)
    whole = Timeline(truth.records)
    for first in range(0, len(truth.records), 7):
        timeline = Timeline(truth.records[first:])
        ticks = list(timeline.ticks)
        seen_of = [(name, tick) for name, tick in truth.losses if tick in timeline.ticks and name in timeline.requests]
        assert losses(timeline) == sorted(seen_of)
        for name, request_timeline in timeline.requests.items():
            kinds, expected = (list(each.kinds(ticks)) for each in (request_timeline, whole.requests[name]))
            if request_timeline.preemptions and "surplus" not in expected:
                at = ticks.index(request_timeline.preemptions[0])
                assert kinds[at:] == expected[at:], "from its loss on all is known"
            for span in phases(request_timeline, timeline, float(len(truth.records))):
                assert span.began < span.ended
        computed = {
            name
            for name, request_timeline in whole.requests.items()
            if request_timeline.cells.keys() & timeline.ticks.keys()
        }
        assert computed <= timeline.requests.keys()
    planning = [last for last, record in enumerate(truth.records, 1) if "Plan:" in "".join(record.answers)]
    for last in planning[::5]:
        tick = max(Timeline(truth.records[:last]).ticks)
        now = {name: kinds[tick] for name, kinds in kinds_of(Timeline(truth.records[:last])).items()}
        assert {name for name, kind in now.items() if kind == "preempted"} <= truth.waiting[tick]


def test_what_other_actors_say_is_no_other_course_and_adds_up_to_the_counts_of_a_session() -> None:
    trace, stats = traced()
    timeline = timeline_of(trace)
    alone = Timeline(record for record in trace.records if record.actor == "scheduler")
    assert kinds_of(alone).items() <= kinds_of(timeline).items()
    assert {timeline.requests[name].end_reason for name in timeline.requests.keys() - alone.requests.keys()} == {
        "rejected"
    }
    assert list(timeline.ticks) == list(range(1, stats.ticks + 1))
    assert sum(request_timeline.generated for request_timeline in timeline.requests.values()) == stats.generated_tokens
    assert len(losses(timeline)) == stats.preemptions


# Ends


def test_each_end_is_at_its_tick_and_surplus_tokens_are_not_its_own(session: Session) -> None:
    expected = expected_tokens(PROMPT, 9)
    with session.trace() as trace:
        session.generate_sync(token_ids=PROMPT, max_tokens=9, stop_token_ids=[expected[4]])
        session.generate_sync(token_ids=[9], max_tokens=3)
        with suppress(RekindleError):
            session.generate_sync("the fake model has no tokenizer")
    stop, length, rejected = (timeline_of(trace).requests[name] for name in range(3))
    assert (stop.end_reason, stop.generated, length.end_reason, length.generated) == ("stop", 5, "length", 3)
    kinds = [kind for kind in kinds_of(timeline_of(trace))[0].values() if kind]
    assert kinds == ["prefill", *["decode"] * 4, "surplus"], "the end is seen a tick late"
    assert stop.last == 5
    assert (rejected.end_reason, rejected.cells) == ("rejected", {})
    assert "\n0 tokens generated" in facts(rejected, timeline_of(trace))


def test_a_stop_string_ends_a_request_where_the_text_is_complete(texts: Session) -> None:
    stop = texts.generate_sync("hi", max_tokens=40).text[5:7]
    with texts.trace() as trace:
        generation = texts.generate_sync("hi", max_tokens=40, stop=stop)
        until_blocking(lambda: any(one.kind == "Stopped" for one in trace.records), "the scheduler hears of the stop")
        stats = texts.stats.scheduler
    (request_timeline,) = timeline_of(trace).requests.values()
    assert (request_timeline.end_reason, request_timeline.generated) == ("stop", len(generation.token_ids))
    assert request_timeline.generated == stats.generated_tokens - 40


def test_a_cancelled_request_is_there_until_then_and_its_last_tokens_are_surplus(
    held_session: Session, settler: FakeSettler
) -> None:
    with held_session.trace() as trace:
        handles = [held_session.submit(token_ids=PROMPT, max_tokens=9) for _ in range(2)]
        until_blocking(lambda: held_session.stats.scheduler.ticks >= 2, "two ticks are in flight")
        for handle in reversed(handles):
            handle.cancel()
        settler.release()
        for handle in handles:
            with suppress(RekindleError):
                handle.result()
    timeline, kinds = timeline_of(trace), kinds_of(timeline_of(trace))
    assert [request_timeline.end_reason for request_timeline in timeline.requests.values()] == [
        "cancelled",
        "cancelled",
    ]
    assert held_session.stats.scheduler.generated_tokens == sum(
        request_timeline.generated for request_timeline in timeline.requests.values()
    )
    assert kinds[0][1] == "prefill"
    assert set(kinds[1].values()) <= {"queued", None}


def test_a_held_prefix_ends_when_it_is_computed_and_what_follows_finds_it(session: Session) -> None:
    with session.trace() as trace, session.prefix_sync(token_ids=[7] * 130) as document:
        document.generate_sync(token_ids=[1, 2], max_tokens=4)
    prefix, request = timeline_of(trace).requests.values()
    assert (prefix.hold, prefix.end_reason, prefix.prompt) == (True, "held", 130)
    assert sum(cell.tokens for cell in prefix.cells.values()) == 128
    assert (request.cached, next(iter(request.cells.values())).start) == (128, 128)


def test_pages_are_copied_in_by_the_tick_that_uses_them_and_a_prefix_that_is_found_whole_ends_with_it() -> None:
    with fake_session(page_size=16, num_pages=8, max_running=2) as session:
        for number in (5, 6, 7, 8):  # until the first pages are in the host tier alone
            session.generate_sync(token_ids=[number] * (64 if number == 5 else 80), max_tokens=2)
        with session.trace() as holding, session.prefix_sync(token_ids=[5] * 64):
            pass
        for number in (6, 7, 8):
            session.generate_sync(token_ids=[number] * 80, max_tokens=2)
        with session.trace() as trace:
            generation = session.generate_sync(token_ids=[5] * 64, max_tokens=2)
    assert generation.cached.host == 48, "the last page is found, and its last block computed again"
    ((request_timeline,), ticks) = (timeline_of(trace).requests.values(), timeline_of(trace).ticks)
    assert ticks[next(iter(request_timeline.cells))].onloaded_pages == 4
    assert "copied in" in trace.timeline().svg
    ((request_timeline,), (tick,)) = (
        timeline_of(holding).requests.values(),
        timeline_of(holding).ticks.values(),
    )
    assert (tick.onloaded_pages, tick.chunks, tick.rows) == (4, (), ())
    assert (request_timeline.end_reason, request_timeline.cells, request_timeline.last) == ("held", {}, tick.number)
    assert "1 request over 1 tick" in holding.timeline().text


def test_a_trace_that_begins_in_the_middle_shows_what_it_saw(held_session: Session, settler: FakeSettler) -> None:
    runs, waits = (held_session.submit(token_ids=PROMPT, max_tokens=most) for most in (9, 4))
    until_blocking(
        lambda: (held_session.stats.scheduler.ticks, held_session.stats.scheduler.waiting) == (2, 1),
        "one runs and one waits",
    )
    with held_session.trace() as trace:
        settler.release()
        runs.result()
        waits.result()
    timeline, kinds = timeline_of(trace), kinds_of(timeline_of(trace))
    assert min(timeline.ticks) > 2
    assert timeline.requests[0].prompt is None
    assert set(kinds[0].values()) <= {"decode", None}
    assert next(iter(kinds[1].values())) == "queued", "it left the waiting queue in the trace, so it was there before"
    drawing, generated = trace.timeline(), timeline.requests[0].generated
    assert 0 < generated < 9
    assert f"? + ≥{generated}, length" in drawing.text
    assert f"at least {generated} tokens generated" in drawing.svg


# By hand

MARK = f'stroke="rgb({RED})" stroke-width="2.5"'
"""The mark of a loss in a drawing."""
DECODED = [fact for tick in range(2, 6) for fact in (PlanRecord(tick, (), (1,), 0, ()), TokensRecord(tick, (1,)))]
"""Four ticks, each with a token for request 1."""


def planned(tick: int, *rows: int, chunks: tuple[ChunkRecord, ...] = (), preempted: tuple[int, ...] = ()) -> PlanRecord:
    return PlanRecord(tick, chunks, rows, 0, preempted)


def letters(*facts: Fact) -> dict[int, str]:
    """Return the letters of each request."""
    return {
        name: "".join(LETTERS[kind] if kind else " " for kind in kinds.values())
        for name, kinds in kinds_of(Timeline(recorded(*facts))).items()
    }


def test_tokens_after_a_stop_string_are_surplus_though_they_were_given() -> None:
    first = (JoinRecord(1, 3, False), planned(1, chunks=(ChunkRecord(1, 0, 3, True),)), TokensRecord(1, (1,)))
    end = (StopRecord(1, 3), EndRecord(1, "stop", ""))
    assert letters(*first, *DECODED, *end, end[-1]) == {1: "Pddss"}
    (request_timeline,) = Timeline(recorded(*first, *DECODED, *end, end[-1])).requests.values()
    assert (request_timeline.generated, request_timeline.last, request_timeline.end_reason) == (3, 3, "stop")
    (request_timeline,) = Timeline(recorded(*DECODED, *end)).requests.values()
    assert (request_timeline.first_tick, request_timeline.generated) == (None, 3), (
        "of one that began before no more are said to be its own"
    )


def test_of_some_of_the_ticks_what_happened_in_the_others_is_known_too() -> None:
    first = (JoinRecord(1, 3, False), planned(1, chunks=(ChunkRecord(1, 0, 3, True),)), TokensRecord(1, (1,)))
    request_timeline = Timeline(recorded(*first, *(planned(tick, 2) for tick in range(2, 10)))).requests[1]
    assert list(request_timeline.kinds(range(0, 10, 2))) == ["queued", *["idle"] * 4]


def test_one_that_ran_since_before_the_trace_waits_from_its_loss_on() -> None:
    again = planned(4, chunks=(ChunkRecord(7, 0, 40, True),))
    assert letters(planned(1, 3), planned(2, 3, preempted=(7,)), planned(3, 3), again) == {3: "ddd-", 7: " xxP"}


def test_one_that_is_cancelled_while_it_waits_again_is_there_until_then() -> None:
    facts = (
        planned(1, 3, 7),
        planned(2, 3, preempted=(7,)),
        planned(3, 3),
        EndRecord(7, "cancelled", ""),
        planned(4, 3),
    )
    assert letters(*facts) == {3: "dddd", 7: "sxx "}
    assert draw(Timeline(recorded(*facts))).svg.count(MARK) == 1


def test_one_whose_last_token_comes_after_its_loss_ended_before_that() -> None:
    facts = (
        planned(1, 3, 7),
        planned(2, 3, preempted=(7,)),
        TokensRecord(1, (3, 7)),
        EndRecord(7, "stop", ""),
        planned(3, 3),
    )
    assert letters(*facts) == {3: "ddd", 7: "d  "}
    timeline = Timeline(recorded(*facts))
    assert timeline.requests[7].preemptions == [2]
    assert MARK not in draw(timeline).svg
    spans = [(span.activity, span.began, span.ended) for span in phases(timeline.requests[7], timeline, 9.0)]
    assert spans == [("decode", 0.5, 1.5), ("preempted", 1.5, 3.5)], "in seconds it did wait"


def test_a_prefix_that_lost_its_pages_and_is_found_whole_is_held_with_the_plan_that_finds_it() -> None:
    first = planned(1, chunks=(ChunkRecord(7, 0, 16, False),))
    facts = (planned(0, 3), JoinRecord(7, 32, True), first, planned(2, 3, preempted=(7,)), planned(3, 3))
    assert letters(*facts, EndRecord(7, "held", "")) == {3: "d-dd", 7: " Pxx"}


def test_one_that_ended_before_the_trace_is_not_in_it_though_its_loss_is_told_late() -> None:
    assert letters(planned(5, 3, preempted=(7,)), planned(6, 3)) == {3: "dd"}


def test_a_loss_and_pages_again_in_one_tick_is_no_wait() -> None:
    both = planned(2, chunks=(ChunkRecord(7, 16, 4, True),), preempted=(7,))
    facts = (
        JoinRecord(7, 16, False),
        planned(1, chunks=(ChunkRecord(7, 0, 16, True),)),
        both,
        planned(3, 3),
        planned(4, 3, 7),
    )
    assert letters(*facts) == {3: "  dd", 7: "PP-d"}


def test_every_kind_has_a_letter_of_its_own_and_a_meaning() -> None:
    assert len({*LETTERS.values()}) == len(LETTERS)
    assert {*LETTERS} == {*MEANINGS} == {*get_args(Kind)}
