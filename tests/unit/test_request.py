"""Sampling parameters and token ids are checked at the call; each message says what was expected and what came."""

import math
import re
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rekindle.errors import InvalidRequest, ParametersIgnored
from rekindle.request.params import SamplingOptions, SamplingParams
from rekindle.request.request import check_token_ids

NO_NUMBERS = ["1", math.nan, math.inf, -math.inf, True, [1.0], 1j, np.array([1.0]), Decimal(1), 10**400]
NO_COUNTS = ["1", 1.0, [1], math.nan, np.array([1, 2]), np.float32(1), np.True_]
NO_INTEGERS = [True, *NO_COUNTS]
BAD: dict[str, tuple[list[Any], str]] = {
    "max_tokens": ([-1, 2**30 + 1, *NO_INTEGERS], "max_tokens must be an integer from 0 to 1073741824, got "),
    "top_k": ([-2, None, 2**31, *NO_INTEGERS], "top_k must be an integer from -1 to 2147483647, got "),
    "seed": ([-2, 2**64, *NO_INTEGERS], "seed must be an integer from -1 to 18446744073709551615, got "),
    "temperature": (
        [-0.1, -1, 5e-324, 9e-7, 101, 1e300, np.float64(1e39), Fraction(1, 10**7), *NO_NUMBERS],
        "temperature must be 0, or a finite number from 1e-06 to 100, got ",
    ),
    "top_p": (
        [0, 0.0, 5e-324, -0.5, 1.01, 2, None, *NO_NUMBERS],
        "top_p must be a finite number of at least 1e-09 and at most 1, got ",
    ),
    "min_p": ([-0.1, 1.1, None, *NO_NUMBERS], "min_p must be a finite number of at least 0 and at most 1, got "),
    "ignore_eos": ([0, 1, None, "no"], "ignore_eos must be True or False, got "),
    "cache_salt": ([0, None, b"a", ["a"]], "cache_salt must be a str, got "),
    "keep_stop": ([0, 1, None, "no"], "keep_stop must be True or False, got "),
    "skip_special_tokens": ([0, 1, None, "no"], "skip_special_tokens must be True or False, got "),
    "min_tokens": ([-1, None, 2**30 + 1, *NO_INTEGERS], "min_tokens must be an integer from 0 to 1073741824, got "),
    "logprobs": ([-1, 2**31, *NO_COUNTS], "logprobs must be an integer from 0 to 2147483647, got "),
    "logprobs_of": (["raw", "", None, 1, True, ["model"]], 'logprobs_of must be "model" or "sampled", got '),
    "prompt_logprobs": ([-1, 2**31, *NO_COUNTS], "prompt_logprobs must be an integer from 0 to 2147483647, got "),
    "prompt_logprobs_from": (
        [-1, None, 2**30 + 1, *NO_INTEGERS],
        "prompt_logprobs_from must be an integer from 0 to 1073741824, got ",
    ),
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
    "regex": ([3, b"a", ["a"], True], "regex must be a str, got "),
    "choice": (["", "ab", [], [""], [3], {"a"}, True], "choice must be a sequence of texts, none of them empty, got "),
    "grammar": ([3, b"a", ["a"], True], "grammar must be a str, got "),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (values, _) in BAD.items() for value in values])
def test_a_value_out_of_range_is_told_with_what_was_expected_and_what_came(name: str, value: Any) -> None:
    expected = f"{re.escape(BAD[name][1])}.*{re.escape(f'{value!r:.80}')}"
    with pytest.raises(InvalidRequest, match=expected):
        SamplingParams.from_options({name: value})


def test_every_parameter_is_tried_with_bad_values() -> None:
    names = {field.name for field in fields(SamplingParams)}
    assert names == set(BAD) == set(SamplingOptions.__annotations__)


def test_a_salt_that_has_no_bytes_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidRequest, match="cache_salt must be text that UTF-8 can encode, got "):
        SamplingParams.from_options({"cache_salt": "a\ud800"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0), ("max_tokens", 1), ("max_tokens", 2**30), ("max_tokens", None), ("temperature", 1e-6),
        ("temperature", 100), ("top_k", 0), ("seed", 0), ("seed", 2**64 - 1), ("seed", None),
        ("temperature", 0), ("temperature", -0.0), ("temperature", 5), ("top_p", 1), ("top_p", 1e-9), ("min_p", 0),
        ("min_p", 1.0), ("ignore_eos", True), ("keep_stop", True), ("min_tokens", 0), ("min_tokens", 256),
        ("repetition_penalty", 1e-3), ("repetition_penalty", 1e3), ("frequency_penalty", -2), ("frequency_penalty", 2),
        ("presence_penalty", -2.0), ("presence_penalty", 2.0), ("logprobs", 0), ("logprobs", 2**31 - 1),
        ("logprobs", None), ("prompt_logprobs", 0), ("prompt_logprobs", None), ("allowed_token_ids", None),
    ],
)  # fmt: skip
def test_the_ends_of_a_range_are_in_it(name: str, value: Any) -> None:
    assert getattr(SamplingParams.from_options({name: value}), name) == value


def test_a_seed_of_minus_one_is_a_random_one() -> None:
    assert SamplingParams.from_options({"seed": -1}) == SamplingParams(seed=None)


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.uint64])
def test_numpy_integers_are_integers_and_become_pythons(kind: Callable[[int], Any]) -> None:
    params = SamplingParams.from_options({"min_tokens": kind(100), "seed": kind(3), "stop_token_ids": [kind(7)]})
    assert params.min_tokens + 1000 == 1100
    assert type(params.min_tokens) is type(params.seed) is int
    assert params.stop_token_ids == {7}
    assert {type(token) for token in params.stop_token_ids} == {int}


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int32])
def test_numpy_numbers_are_numbers_and_become_pythons(kind: Callable[[float], Any]) -> None:
    params = SamplingParams.from_options({"temperature": kind(1), "top_p": kind(1)})
    assert params.temperature == params.top_p == 1.0
    assert type(params.temperature) is float


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
def test_sets_of_token_ids_are_taken_from_any_sequence(name: str) -> None:
    for ids in ([3, 4], (4, 3), {3, 4}, np.array([3, 4, 3]), iter([3, 4])):
        assert getattr(SamplingParams.from_options({name: ids}), name) == {3, 4}


def test_no_stop_token_ids_are_none_but_no_allowed_token_ids_would_leave_nothing() -> None:
    assert SamplingParams.from_options({"stop_token_ids": []}).stop_token_ids == frozenset()
    nothings: list[Any] = [[], (), set(), np.array([], int)]
    for nothing in nothings:
        with pytest.raises(InvalidRequest, match="allowed_token_ids is empty; give at least one token id, or None"):
            SamplingParams.from_options({"allowed_token_ids": nothing})


@pytest.mark.parametrize("name", ["logit_bias", "bad_words", "stop_token_ids", "stop"])
def test_none_is_an_empty_collection(name: str) -> None:
    assert SamplingParams.from_options({name: None}) == SamplingParams()


def test_one_stop_string_is_a_sequence_of_one() -> None:
    assert SamplingParams.from_options({"stop": "END"}).stop == ("END",)
    assert SamplingParams.from_options({"stop": ["END", "\n"]}).stop == ("END", "\n")
    assert SamplingParams.from_options({"stop": []}).stop == ()


def test_bad_words_are_texts_and_token_ids_side_by_side() -> None:
    words = ["a b", [1, 2], (np.int8(3),), np.array([4])]
    assert SamplingParams.from_options({"bad_words": words}).bad_words == ("a b", (1, 2), (3,), (4,))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([3], "each of bad_words must be a sequence of integers, got 3"),
        (["a", ["a"]], "each of bad_words must be a sequence of integers, got ['a']"),
        ([[True]], "each of bad_words must be a sequence of integers, got [True]"),
        ([b"a"], "each of bad_words must be a sequence of integers, got b'a'"),
        ([""], "bad_words must have no empty word, got ['']"),
        (["a", " \n"], "bad_words must have no empty word, got ['a', ' \\n']"),
        ([[1], []], "bad_words must have no empty word, got [[1], []]"),
    ],
)
def test_a_word_that_cannot_be_banned_is_told(words: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        SamplingParams.from_options({"bad_words": words})


def test_a_bias_is_for_a_token_and_becomes_pythons() -> None:
    given = {3: 1, np.int8(4): np.float32(-1e6), 5: -math.inf, 6: np.float32(-math.inf), 0: 1e6}
    bias = SamplingParams.from_options({"logit_bias": given}).logit_bias
    assert bias == ((3, 1.0), (4, -1e6), (5, -math.inf), (6, -math.inf), (0, 1e6))
    assert {type(number) for _, number in bias} == {float}
    assert {type(token) for token, _ in bias} == {int}


@pytest.mark.parametrize(
    "value", [1.1e6, -1.1e6, math.inf, math.nan, "1", None, True, np.array([1.0, 2.0]), np.array([-math.inf])]
)
def test_a_bias_that_is_no_number_in_its_range_is_shown(value: Any) -> None:
    expected = f"the values of logit_bias must be a finite number of at least -1e+06 and at most 1e+06, got {value!r}"
    with pytest.raises(InvalidRequest, match=re.escape(expected)):
        SamplingParams.from_options({"logit_bias": {3: value}})


@pytest.mark.parametrize("key", ["1.0", "-1", "", "٣", "1" * 20, 1.0, True, None])
def test_a_bias_for_what_is_no_token_is_shown(key: Any) -> None:
    expected = f"the keys of logit_bias must be a sequence of integers, got ({key!r},)"
    with pytest.raises(InvalidRequest, match=re.escape(expected)):
        SamplingParams.from_options({"logit_bias": {key: 1.0}})


def test_whose_log_probabilities_they_are_is_only_asked_with_log_probabilities() -> None:
    params = SamplingParams.from_options({"logprobs": 0, "logprobs_of": "sampled"})
    assert (params.logprobs, params.logprobs_of) == (0, "sampled")
    assert SamplingParams.from_options({"logprobs_of": "model"}) == SamplingParams()
    with pytest.raises(InvalidRequest, match=r"^logprobs_of='sampled' needs logprobs: how many alternatives"):
        SamplingParams.from_options({"logprobs_of": "sampled", "prompt_logprobs": 3})


def test_the_fewest_tokens_are_at_most_the_most() -> None:
    assert SamplingParams.from_options({"min_tokens": 5, "max_tokens": 5}).min_tokens == 5
    with pytest.raises(InvalidRequest, match=r"^min_tokens 6 is above max_tokens 5; raise max_tokens$"):
        SamplingParams.from_options({"min_tokens": 6, "max_tokens": 5})
    with pytest.raises(InvalidRequest, match=r"^min_tokens 257 is above max_tokens 256; raise max_tokens$"):
        SamplingParams.from_options({"min_tokens": 257})


def test_n_is_no_parameter_of_one_draw() -> None:
    with pytest.raises(InvalidRequest, match=r"n is for generate\(\): a stream or a handle is of one draw"):
        SamplingParams.from_options({"n": 2})


def test_an_unknown_keyword_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown keyword 'max_token'; did you mean max_tokens\?"):
        SamplingParams.from_options({"max_token": 3})
    with pytest.raises(InvalidRequest, match=r"unknown keyword 'zzz'; known are logit_bias, repetition_penalty, .*"):
        SamplingParams.from_options({"zzz": 3})


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("max_new_tokens", "max_tokens"), ("do_sample", "temperature"), ("best_of", "n"), ("n_predict", "max_tokens"),
        ("num_predict", "max_tokens"), ("stop_sequences", "stop"), ("num_return_sequences", "n"),
        ("repeat_penalty", "repetition_penalty"), ("top_logprobs", "logprobs"), ("eos_token_id", "stop_token_ids"),
    ],
)  # fmt: skip
def test_a_keyword_from_elsewhere_is_told_by_its_name_here(theirs: str, ours: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^unknown keyword '{theirs}'; here it is {ours}$"):
        SamplingParams.from_options({theirs: 3})


def test_nothing_given_is_greedy_and_valid() -> None:
    assert SamplingParams.from_options({}) == SamplingParams()
    assert SamplingParams().temperature == 0


@pytest.mark.parametrize(
    "ids", [[0, 9], (0, 9), range(0, 10, 9), np.array([0, 9]), np.array([0, 9], np.uint8), iter([0, 9])]
)
def test_token_ids_come_in_any_sequence_and_leave_as_pythons(ids: Any) -> None:
    checked = check_token_ids("token_ids", ids, 10)
    assert checked == (0, 9)
    assert {type(token) for token in checked} == {int}


@pytest.mark.parametrize(("ids", "came"), [([0, 10], "10"), ([-1], "-1"), ([3, 2**40], str(2**40))])
def test_a_token_outside_the_vocabulary_is_named_and_its_size_is_outside(ids: list[int], came: str) -> None:
    with pytest.raises(InvalidRequest, match=f"token_ids must be from 0 to 9, got {came}"):
        check_token_ids("token_ids", ids, 10)


@pytest.mark.parametrize("ids", [[], (), np.array([], int), iter([])])
def test_no_tokens_are_no_prompt(ids: Any) -> None:
    with pytest.raises(InvalidRequest, match="token_ids is empty; a prompt needs at least one token"):
        check_token_ids("token_ids", ids, 10)


@pytest.mark.parametrize(
    "ids", [3, None, "12", b"12", [1.0], ["1"], [None], [True], [[1, 2]], np.array([1.0]), np.array(3)]
)
def test_what_is_no_sequence_of_integers_is_shown(ids: Any) -> None:
    with pytest.raises(
        InvalidRequest, match="token_ids must be a sequence of integers, got " + re.escape(f"{ids!r:.80}")
    ):
        check_token_ids("token_ids", ids, 10)


def test_a_long_wrong_value_is_not_shown_in_full() -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams.from_options({"stop_token_ids": ["x" * 10**6]})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["temperature", "top_k", "stop_token_ids", "stop", "logit_bias", "ignore_eos"])
def test_a_value_that_cannot_be_shown_is_refused_all_the_same(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"of type (int|list) that cannot be shown"):
        SamplingParams.from_options({name: [10**5000, 0.5] if name == "stop_token_ids" else 10**5000})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("stop", ["a"] * 257, "stop may be at most 256 texts, got 257"),
        ("stop", "a" * 4097, "each of stop must have at most 4096 characters, got 4097"),
        ("stop", ["a", "\ud800"], "each of stop must be text that UTF-8 can encode"),
        ("bad_words", ["\ud800"], "each of bad_words must be text that UTF-8 can encode"),
        ("cache_salt", "a" * 1025, "cache_salt must have at most 1024 characters, got 1025"),
    ],
)
def test_texts_are_bounded_and_have_bytes(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        SamplingParams.from_options({name: value})


# Spellings from elsewhere that mean one thing


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("top_k", -1, 0),
        ("logprobs", True, 0),
        ("logprobs", False, None),
        ("prompt_logprobs", True, 0),
        ("prompt_logprobs", False, None),
        ("temperature", None, 0.0),
        ("max_tokens", None, None),
        ("stop_token_ids", 5, frozenset({5})),
        ("stop_token_ids", np.int32(5), frozenset({5})),
        ("logit_bias", {"15": 2, 7: -1.5}, ((15, 2.0), (7, -1.5))),
    ],
)
def test_other_engines_spellings_are_taken(name: str, value: Any, expected: Any) -> None:
    taken = getattr(SamplingParams.from_options({name: value}), name)
    assert (taken, type(taken)) == (expected, type(expected))


def test_no_temperature_is_that_of_the_model_and_no_most_tokens_are_no_bound() -> None:
    defaults = {"temperature": 0.5, "max_tokens": 3, "min_tokens": 2}
    params = SamplingParams.from_options({"temperature": None, "max_tokens": None, "min_tokens": 900}, defaults)
    assert (params.temperature, params.max_tokens, params.min_tokens) == (0.5, None, 900)


def test_a_bias_in_both_spellings_is_contradictory() -> None:
    with pytest.raises(InvalidRequest, match="logit_bias names a token twice, as an integer and as a string"):
        SamplingParams.from_options({"logit_bias": {"5": 1.0, 5: 2.0}})


# Parameters that draw


DRAWN: list[dict[str, Any]] = [
    {"top_p": 0.5},
    {"top_k": 3},
    {"min_p": 0.1},
    {"seed": 0},
    {"n": 2},
    {"top_k": 3, "n": 2},
]


def params_of(given: dict[str, Any], defaults: dict[str, Any] | None = None) -> SamplingParams:
    """Return the parameters of a call with these keywords, of which `n` is one."""
    options = {name: value for name, value in given.items() if name != "n"}
    return SamplingParams.from_options(options, defaults, n=given.get("n", 1))


@pytest.mark.parametrize("given", DRAWN)
@pytest.mark.parametrize("defaults", [None, {}, {"temperature": 0.0}, {"temperature": 0.0, "top_p": 0.9}])
def test_a_call_that_says_how_to_draw_and_no_temperature_draws_at_1(
    given: dict[str, Any], defaults: dict[str, Any] | None
) -> None:
    assert params_of(given, defaults).temperature == 1.0
    assert params_of({**given, "temperature": None}, defaults).temperature == 1.0


@pytest.mark.parametrize("given", DRAWN)
def test_a_temperature_that_the_model_or_the_call_names_stays(given: dict[str, Any]) -> None:
    assert params_of(given, {"temperature": 0.6}).temperature == 0.6
    assert params_of({**given, "temperature": 0.7}, {"temperature": 0.6}).temperature == 0.7


@pytest.mark.parametrize("given", DRAWN)
def test_at_temperature_0_what_does_nothing_is_told_once_and_at_the_line_of_the_call(given: dict[str, Any]) -> None:
    with pytest.warns(ParametersIgnored, match=" and ".join(given)) as told:
        assert params_of({**given, "temperature": 0}).temperature == 0
    assert len(told) == 1
    assert told[0].filename == __file__


@pytest.mark.parametrize("given", [{"top_p": 1}, {"top_k": 0}, {"top_k": -1}, {"min_p": 0}, {"seed": None}, {"n": 1}])
def test_a_value_that_changes_nothing_at_any_temperature_neither_draws_nor_warns(given: dict[str, Any]) -> None:
    defaults = {"temperature": 0.0, "top_p": 0.9, "top_k": 20, "min_p": 0.1}
    assert params_of(given, defaults).temperature == 0
    assert params_of({**given, "temperature": 0}, defaults).temperature == 0
