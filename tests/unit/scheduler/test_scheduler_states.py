"""A model whose layers keep a state: copies of states are made where they are of use, and found by later requests."""

from collections.abc import Sequence
from typing import Unpack

import pytest

import rekindle
from rekindle.core.messages import Plan, SaveCache, Stopped
from rekindle.settings.engine import SettingsOptions
from rekindle.testing import FAKE_STATE_MODEL, VOCAB_SIZE, ByHand, expected_tokens, fake_limits

PAGE = 16
DOCUMENT = [(7 * place) % VOCAB_SIZE for place in range(20 * PAGE)]


def engine(**settings: Unpack[SettingsOptions]) -> ByHand:
    defaults: SettingsOptions = {"page_size": PAGE, "num_pages": 65, "max_running": 16, "max_context": 32 * PAGE}
    return ByHand(model=FAKE_STATE_MODEL, **defaults | settings)


def computed(by_hand: ByHand) -> int:
    """Return the number of computed prompt tokens so far."""
    return by_hand.scheduler.stats.computed_tokens


def chunks(plans: Sequence[Plan]) -> list[tuple[int, int]]:
    """Return the first and the last position of each chunk."""
    return [(chunk.start, chunk.start + len(chunk.tokens)) for plan in plans for chunk in plan.chunks]


def answer(by_hand: ByHand, request_id: int, prompt: Sequence[int], max_tokens: int = 4) -> tuple[int, ...]:
    by_hand.admit(request_id, prompt, max_tokens)
    by_hand.drain()
    tokens = tuple(by_hand.tokens[request_id])
    assert tokens == expected_tokens(prompt, max_tokens)
    return tokens


def test_a_state_is_as_large_as_two_pages() -> None:
    assert fake_limits(FAKE_STATE_MODEL, page_size=PAGE).pool.state_pages == 2


def test_the_same_prompt_again_computes_less_than_a_page() -> None:
    by_hand = engine()
    for request_id, prompt in enumerate([DOCUMENT[:72], DOCUMENT[:72], DOCUMENT[:64], DOCUMENT[:64]]):
        before = computed(by_hand)
        answer(by_hand, request_id, prompt)
        if request_id in (1, 3):
            assert computed(by_hand) - before <= PAGE, "the last token is computed, and those since the last page"


def test_a_long_prompt_is_cut_so_that_states_take_no_more_room_than_pages() -> None:
    by_hand = engine(overlap=False, prefill_chunk=16)
    plans = by_hand.admit(0, DOCUMENT[:104], 1)
    while by_hand.in_flight:
        plans += by_hand.settle()
    assert chunks(plans) == [(0, 16), (16, 32), (32, 48), (48, 64), (64, 80), (80, 96), (96, 104)]
    by_hand.drain()
    assert by_hand.scheduler.stats.host_states == 3, "after each second page"


def test_copies_within_a_prompt_add_no_ticks() -> None:
    by_hand = engine(overlap=False, prefill_chunk=48, max_prefill_tokens=48)
    plans = by_hand.admit(0, DOCUMENT[:180], 1)
    while by_hand.in_flight:
        plans += by_hand.settle()
    assert chunks(plans) == [(0, 48), (48, 96), (96, 144), (144, 176), (176, 180)], "the last page of the prompt alone"


def test_requests_that_share_a_beginning_compute_it_once() -> None:
    by_hand = engine()
    shared = DOCUMENT[: 5 * PAGE]
    prompts = [[*shared, *[(request_id + 3) % VOCAB_SIZE] * 10] for request_id in range(16)]
    for request_id, prompt in enumerate(prompts):
        by_hand.admit(request_id, prompt, 3)
    by_hand.drain()
    assert computed(by_hand) == 5 * PAGE + 16 * 10
    for request_id, prompt in enumerate(prompts):
        assert tuple(by_hand.tokens[request_id]) == expected_tokens(prompt, 3)


def test_a_request_that_leaves_a_cached_prompt_makes_a_state_where_it_leaves() -> None:
    by_hand = engine(prefill_chunk=16)
    answer(by_hand, 0, DOCUMENT[: 4 * PAGE + 8])  # states after 2 and 4 pages
    answer(by_hand, 1, [*DOCUMENT[: 3 * PAGE], *[1] * 20])
    assert by_hand.scheduler.stats.stateless_tokens == PAGE, "the third page has no state"
    before = computed(by_hand)
    answer(by_hand, 2, [*DOCUMENT[: 3 * PAGE], *[2] * 20])
    assert computed(by_hand) - before == 20
    assert by_hand.scheduler.stats.stateless_tokens == PAGE


def test_the_next_turn_of_a_chat_begins_at_the_end_of_the_answer() -> None:
    by_hand = engine()
    prompt, computed_tokens = DOCUMENT[:40], []
    for turn in range(6):
        before = computed(by_hand)
        tokens = answer(by_hand, turn, prompt, 21)
        computed_tokens.append(computed(by_hand) - before)
        prompt = [*prompt, *tokens, *[turn] * 5]
    # The newest token of an answer is never computed, and then up to a page since the last state.
    assert max(computed_tokens[1:]) <= 1 + 5 + PAGE


def test_a_decoding_request_keeps_one_copy_and_a_preempted_one_loses_less_than_a_page() -> None:
    by_hand = engine(num_pages=9, max_running=2, max_context=6 * PAGE)
    by_hand.admit(0, DOCUMENT[:20], 60)
    by_hand.admit(1, DOCUMENT[100:120], 60)
    by_hand.drain()
    stats = by_hand.scheduler.stats
    assert stats.preemptions
    assert stats.recomputed_tokens <= stats.preemptions * (PAGE + 1)
    assert stats.host_states <= 4 + stats.preemptions, "one at the prompt's last page, one at the answer's, of each"
    assert not [node for node in by_hand.scheduler.look(lambda trees: list(trees[0].walk())) if node.is_provisional]
    for request_id, first in enumerate((0, 100)):
        assert tuple(by_hand.tokens[request_id]) == expected_tokens(DOCUMENT[first : first + 20], 60)


def test_a_held_prefix_keeps_the_state_of_its_end() -> None:
    by_hand = engine(host_cache_bytes=128 * 8)
    by_hand.admit(0, DOCUMENT[: 3 * PAGE], hold=True)
    by_hand.drain()
    for request_id in range(1, 6):  # enough to push all other states out
        answer(by_hand, request_id, DOCUMENT[request_id * 31 : request_id * 31 + 40])
    before = computed(by_hand)
    answer(by_hand, 9, [*DOCUMENT[: 3 * PAGE], 1, 2, 3])
    assert computed(by_hand) - before == 3


def test_states_come_back_from_disk() -> None:
    first = engine()
    answer(first, 0, DOCUMENT[:70])
    again = ByHand(
        first.disk_tier, FAKE_STATE_MODEL, page_size=PAGE, num_pages=65, max_running=16, max_context=32 * PAGE
    )
    answer(again, 0, DOCUMENT[:70])
    stats = again.scheduler.stats
    assert (stats.disk_hit_tokens, stats.computed_tokens) == (64, 6)


@pytest.mark.parametrize("index", range(4))
def test_a_state_whose_pages_leave_the_disk_while_they_are_fetched_is_not_used(index: int) -> None:
    first = engine()
    answer(first, 0, DOCUMENT[:70])
    again = ByHand(
        first.disk_tier, FAKE_STATE_MODEL, page_size=PAGE, num_pages=65, max_running=4, max_context=32 * PAGE
    )
    again.admit(7, [3] * 40, 60)
    again.settle()
    again.say(SaveCache(1))
    while again.offloading:
        again.settle_offload()
    again.admit(0, DOCUMENT[:70], 4)
    while not again.fetching:
        again.settle()
    again.settle_write(
        pruned=[page.record for page in first.disk_tier.stored() if not page.is_state][index : index + 1]
    )
    again.drain()
    assert tuple(again.tokens[0]) == expected_tokens(DOCUMENT[:70], 4)


def test_a_long_answer_leaves_one_state_on_disk() -> None:
    by_hand = engine(max_context=64 * PAGE)
    answer(by_hand, 0, DOCUMENT[:20], 500)
    by_hand.drain()
    assert by_hand.scheduler.stats.disk_states == 2, "that of its prompt, and that of its end"


def test_a_stop_string_over_the_end_of_a_page_leaves_the_state_before() -> None:
    by_hand = engine()
    by_hand.admit(0, DOCUMENT[:20], 200)
    while len(by_hand.tokens[0]) < 80:
        by_hand.settle()
        while by_hand.offloading:
            by_hand.settle_offload()
    by_hand.say(Stopped(0, 74))  # four tokens after position 94, of which the last are on the next page
    by_hand.drain()
    before = computed(by_hand)
    answer(by_hand, 1, [*DOCUMENT[:20], *by_hand.tokens[0][:74], 1, 2, 3])
    assert computed(by_hand) - before <= PAGE + 3


def test_a_request_does_not_wait_for_the_state_of_one_without_room() -> None:
    by_hand = engine(max_running=8, max_context=64 * PAGE)
    answer(by_hand, 0, DOCUMENT[: 2 * PAGE + 3])
    by_hand.admit(1, [5] * (35 * PAGE), 300)
    for _ in range(8):
        by_hand.settle()
        while by_hand.offloading:
            by_hand.settle_offload()
    shared = [*DOCUMENT[: 2 * PAGE], *[8] * (6 * PAGE)]
    by_hand.admit(2, [*shared, *[1] * (22 * PAGE)], 4)  # 30 pages, which are not there
    while by_hand.fetching:
        by_hand.settle_fetch()
    by_hand.admit(3, shared[: 5 * PAGE], 4, priority=-5)
    for _ in range(12):
        by_hand.settle()
        while by_hand.offloading:
            by_hand.settle_offload()
        while by_hand.fetching:
            by_hand.settle_fetch()
    assert 3 in by_hand.ends
    assert 1 not in by_hand.ends


def test_the_last_state_of_a_request_belongs_to_the_group_that_made_it() -> None:
    by_hand = engine(data=2, num_pages=9, max_running=2, max_context=6 * PAGE)
    for request_id in range(6):
        by_hand.admit(request_id, DOCUMENT[request_id * 20 : request_id * 20 + 20], 60)
    by_hand.drain()
    assert by_hand.scheduler.stats.preemptions


def test_without_room_for_a_state_all_is_computed_again_and_right() -> None:
    by_hand = engine(host_cache_bytes=128)
    for request_id in range(2):
        answer(by_hand, request_id, DOCUMENT[:70])
    assert by_hand.scheduler.stats.computed_tokens == 140


def test_devices_for_prompts_alone_are_refused_by_name() -> None:
    with pytest.raises(rekindle.ConfigError, match="prefill and decode must be None for this model"):
        fake_limits(FAKE_STATE_MODEL, prefill=["cpu:0"], decode=["cpu:1"])
