"""Parameters are checked against the model and against each other: draws, bans, and the limits of the programs."""

import math
from typing import Any

import pytest

from rekindle.assembly.preparing.request_checks import check_bans
from rekindle.core.buckets import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.accepted import check_draws
from rekindle.core.request.params import SamplingParams, draws
from rekindle.core.request.request import Request

VOCAB_SIZE = 10
NOTHING = frozenset[int]()


# Draws


def test_the_first_draw_is_that_of_the_seed_and_the_others_repeat() -> None:
    params = SamplingParams(seed=7, top_k=3)
    first, *others = draws(params, 5)
    assert first == params
    assert len({draw.seed for draw in (first, *others)}) == 5
    assert all(draw.top_k == 3 for draw in others)
    assert draws(params, 5) == [first, *others]
    assert draws(params, 3) == [first, *others[:2]], "a draw does not depend on how many there are"
    assert draws(params, 1) == [params]


def test_draws_of_neighbouring_seeds_have_nothing_in_common_and_are_seeds() -> None:
    seeds = [draw.seed for seed in (0, 1, 2, 2**64 - 1) for draw in draws(SamplingParams(seed=seed), 500)]
    assert len(set(seeds)) == len(seeds)
    assert all(SamplingParams.from_options({"seed": seed}).seed == seed for seed in seeds)
    assert max(filter(None, seeds[:500])) > 2**63, "all bits are used"


def test_draws_without_a_seed_are_left_to_the_intake() -> None:
    assert draws(SamplingParams(), 3) == [SamplingParams()] * 3


def test_n_is_a_count() -> None:
    wrong: list[Any] = [0, -1, 2**16 + 1, 2**31, True, 1.0, "2", None, [2]]
    for n in wrong:
        with pytest.raises(InvalidRequest, match="n must be an integer from 1 to 65536, got "):
            check_draws(n)
    assert check_draws(2**16) == 2**16


# Beside a model


def test_token_ids_are_of_the_vocabulary() -> None:
    beyond = {
        "stop_token_ids": [0, 10],
        "allowed_token_ids": [10, 9],
        "logit_bias": {3: 1.0, 10: 1.0},
        "bad_words": [[1], [2, 10]],
    }
    for name, value in beyond.items():
        params = SamplingParams.from_options({name: value})
        with pytest.raises(InvalidRequest, match=f"^token ids in {name} must be from 0 to 9, got 10$"):
            params.check_against(VOCAB_SIZE, 20)
        params.check_against(VOCAB_SIZE + 1, 20)
    with pytest.raises(InvalidRequest, match=r"^token ids in logit_bias must be from 0 to 9, got -1$"):
        SamplingParams.from_options({"logit_bias": {-1: 2.0}}).check_against(VOCAB_SIZE, 20)


def test_log_probabilities_are_at_most_what_the_program_gives() -> None:
    for name in ("logprobs", "prompt_logprobs"):
        SamplingParams.from_options({name: 5}).check_against(VOCAB_SIZE, 5)
        with pytest.raises(InvalidRequest, match=f"^{name} must be at most 5, got 6; raise max_logprobs in open"):
            SamplingParams.from_options({name: 6}).check_against(VOCAB_SIZE, 5)
        SamplingParams.from_options({name: 0}).check_against(VOCAB_SIZE, 0)


def test_only_what_changes_logits_takes_state_on_the_device() -> None:
    plain: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "top_k": 2, "top_p": 0.5, "min_p": 0.1, "seed": 3},
        {"stop": "x", "stop_token_ids": [1], "ignore_eos": True, "logprobs": 3, "max_tokens": 4},
        {"repetition_penalty": 1.0, "frequency_penalty": 0, "presence_penalty": 0, "min_tokens": 0},
        {"logit_bias": {}, "bad_words": [], "allowed_token_ids": None},
    ]
    assert not any(SamplingParams.from_options(options).adjusts for options in plain)
    adjusting = {"logit_bias": {1: 0.5}, "bad_words": ["x"], "allowed_token_ids": [1], "min_tokens": 1}
    adjusting |= {"repetition_penalty": 0.9, "frequency_penalty": -0.1, "presence_penalty": 0.1}
    assert all(SamplingParams.from_options({name: value}).adjusts for name, value in adjusting.items())


# Bans


def banned(
    options: dict[str, Any], bad_words: tuple[tuple[int, ...], ...] = (), end_ids: frozenset[int] = NOTHING
) -> Request:
    return Request(0, (1,), SamplingParams.from_options(options), end_ids, 100, bad_words)


def test_bans_that_may_leave_no_token_are_refused() -> None:
    for request in (
        banned({"logit_bias": dict.fromkeys(range(10), -math.inf)}),
        banned({"allowed_token_ids": [1, 2], "logit_bias": {1: -math.inf, 2: -math.inf}}),
        banned({"allowed_token_ids": [1, 2]}, bad_words=((1,), (5, 2))),
        banned({"allowed_token_ids": [4], "min_tokens": 1}, end_ids=frozenset({4})),
        banned(
            {"allowed_token_ids": [1, 2, 3], "min_tokens": 1, "logit_bias": {1: -math.inf}}, ((2,),), frozenset({3})
        ),
        banned({}, bad_words=tuple((token,) for token in range(10))),
    ):
        with pytest.raises(InvalidRequest, match=r"together may leave no token to choose: each of the .* allowed"):
            check_bans(request, VOCAB_SIZE)


def test_bans_that_always_leave_a_token_are_fine() -> None:
    for request in (
        banned({}),
        banned({"logit_bias": dict.fromkeys(range(9), -math.inf)}),
        banned({"logit_bias": dict.fromkeys(range(10), -1e6)}),
        banned({"allowed_token_ids": [1, 2], "logit_bias": {1: -math.inf, 3: -math.inf}}),
        banned({"allowed_token_ids": [4]}, end_ids=frozenset({4})),
        banned({"min_tokens": 1}, end_ids=frozenset(range(9))),
        banned({}, bad_words=((1,),) * (MAX_BAD_WORDS + 1)),
        banned({}, bad_words=((1,) * MAX_BAD_WORD_TOKENS,) * MAX_BAD_WORDS),
    ):
        check_bans(request, VOCAB_SIZE)


def test_bad_words_have_room_on_the_device() -> None:
    for words, got in (
        (((1, 2),) * (MAX_BAD_WORDS + 1), "got 257 sequences, the longest of 2 tokens"),
        (((1,), (1,) * (MAX_BAD_WORD_TOKENS + 1)), "got 1 sequences, the longest of 17 tokens"),
    ):
        with pytest.raises(InvalidRequest, match=f"bad_words may be 256 sequences of up to 16 tokens, .*; {got}"):
            check_bans(banned({}, words), VOCAB_SIZE)
