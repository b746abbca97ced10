"""The scheduler plans the right work for each request at the right time, message by message."""

from dataclasses import replace
from itertools import pairwise

import pytest

from rekindle.core.messages import Advanced, Cancel, Plan, Row, Stopped, Withdraw
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.scheduler.requests.aspects.rope_rule import RopeLengthRule
from rekindle.core.scheduler.requests.state import RequestState
from rekindle.testing import ByHand, FakeGrammar, expected_tokens, fake_limits
from tests.unit.silences import Silences


def rows_of(plan: Plan) -> list[int]:
    return [row.request_id for row in plan.rows]


def chunks_of(plan: Plan) -> list[tuple[int, int, int]]:
    return [(chunk.request_id, chunk.start, len(chunk.tokens)) for chunk in plan.chunks]


PROMPT = list(range(40))


def test_a_prompt_is_computed_in_chunks_and_only_the_last_one_samples() -> None:
    engine = ByHand(page_size=32, prefill_chunk=16, overlap=False)
    (first,) = engine.admit(7, PROMPT)
    (second,), (third,), (fourth,) = engine.settle(), engine.settle(), engine.settle()
    assert [chunks_of(plan) for plan in (first, second, third)] == [[(7, 0, 16)], [(7, 16, 16)], [(7, 32, 8)]]
    assert [plan.chunks[0].completes is not None for plan in (first, second, third)] == [False, False, True]
    assert [plan.chunks[0].pages for plan in (first, second, third)] == [(1,), (1,), (2,)]
    assert first.chunks[0].tokens == tuple(PROMPT[:16])
    assert fourth == Plan(4, (), (Row(7, 0, 2),))


def test_tokens_are_those_of_the_model_and_end_with_max_tokens() -> None:
    engine = ByHand()
    engine.admit(0, [3, 1, 4], max_tokens=5)
    engine.drain()
    assert engine.tokens[0] == list(expected_tokens([3, 1, 4], 5))
    assert engine.ends == {0: "length"}
    assert engine.started == [0]


@pytest.mark.parametrize("overlap", [True, False])
def test_an_end_token_ends_the_request_and_what_was_sampled_after_it_is_dropped(overlap: bool) -> None:
    alone = expected_tokens(PROMPT, 10)
    engine = ByHand(overlap=overlap)
    engine.admit(0, PROMPT, max_tokens=10, end_ids=(alone[3],))
    engine.drain()
    assert engine.tokens[0] == list(alone[:4])
    assert engine.ends == {0: "stop"}
    assert engine.scheduler.stats.generated_tokens == 4


def test_a_row_is_made_anew_only_for_another_page() -> None:
    engine = ByHand(page_size=16, overlap=False)
    engine.admit(0, PROMPT, max_tokens=20)
    rows = []
    while engine.in_flight:
        rows += [row for plan in engine.settle() for row in plan.rows]
    assert len(rows) == 19
    assert len({id(row) for row in rows}) == len({row.page for row in rows}) == 2


def test_a_request_ends_where_the_context_ends() -> None:
    engine = ByHand(page_size=16, max_context=20)
    engine.admit(0, PROMPT[:15], max_tokens=100)
    engine.drain()
    assert len(engine.tokens[0]) == 5
    assert engine.ends == {0: "length"}


def test_no_tick_is_planned_for_a_token_that_is_known_to_be_surplus() -> None:
    engine = ByHand(overlap=True)
    engine.admit(0, PROMPT, max_tokens=3)
    engine.drain()
    assert engine.scheduler.stats.ticks == 3


@pytest.mark.parametrize(("overlap", "depth"), [(True, 2), (False, 1)])
def test_as_many_ticks_are_in_flight_as_overlap_allows(overlap: bool, depth: int) -> None:
    engine = ByHand(overlap=overlap)
    engine.admit(0, PROMPT, max_tokens=20)
    for _ in range(10):
        assert len(engine.in_flight) == depth
        engine.settle()


def test_several_prompts_share_a_tick_within_its_token_budget() -> None:
    engine = ByHand(max_prefill_tokens=64, overlap=False, ticks="prefill-first")
    engine.admit(9, [1])  # this request keeps the device busy while the others come
    for request_id in range(3):
        engine.admit(request_id, PROMPT[:20])
    (plan,) = engine.settle()
    assert chunks_of(plan) == [(0, 0, 20), (1, 0, 20)], "20 tokens take two query blocks of 16 each"
    (plan,) = engine.settle()
    assert chunks_of(plan) == [(2, 0, 20)]


def test_a_prompt_that_is_under_way_goes_before_new_ones() -> None:
    engine = ByHand(max_prefill_tokens=32, overlap=False)
    (first,) = engine.admit(0, PROMPT)
    engine.admit(1, PROMPT)
    (second,) = engine.settle()
    assert chunks_of(first) == [(0, 0, 32)]
    assert chunks_of(second) == [(0, 32, 8), (1, 0, 16)]


def test_prefill_first_gives_prompts_a_tick_of_their_own() -> None:
    engine = ByHand(ticks="prefill-first", overlap=False)
    engine.admit(0, PROMPT, max_tokens=9)
    engine.admit(1, PROMPT)
    (second,) = engine.settle()
    assert (chunks_of(second), rows_of(second)) == ([(1, 0, 40)], [])
    (third,) = engine.settle()
    assert (chunks_of(third), sorted(rows_of(third))) == ([], [0, 1])


def test_alternate_ticks_of_prompts_and_of_rows_take_turns_as_long_as_there_are_both() -> None:
    engine = ByHand(prefill_chunk=16, overlap=False)
    plans = engine.admit(0, PROMPT[:5], max_tokens=9)
    engine.admit(1, PROMPT, max_tokens=9)
    for _ in range(9):
        plans += engine.settle()
    assert [(chunks_of(plan), sorted(rows_of(plan))) for plan in plans] == [
        ([(0, 0, 5)], []),
        ([], [0]),
        ([(1, 0, 16)], []),
        ([], [0]),
        ([(1, 16, 16)], []),
        ([], [0]),
        ([(1, 32, 8)], []),
        ([], [0, 1]),
        ([], [0, 1]),
        ([], [0, 1]),
    ]


def test_alternate_a_tick_of_prompts_and_one_of_rows_are_in_flight_at_once() -> None:
    engine = ByHand(prefill_chunk=16)
    engine.admit(0, PROMPT[:5], max_tokens=30)
    engine.settle()
    engine.admit(1, PROMPT * 4, max_tokens=2)
    flights = []
    for _ in range(16):
        engine.settle()
        flights.append([[each.request_id for each in tick.sample_rows] for tick in engine.in_flight])
    assert flights == [[[0], []], [[], [0]]] * 8, "a chunk that is not the last samples nothing"


def test_alternate_nobody_who_decodes_is_passed_over_twice_however_prompts_keep_coming() -> None:
    engine, silent = ByHand(prefill_chunk=16, max_prefill_tokens=32), Silences()
    for request_id in range(40):
        silent.see(engine.admit(request_id, [request_id] * (1 + 37 * request_id % 90), max_tokens=1 + request_id % 13))
        silent.see(engine.settle())
    while engine.in_flight:
        silent.see(engine.settle())
    assert silent.longest == 1
    assert len(engine.ends) == 40


def test_alternate_a_tick_that_has_nothing_to_do_is_nobodys_turn() -> None:
    engine = ByHand(max_running=2, overlap=False)
    engine.admit(0, [5, 6, 7], max_tokens=9, grammar=FakeGrammar(1, 90))
    engine.admit(1, [8, 9], max_tokens=9, grammar=FakeGrammar(2, 2))
    engine.admit(2, [4])  # this one waits for a slot
    plans: list[Plan] = []
    while not (engine.advancing and len(engine.advancing[0].tokens) == 2):
        plans += engine.settle_advance() if engine.advancing else engine.settle()
    assert sorted(rows_of(plans[-1])) == [0, 1]
    assert engine.say(Advanced((), late=(0, 1))) == [], "what may follow is not known yet"
    (plan,) = engine.settle_advance()
    assert engine.ends == {1: "stop"}
    assert (chunks_of(plan), rows_of(plan)) == ([(2, 0, 1)], []), "the last tick had rows"


def test_alternate_needs_no_more_programs_than_prompts_first() -> None:
    assert fake_limits(ticks="alternate").all_buckets() == fake_limits(ticks="prefill-first").all_buckets()
    assert fake_limits().ticks == "alternate"


def test_combined_ticks_hold_prompts_and_rows() -> None:
    engine = ByHand(ticks="combined", overlap=False)
    engine.admit(0, PROMPT, max_tokens=9)
    engine.admit(1, PROMPT)
    (second,) = engine.settle()
    assert (chunks_of(second), rows_of(second)) == ([(1, 0, 40)], [0])


def test_rows_of_similar_context_are_side_by_side() -> None:
    engine = ByHand(overlap=False, ticks="prefill-first")
    for request_id, length in enumerate((30, 10, 40, 20)):
        engine.admit(request_id, PROMPT[:length], max_tokens=9)
    engine.settle()
    (plan,) = engine.settle()
    assert rows_of(plan) == [1, 3, 0, 2]


def test_who_finds_no_slot_waits_in_order() -> None:
    engine = ByHand(max_running=1, overlap=False)
    for request_id in range(3):
        engine.admit(request_id, PROMPT, max_tokens=2)
    assert engine.started == [0]
    assert engine.scheduler.stats.waiting == 2
    engine.drain()
    assert engine.started == list(engine.ends) == [0, 1, 2]


@pytest.mark.parametrize(
    ("tokens", "started", "free"),
    [(20, [0, 1], 1), (32, [0, 1], 1), (33, [0], 2)],
    ids=["room", "all there is", "one token more"],
)
def test_who_finds_no_pages_waits_and_a_page_is_left_for_each_that_runs(
    tokens: int, started: list[int], free: int
) -> None:
    engine = ByHand(page_size=16, num_pages=6, overlap=False, ticks="prefill-first")
    engine.admit(0, PROMPT[:32], max_tokens=3)  # this takes 2 of 5 pages, and soon one more
    engine.admit(1, [9] * tokens, max_tokens=1)
    engine.settle()
    assert engine.started == started
    assert engine.scheduler.stats.free_pages == free
    engine.drain()
    assert engine.ends == {0: "length", 1: "length"}
    assert engine.scheduler.stats.preemptions == 0


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_no_admission_takes_the_next_page_of_one_that_runs_however_late_it_comes(pages: int) -> None:
    for late in range(25):
        engine = ByHand(page_size=16, num_pages=6, overlap=False, ticks="prefill-first", host_cache_bytes=0)
        plans = engine.admit(0, PROMPT[:25], max_tokens=30)
        for _ in range(late):
            plans += engine.settle()
        plans += engine.admit(1, [9] * (16 * pages - 1), max_tokens=9)
        while engine.in_flight:
            plans += engine.settle()
        for before, after in pairwise(plans):
            # One whose pages are full needs one more itself, as one does that gave its pages back.
            if before.chunks and all((chunk.start + len(chunk.tokens)) % 16 for chunk in before.chunks):
                assert not after.preempted, f"{late} ticks after the first"
        assert len(engine.ends) == 2


def test_when_pages_run_out_the_last_one_gives_its_own_back_and_its_tokens_do_not_change() -> None:
    engine = ByHand(page_size=16, num_pages=5, overlap=False)
    for request_id in range(2):
        engine.admit(request_id, [request_id] * 15, max_tokens=40)
    engine.drain()
    assert engine.scheduler.stats.preemptions > 0
    assert list(engine.ends) == [0, 1], "the first is never the one to give back"
    for request_id in range(2):
        assert engine.tokens[request_id] == list(expected_tokens([request_id] * 15, 40))
    assert engine.started == [0, 1], "it starts again without saying so"


def test_those_that_gave_pages_back_keep_their_order() -> None:
    engine = ByHand(page_size=16, num_pages=7, overlap=False, host_cache_bytes=0)
    for request_id in range(3):
        engine.admit(request_id, [request_id] * 15, max_tokens=60)
    engine.drain()
    assert engine.scheduler.stats.preemptions >= 2
    assert list(engine.ends) == [0, 1, 2]


@pytest.mark.parametrize(("num_pages", "run", "preempted"), [(5, [0], (1,)), (9, [0, 1], (3, 2))])
def test_the_plan_that_pages_were_given_back_for_says_whose(
    num_pages: int, run: list[int], preempted: tuple[int, ...]
) -> None:
    engine = ByHand(page_size=16, num_pages=num_pages, overlap=False, ticks="prefill-first")
    for request_id in range(len(run) + len(preempted)):
        engine.admit(request_id, [request_id] * 15, max_tokens=40)
    plans: list[Plan] = []
    while not engine.scheduler.stats.preemptions:
        assert not any(plan.preempted for plan in plans)
        plans = engine.settle()
    assert [(plan.preempted, rows_of(plan)) for plan in plans] == [(preempted, run)]


@pytest.mark.parametrize("waits", [True, False])
def test_pages_given_back_for_nothing_are_told_of_with_the_next_plan(waits: bool) -> None:
    engine = ByHand(page_size=16, num_pages=4, overlap=waits)
    engine.admit(0, PROMPT[:32], hold=True)
    engine.drain()
    plans = engine.admit(1, [9] * 15, max_tokens=30)
    while not engine.scheduler.stats.preemptions:
        plans = engine.settle()
    assert not any(plan.preempted for plan in plans)
    assert (1 in engine.rejected) != waits, "it is turned away once nothing is in flight"
    plans = engine.say(Withdraw(0))
    if not waits:
        plans = engine.admit(2, [9])
    while not plans:
        plans = engine.settle()
    assert [plan.preempted for plan in plans] == [(1,), *[()] * (len(plans) - 1)]
    assert [chunk.request_id for chunk in plans[0].chunks] == [1 if waits else 2]


def test_one_request_may_use_every_page() -> None:
    engine = ByHand(page_size=16, num_pages=4)
    engine.admit(0, PROMPT[:10], max_tokens=100)
    engine.drain()
    assert len(engine.tokens[0]) == 38
    assert engine.scheduler.stats.preemptions == 0


@pytest.mark.parametrize("ticks", range(6))
def test_a_withdrawn_request_ends_now_wherever_it_is(ticks: int) -> None:
    engine = ByHand(prefill_chunk=16, max_running=1)
    engine.admit(0, PROMPT, max_tokens=20)
    engine.admit(1, PROMPT)
    for _ in range(ticks):
        engine.settle()
    engine.say(Withdraw(0))
    assert engine.ends == {0: "cancelled"}
    assert engine.tokens[0] == list(expected_tokens(PROMPT, 20)[: max(0, ticks - 2)])
    engine.drain()
    assert engine.ends == {0: "cancelled", 1: "length"}
    assert engine.tokens[1] == list(expected_tokens(PROMPT, 4))


def test_one_that_waits_can_be_withdrawn_and_was_never_started() -> None:
    engine = ByHand(max_running=1)
    engine.admit(0, PROMPT)
    engine.admit(1, PROMPT)
    engine.say(Withdraw(1))
    engine.drain()
    assert engine.ends == {1: "cancelled", 0: "length"}
    assert engine.started == [0]


def test_withdrawing_what_ended_or_never_was_changes_nothing() -> None:
    engine = ByHand()
    engine.admit(0, PROMPT)
    engine.drain()
    before = engine.scheduler.stats
    assert engine.say(Withdraw(0)) == engine.say(Withdraw(99)) == []
    assert engine.scheduler.stats == before
    assert engine.ends == {0: "length"}


def test_a_slot_is_used_again_while_a_tick_for_its_last_holder_is_in_flight() -> None:
    engine = ByHand(max_running=1, page_size=16, num_pages=4)
    engine.admit(0, PROMPT, max_tokens=8)
    engine.admit(1, PROMPT[::-1], max_tokens=8)
    engine.settle()
    engine.say(Withdraw(0))
    assert len(engine.in_flight) >= 1, "a tick that wrote the slot and its pages is not settled"
    engine.drain()
    assert engine.tokens[1] == list(expected_tokens(PROMPT[::-1], 8))


def test_two_runs_over_the_same_messages_make_the_same_plans() -> None:
    def run() -> list[Plan]:
        engine, plans = ByHand(page_size=16, num_pages=8, max_running=4), []
        for request_id in range(6):
            plans += engine.admit(request_id, [request_id] * 20, max_tokens=30)
            plans += engine.settle()
        while engine.in_flight:
            plans += engine.settle()
        return plans

    assert run() == run()


def test_counters_mean_what_their_names_say() -> None:
    engine = ByHand(page_size=16, num_pages=11, max_running=2, overlap=False, prefix_cache=False, ticks="prefill-first")
    for request_id in range(3):
        engine.admit(request_id, PROMPT[:20], max_tokens=2)
    stats = engine.scheduler.stats
    assert (stats.running, stats.waiting, stats.ended, stats.ticks) == (1, 2, 0, 1)
    engine.settle()
    stats = engine.scheduler.stats
    assert (stats.running, stats.waiting, stats.pages, stats.free_pages) == (2, 1, 10, 6)
    engine.drain()
    stats = engine.scheduler.stats
    assert (stats.running, stats.waiting, stats.free_pages, stats.ended) == (0, 0, 10, 3)
    assert (stats.computed_tokens, stats.generated_tokens, stats.preemptions) == (60, 6, 0)


@pytest.mark.parametrize(("stopped", "count"), [(1, 0), (2, 0), (3, 1), (4, 2)])
def test_what_comes_after_a_stop_string_is_not_counted_and_what_was_given_never_was(stopped: int, count: int) -> None:
    engine = ByHand(overlap=False)
    engine.admit(0, PROMPT, max_tokens=9, begun=[7, 8])
    engine.settle()
    engine.settle()
    assert engine.scheduler.stats.generated_tokens == 2
    engine.say(Stopped(0, stopped))
    assert engine.ends == {0: "stop"}
    assert engine.scheduler.stats.generated_tokens == count


def test_tokens_turn_otherwise_from_the_one_on_with_which_a_request_is_long() -> None:
    by_place, by_prompt, never = (
        RopeLengthRule(8, grows=False),
        RopeLengthRule(8, grows=True),
        RopeLengthRule(None, grows=False),
    )
    assert [by_place.length(4, tokens) for tokens in (7, 8, 9)] == [0, 0, 9]
    assert [by_place.outgrown(computed) for computed in (7, 8, 9)] == [False, True, False]
    assert [by_prompt.length(prompt, 20) for prompt in (8, 9)] == [0, 9]
    assert not by_prompt.outgrown(8)
    assert (never.length(9, 20), never.outgrown(8)) == (0, False)
    assert [by_place.namespace("", length) for length in (0, 9, 10)] == ["", "\0long", "\0long"]
    assert [by_prompt.namespace("", length) for length in (0, 9, 10)] == ["", "\x009", "\x0010"]


@pytest.mark.parametrize(("forced", "stays"), [(4, True), (5, False), (9, False)])
def test_forced_tokens_turn_as_those_before_unless_the_request_is_long_with_them(forced: int, stays: bool) -> None:
    limits = replace(fake_limits(), long_from=8)
    state = RequestState.of(Request(0, (1, 2, 3, 4), SamplingParams(), frozenset(), 32), limits)
    assert state.jump([7] * forced) is stays
    assert state.tokens == [1, 2, 3, 4, *[7] * forced]


def test_another_actors_message_is_refused() -> None:
    with pytest.raises(TypeError, match="the scheduler takes no Cancel, got Cancel"):
        ByHand().say(Cancel(0))
