"""Sampling parameters and token ids are checked at the call; each message names the expected and the actual value."""

import math
import re
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from rekindle.core.errors import InvalidRequest, ParametersIgnored
from rekindle.core.request import checks
from rekindle.core.request.activations.steering import Patch, Steering
from rekindle.core.request.params import SamplingOptions, SamplingParams
from rekindle.core.request.request import check_token_ids

NO_NUMBERS = ["1", math.nan, math.inf, -math.inf, True, [1.0], 1j, np.array([1.0]), Decimal(1), 10**400]
NO_COUNTS = ["1", 1.0, [1], math.nan, np.array([1, 2]), np.float32(1), np.True_]
NO_INTEGERS = [True, *NO_COUNTS]
BAD: dict[str, tuple[list[Any], str]] = {
    "max_tokens": ([-1, 2**30 + 1, *NO_INTEGERS], "max_tokens must be an integer from 0 to 1073741824, got "),
    "top_k": ([-2, None, 2**31, *NO_INTEGERS], "top_k must be an integer from -1 to 2147483647, got "),
    "seed": ([-2, 2**64, *NO_INTEGERS], "seed must be an integer from -1 to 18446744073709551615, got "),
    "temperature": (
        [-0.1, -1, -5e-324, 101, 1e300, np.float64(1e39), *NO_NUMBERS],
        "temperature must be a finite number of at least 0 and at most 100, got ",
    ),
    "top_p": (
        [-5e-324, -0.5, 1.01, 2, None, *NO_NUMBERS],
        "top_p must be a finite number of at least 0 and at most 1, got ",
    ),
    "min_p": ([-0.1, 1.1, None, *NO_NUMBERS], "min_p must be a finite number of at least 0 and at most 1, got "),
    "ignore_eos": ([0, 1, None, "no"], "ignore_eos must be True or False, got "),
    "cache_salt": ([0, None, b"a", ["a"]], "cache_salt must be a str, got "),
    "priority": (
        [-(2**31) - 1, 2**31, 1.5, "1", None, True],
        "priority must be an integer from -2147483648 to 2147483647, got ",
    ),
    "keep_stop": ([0, 1, None, "no"], "keep_stop must be True or False, got "),
    "draft": ([True, 0, 1, "suffix", ["lookup"]], 'draft must be "lookup", "mtp", False or None, got '),
    "stop_on_repetition": (
        [0, 1, "yes", {"size": 3}, [4]],
        "stop_on_repetition must be True, False, or a rekindle.RepetitionLimit (longest, times, tokens, shortest, "
        "reads_text), got ",
    ),
    "thinking_budget": ([-1, 2**30 + 1, *NO_INTEGERS], "thinking_budget must be an integer from 0 to 1073741824, got "),
    "skip_special_tokens": ([0, 1, None, "no"], "skip_special_tokens must be True or False, got "),
    "min_tokens": ([-1, None, 2**30 + 1, *NO_INTEGERS], "min_tokens must be an integer from 0 to 1073741824, got "),
    "logprobs": ([-2, 2**31, *NO_COUNTS], "logprobs must be an integer from -1 to 2147483647, got "),
    "logprobs_of": (["raw", "", None, 1, True, ["model"]], 'logprobs_of must be "model", "sampled" or "allowed", got '),
    "prompt_logprobs": ([-2, 2**31, *NO_COUNTS], "prompt_logprobs must be an integer from -1 to 2147483647, got "),
    "prompt_logprobs_from": (
        [-1, None, 2**30 + 1, *NO_INTEGERS],
        "prompt_logprobs_from must be an integer from 0 to 1073741824, got ",
    ),
    "truncate_prompt_tokens": (
        [-2, 2**30 + 1, *NO_INTEGERS],
        "truncate_prompt_tokens must be an integer from -1 to 1073741824, got ",
    ),
    "truncation_side": (["middle", "", None, 1], 'truncation_side must be "left" or "right", got '),
    "repetition_penalty": (
        [0, 0.0, -1, 9e-4, 1001, None, *NO_NUMBERS],
        "repetition_penalty must be a finite number of at least 0.001 and at most 1000, got ",
    ),
    "frequency_penalty": (
        [-2.1, 2.1, None, *NO_NUMBERS],
        "frequency_penalty must be a finite number of at least -2 and at most 2, got ",
    ),
    "presence_penalty": (
        [-2.1, 2.1, None, *NO_NUMBERS],
        "presence_penalty must be a finite number of at least -2 and at most 2, got ",
    ),
    "stop": (
        ["", [""], ["a", ""], 3, [3], [None], b"a", [b"a"], {"a"}, [["a"]]],
        "stop must be a text or a sequence of texts, none of them empty, got ",
    ),
    "logit_bias": ([3, "a", [(1, 2.0)], {3}], "logit_bias must be a mapping of token ids to numbers, got "),
    "bad_words": (
        [3, "word", b"word", {"word"}, {1: 2}],
        "bad_words must be a sequence of texts or of token id sequences, got ",
    ),
    "allowed_token_ids": (
        [2, "ab", [1.5], ["a"], [None], [True], [[1]]],
        "allowed_token_ids must be a sequence of integers, got ",
    ),
    "processor_args": (
        [2, "ab", b"ab", {1}, {1: 2}, [0.5] * 9],
        "processor_args must be a sequence of at most 8 numbers, got ",
    ),
    "stop_token_ids": (
        [2.0, True, "ab", b"ab", [1.5], ["a"], [None], [True], [[1]]],
        "stop_token_ids must be a sequence of integers, got ",
    ),
    "json_schema": ([3, True, ["a"], (1, 2), b"{}"], "json_schema must be a JSON schema as a dict, or a type such as "),
    "adapter": ([3, b"a", ["a"], True], "adapter must be a str, got "),
    "steer": ([3, "a", Patch(0, [1.0], 0)], "steer must be rekindle.Steering(...) or a list of them, got "),
    "patch": ([3, "a", Steering(0, [1.0])], "patch must be rekindle.Patch(...) or a list of them, got "),
    "capture": (
        [True, "head", [], [1.5], [None], [1, "heads"], {1}],
        "capture must be indices of layers and parts ('residual', 'attention', 'mlp'), got ",
    ),
    "regex": ([3, b"a", ["a"], True], "regex must be a str, got "),
    "choice": (["", "ab", [], [""], [3], {"a"}, True], "choice must be a sequence of texts, none of them empty, got "),
    "grammar": ([3, b"a", ["a"], True], "grammar must be a str, got "),
}


FROM_ELSEWHERE = {
    "max_new_tokens": "max_tokens", "do_sample": "temperature", "best_of": "n", "n_predict": "max_tokens",
    "num_predict": "max_tokens", "stop_sequences": "stop", "num_return_sequences": "n",
    "repeat_penalty": "repetition_penalty", "top_logprobs": "logprobs", "eos_token_id": "stop_token_ids",
    "format": "json_schema", "lora_request": "adapter", "max_thinking_tokens": "thinking_budget",
}  # fmt: skip
"""Keywords of other engines, and their names here."""
IN_RANGE = "a finite number of at least -1e+06 and at most 1e+06"


def message_of(options: dict[str, Any]) -> str:
    """Return the error's message for a call with invalid keywords."""
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams.from_options(options)
    return str(caught.value)


def test_a_value_out_of_range_is_told_with_what_was_expected_and_what_came(subtests: pytest.Subtests) -> None:
    assert {field.name for field in fields(SamplingParams)} == set(BAD) == set(SamplingOptions.__annotations__)
    for name, (values, expected) in BAD.items():
        for value in values:
            came = f"{value!r:.80}"
            with subtests.test(f"{name} {came}"):
                message = message_of({name: value})
                assert message.startswith(expected)
                assert came in message.removeprefix(expected)


CONTRADICTORY: list[tuple[dict[str, Any], str]] = [
    ({"cache_salt": "a\ud800"}, "cache_salt must be text that UTF-8 can encode, got "),
    ({"cache_salt": "a" * 1025}, "cache_salt must have at most 1024 characters, got 1025"),
    ({"stop": [f"{n}" for n in range(257)]}, "stop may be at most 256 texts, got 257"),
    ({"stop": "a" * 4097}, "each of stop must have at most 4096 characters, got 4097"),
    ({"stop": ["a", "\ud800"]}, "each of stop must be text that UTF-8 can encode"),
    ({"bad_words": ["\ud800"]}, "each of bad_words must be text that UTF-8 can encode"),
    ({"bad_words": [3]}, "each of bad_words must be a sequence of integers, got 3"),
    ({"bad_words": ["a", ["a"]]}, "each of bad_words must be a sequence of integers, got ['a']"),
    ({"bad_words": [[True]]}, "each of bad_words must be a sequence of integers, got [True]"),
    ({"bad_words": [b"a"]}, "each of bad_words must be a sequence of integers, got b'a'"),
    ({"bad_words": [""]}, "bad_words must have no empty word, got ['']"),
    ({"bad_words": ["a", " \n"]}, "bad_words must have no empty word, got ['a', ' \\n']"),
    ({"bad_words": [[1], []]}, "bad_words must have no empty word, got [[1], []]"),
    *(
        ({"allowed_token_ids": nothing}, "allowed_token_ids is empty; give at least one token id, or None")
        for nothing in (list[int](), (), set[int](), np.array([], int))
    ),
    *(
        ({"logit_bias": {3: value}}, f"the values of logit_bias must be {IN_RANGE}, got {value!r}")
        for value in (1.1e6, -1.1e6, math.inf, math.nan, "1", None, True, np.array([1.0, 2.0]), np.array([-math.inf]))
    ),
    *(
        ({"logit_bias": {key: 1.0}}, f"the keys of logit_bias must be a sequence of integers, got ({key!r},)")
        for key in ("1.0", "-1", "", "٣", "1" * 20, 1.0, True, None)
    ),
    ({"logit_bias": {"5": 1.0, 5: 2.0}}, "logit_bias names a token twice, as an integer and as a string"),
    (
        {"logprobs_of": "sampled", "prompt_logprobs": 3},
        "logprobs_of='sampled' needs logprobs: the number of alternatives",
    ),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens 6 is above max_tokens 5; raise max_tokens"),
    ({"min_tokens": 257}, "min_tokens 257 is above max_tokens 256; raise max_tokens"),
    ({"n": 2}, "n is for generate(): a stream or a handle is one sample"),
    ({"max_token": 3}, "unknown keyword 'max_token'; did you mean max_tokens?"),
    ({"messages": []}, "unknown keyword 'messages'; the prompt is the first argument, and has no name"),
    ({"system": "Be brief."}, 'unknown keyword \'system\'; begin the messages with {"role": "system", '),
    ({"timeout": 3}, "unknown keyword 'timeout'; put the call into asyncio.timeout()"),
    ({"zzz": 3}, "unknown keyword 'zzz'; none of the "),
    ({"enable_thinking": False}, "unknown keyword 'enable_thinking'; it is a variable of the chat template: chat_temp"),
    ({"options": {"num_predict": 3}}, "unknown keyword 'options'; its entries are keywords here: give each by"),
    ({"sampling_params": {}}, "unknown keyword 'sampling_params'; its entries are keywords here: give each by"),
    ({"num_beams": 2}, "unknown keyword 'num_beams'; there is no beam search"),
    ({"steeer": 3}, "unknown keyword 'steeer'; did you mean steer?"),
    *(({theirs: 3}, f"unknown keyword '{theirs}'; here it is {ours}") for theirs, ours in FROM_ELSEWHERE.items()),
]
"""Invalid calls, each with the beginning of its error's message."""


def test_a_call_that_contradicts_itself_or_says_what_nobody_knows_is_told_what_to_do(subtests: pytest.Subtests) -> None:
    for options, expected in CONTRADICTORY:
        with subtests.test(f"{options!r:.80}"):
            assert message_of(options).startswith(expected)


TAKEN: list[tuple[str, Any, Any]] = [
    *(("max_tokens", end, end) for end in (0, 1, 2**30, None)),
    *(("temperature", end, float(end)) for end in (0, -0.0, 1e-5, 5, 100)),
    *(("temperature", cold, 0.0) for cold in (5e-324, 1e-8, 9.9e-6, np.float32(1e-8), Fraction(1, 10**7))),
    ("top_k", 0, 0),
    *(("seed", end, end) for end in (0, 2**64 - 1, None)),
    *(("top_p", end, float(end)) for end in (1e-9, 1)),
    ("top_p", 5e-324, 1e-9),
    *(("min_p", end, float(end)) for end in (0, 1.0)),
    *(("repetition_penalty", end, end) for end in (1e-3, 1e3)),
    *((f"{of}_penalty", end, float(end)) for of in ("frequency", "presence") for end in (-2, 2, 2.0)),
    *((name, True, True) for name in ("ignore_eos", "skip_special_tokens")),
    *(("min_tokens", end, end) for end in (0, 256)),
    *(("logprobs", end, end) for end in (0, 2**31 - 1, None)),
    *(("prompt_logprobs", end, end) for end in (0, None)),
    ("allowed_token_ids", None, None),
    # What is numpy's becomes Python's.
    *((name, kind(100), 100) for name in ("min_tokens", "seed") for kind in (np.int8, np.int32, np.uint64)),
    *(("temperature", kind(1), 1.0) for kind in (np.float16, np.float32, np.float64, np.int32)),
    *(("top_p", kind(1), 1.0) for kind in (np.float16, np.float32, np.float64, np.int32)),
    *(
        (name, ids, frozenset({3, 4}))
        for name in ("stop_token_ids", "allowed_token_ids")
        for ids in ([3, 4], (4, 3), {3, 4}, np.array([3, 4, 3]), iter([3, 4]), [np.int8(3), np.uint64(4)])
    ),
    # Nothing is an empty collection, and one is a collection of one.
    *(("stop_token_ids", nothing, frozenset()) for nothing in (list[int](), None)),
    *((name, None, ()) for name in ("logit_bias", "bad_words", "stop")),
    ("stop", [], ()),
    ("stop", "END", ("END",)),
    ("stop", ["END", "\n"], ("END", "\n")),
    ("bad_words", ["a b", [1, 2], (np.int8(3),), np.array([4])], ("a b", (1, 2), (3,), (4,))),
    (
        "logit_bias",
        {3: 1, np.int8(4): np.float32(-1e6), 5: -math.inf, 6: np.float32(-math.inf), 0: 1e6},
        ((3, 1.0), (4, -1e6), (5, -math.inf), (6, -math.inf), (0, 1e6)),
    ),
    # Other engines write these so.
    ("top_k", -1, 0),
    ("seed", -1, None),
    *((name, True, 0) for name in ("logprobs", "prompt_logprobs")),
    *((name, False, None) for name in ("logprobs", "prompt_logprobs")),
    ("temperature", None, 0.0),
    *(("stop_token_ids", one, frozenset({5})) for one in (5, np.int32(5))),
    ("logit_bias", {"15": 2, 7: -1.5}, ((15, 2.0), (7, -1.5))),
]
"""Parameters with valid values, and the values of Python that they become."""


def types_of(value: Any) -> Any:
    """Return the types of a value and of its elements."""
    return (type(value), [types_of(each) for each in value]) if isinstance(value, tuple | frozenset) else type(value)


def test_the_ends_of_a_range_are_in_it_and_all_spellings_become_one_of_python(subtests: pytest.Subtests) -> None:
    for name, value, expected in TAKEN:
        with subtests.test(f"{name} {value!r:.80}"):
            actual = getattr(SamplingParams.from_options({name: value}), name)
            assert (actual, types_of(actual)) == (expected, types_of(expected))


def test_whose_log_probabilities_they_are_is_only_asked_with_log_probabilities() -> None:
    params = SamplingParams.from_options({"logprobs": 0, "logprobs_of": "sampled"})
    assert (params.logprobs, params.logprobs_of) == (0, "sampled")
    assert SamplingParams.from_options({"logprobs_of": "model"}) == SamplingParams()


def test_nothing_given_is_greedy_and_valid_and_as_many_tokens_may_be_the_fewest_as_the_most() -> None:
    assert SamplingParams.from_options({}) == SamplingParams()
    assert SamplingParams().temperature == 0
    assert SamplingParams.from_options({"min_tokens": 5, "max_tokens": 5}).min_tokens == 5


def test_token_ids_come_in_any_sequence_and_leave_as_pythons() -> None:
    sequences: list[Any] = [[0, 9], (0, 9), range(0, 10, 9), np.array([0, 9]), np.array([0, 9], np.uint8), iter([0, 9])]
    for ids in sequences:
        checked = check_token_ids("token_ids", ids, 10)
        assert checked == (0, 9)
        assert {type(token) for token in checked} == {int}


@pytest.mark.parametrize(("wrong", "message"), [(10, "from 0 to 9, got 10"), (True, "a sequence of integers")])
def test_a_wrong_token_id_is_found_in_each_part_of_a_long_prompt(wrong: int, message: str) -> None:
    for place in (0, checks._AT_ONCE - 1, checks._AT_ONCE, 2 * checks._AT_ONCE):
        ids: list[int] = [3] * (2 * checks._AT_ONCE + 1)
        assert len(check_token_ids("token_ids", ids, 10)) == len(ids)
        ids[place] = wrong
        with pytest.raises(InvalidRequest, match=message):
            check_token_ids("token_ids", ids, 10)


NO_PROMPTS: list[tuple[Any, str]] = [
    ([0, 10], "token_ids must be from 0 to 9, got 10"),
    ([-1], "token_ids must be from 0 to 9, got -1"),
    ([3, 2**40], f"token_ids must be from 0 to 9, got {2**40}"),
    *(
        (nothing, "token_ids is empty; a prompt needs at least one token")
        for nothing in (list[int](), (), np.array([], int), iter(list[int]()))
    ),
    *(
        (ids, f"token_ids must be a sequence of integers, got {ids!r:.80}")
        for ids in (3, None, "12", b"12", [1.0], ["1"], [None], [True], [[1, 2]], np.array([1.0]), np.array(3))
    ),
]


def test_what_is_no_prompt_of_tokens_of_the_vocabulary_is_shown(subtests: pytest.Subtests) -> None:
    for ids, expected in NO_PROMPTS:
        with subtests.test(f"{ids!r}"), pytest.raises(InvalidRequest, match=f"^{re.escape(expected)}"):
            check_token_ids("token_ids", ids, 10)


def test_a_long_wrong_value_is_not_shown_in_full() -> None:
    assert len(message_of({"stop_token_ids": ["x" * 10**6]})) < 200


def test_a_value_that_cannot_be_shown_is_refused_all_the_same() -> None:
    huge = 10**5000
    for name in ("temperature", "top_k", "stop", "logit_bias", "ignore_eos"):
        assert "of type int that cannot be shown" in message_of({name: huge})
    assert "of type list that cannot be shown" in message_of({"stop_token_ids": [huge, 0.5]})


def test_no_temperature_is_that_of_the_model_and_no_most_tokens_are_no_bound() -> None:
    defaults = {"temperature": 0.5, "max_tokens": 3, "min_tokens": 2}
    params = SamplingParams.from_options({"temperature": None, "max_tokens": None, "min_tokens": 900}, defaults)
    assert (params.temperature, params.max_tokens, params.min_tokens) == (0.5, None, 900)


# Parameters that draw

DRAWN: list[dict[str, Any]] = [
    {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}, {"seed": 0}, {"n": 2}, {"top_k": 3, "n": 2},
]  # fmt: skip


def params_of(keywords: dict[str, Any], defaults: dict[str, Any] | None = None) -> SamplingParams:
    """Return the parameters of a call with some keywords, `n` included."""
    options = {name: value for name, value in keywords.items() if name != "n"}
    return SamplingParams.from_options(options, defaults, n=keywords.get("n", 1))


def test_a_call_that_says_how_to_draw_and_no_temperature_draws_at_1() -> None:
    for keywords, defaults in product(DRAWN, [None, {}, {"temperature": 0.0}, {"temperature": 0.0, "top_p": 0.9}]):
        assert params_of(keywords, defaults).temperature == 1.0
        assert params_of({**keywords, "temperature": None}, defaults).temperature == 1.0


def test_a_temperature_that_the_model_or_the_call_names_stays() -> None:
    for keywords in DRAWN:
        assert params_of(keywords, {"temperature": 0.6}).temperature == 0.6
        assert params_of({**keywords, "temperature": 0.7}, {"temperature": 0.6}).temperature == 0.7


def test_at_temperature_0_what_does_nothing_is_told_once_and_at_the_line_of_the_call() -> None:
    for keywords in DRAWN:
        with pytest.warns(ParametersIgnored, match=" and ".join(keywords)) as warnings:
            assert params_of({**keywords, "temperature": 0}).temperature == 0
        assert [warning.filename for warning in warnings] == [__file__]


def test_a_value_that_changes_nothing_at_any_temperature_neither_draws_nor_warns() -> None:
    defaults = {"temperature": 0.0, "top_p": 0.9, "top_k": 20, "min_p": 0.1}
    idle: list[dict[str, Any]] = [{"top_p": 1}, {"top_k": 0}, {"top_k": -1}, {"min_p": 0}, {"seed": None}, {"n": 1}]
    for keywords in idle:
        assert params_of(keywords, defaults).temperature == 0
        assert params_of({**keywords, "temperature": 0}, defaults).temperature == 0


@pytest.mark.filterwarnings("error")
def test_top_p_0_is_greedy() -> None:
    for options in ({"top_p": 0}, {"top_p": 0.0, "temperature": 0.7}, {"top_p": 0, "seed": 3, "temperature": 1}):
        params = SamplingParams.from_options(options)
        assert (params.temperature, params.top_p) == (0.0, 1.0)


class Many(list[Any]):
    """A list of very many values; iteration fails."""

    def __init__(self, count: int):
        super().__init__()
        self.size = count

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Any:
        raise AssertionError("a value was looked at")


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("stop", checks.MOST_EQUAL_TEXTS),
        ("bad_words", checks.MOST_WORDS),
        ("stop_token_ids", checks.MOST_IDS),
        ("allowed_token_ids", checks.MOST_IDS),
    ],
)
def test_a_collection_of_too_many_values_is_refused_before_one_is_looked_at(name: str, most: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} may have at most {most} values, got {most + 1}"):
        SamplingParams.from_options({name: Many(most + 1)})


def test_a_prompt_of_too_many_tokens_is_refused_before_one_is_looked_at() -> None:
    with pytest.raises(InvalidRequest, match=f"token_ids may have at most {checks.MOST_PROMPT_IDS} values"):
        check_token_ids("token_ids", Many(checks.MOST_PROMPT_IDS + 1), 10)


@pytest.mark.parametrize(
    "value", ["a" * 1000, ["b" * 40] * 9, {"k": [1, {"m": None}], "n": ()}, "it's", [], {}, [[]], 2.5, None, b"c" * 99]
)
def test_a_preview_is_the_start_of_the_repr(value: Any) -> None:
    assert checks.preview(value) == f"{value!r:.80}"
    assert checks.preview([value], 7) == f"{[value]!r:.7}"
