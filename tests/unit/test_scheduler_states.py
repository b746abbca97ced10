"""A model whose layers keep a state: copies of states are made where they are of use, and found by later requests."""

from collections.abc import Sequence
from typing import Unpack

import pytest

import rekindle
from rekindle.core.config import SettingsOptions
from rekindle.core.messages import Plan
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
    by_hand = engine(overlap=False)
    plans = by_hand.admit(0, DOCUMENT[:104], 1)
    while by_hand.in_flight:
        plans += by_hand.settle()
    assert chunks(plans) == [(0, 32), (32, 64), (64, 96), (96, 104)]
    by_hand.drain()
    assert by_hand.scheduler.stats.host_states == 3


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
    by_hand = engine()
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
    assert stats.host_states <= 4, "one at the prompt's last page, one at the answer's, of each"
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


def test_without_room_for_a_state_all_is_computed_again_and_right() -> None:
    by_hand = engine(host_cache_bytes=128)
    for request_id in range(2):
        answer(by_hand, request_id, DOCUMENT[:70])
    assert by_hand.scheduler.stats.computed_tokens == 140


def test_devices_for_prompts_alone_are_refused_by_name() -> None:
    with pytest.raises(rekindle.ConfigError, match="prefill and decode must be None for this model"):
        fake_limits(FAKE_STATE_MODEL, prefill=["cpu:0"], decode=["cpu:1"])


def test_several_steps_are_refused_by_name() -> None:
    with pytest.raises(rekindle.ConfigError, match="decode_steps must be 1 for this model, whose layers keep a state"):
        fake_limits(FAKE_STATE_MODEL, decode_steps=4)
