"""Sampling parameters and token ids are checked at the call; each message says what was expected and what came."""

import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from rekindle.errors import InvalidRequest
from rekindle.request import NOT_YET, SamplingOptions, SamplingParams, check_token_ids

NO_NUMBERS = ["1", None, math.nan, math.inf, -math.inf, True, [1.0], 1j, np.array([1.0]), 10**400]
NO_INTEGERS = ["1", 1.0, True, [1], math.nan, np.array([1, 2]), np.float32(1)]
BAD: dict[str, tuple[list[Any], str]] = {
    "max_tokens": ([0, -1, None, 2**31, *NO_INTEGERS], "max_tokens must be an integer from 1 to 2147483647, got "),
    "top_k": ([-1, None, 2**31, *NO_INTEGERS], "top_k must be an integer from 0 to 2147483647, got "),
    "seed": ([-1, 2**31, *NO_INTEGERS], "seed must be an integer from 0 to 2147483647, got "),
    "temperature": ([-0.1, -1, *NO_NUMBERS], "temperature must be a finite number at least 0, got "),
    "top_p": ([0, 0.0, -0.5, 1.01, 2, *NO_NUMBERS], "top_p must be a finite number above 0 and at most 1, got "),
    "min_p": ([-0.1, 1.1, *NO_NUMBERS], "min_p must be a finite number at least 0 and at most 1, got "),
    "ignore_eos": ([0, 1, None, "no"], "ignore_eos must be True or False, got "),
    "stop_token_ids": (
        [2, None, "ab", b"ab", [1.5], ["a"], [None], [True], [[1]]],
        "stop_token_ids must be a sequence of integers, got ",
    ),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (values, _) in BAD.items() for value in values])
def test_a_value_out_of_range_is_told_with_what_was_expected_and_what_came(name: str, value: Any) -> None:
    expected = re.escape(f"{BAD[name][1]}{value!r:.80}")
    with pytest.raises(InvalidRequest, match=expected):
        SamplingParams.from_options({name: value})


def test_every_parameter_is_tried_with_bad_values() -> None:
    names = {field.name for field in fields(SamplingParams)}
    assert names == set(BAD) == set(SamplingOptions.__annotations__)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 1), ("max_tokens", 2**31 - 1), ("top_k", 0), ("seed", 0), ("seed", 2**31 - 1), ("seed", None),
        ("temperature", 0), ("temperature", 0.0), ("temperature", 5), ("top_p", 1), ("top_p", 1e-9), ("min_p", 0),
        ("min_p", 1.0), ("ignore_eos", True),
    ],
)  # fmt: skip
def test_the_ends_of_a_range_are_in_it(name: str, value: Any) -> None:
    assert getattr(SamplingParams.from_options({name: value}), name) == value


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.uint64])
def test_numpy_integers_are_integers_and_become_pythons(kind: Callable[[int], Any]) -> None:
    params = SamplingParams.from_options({"max_tokens": kind(100), "seed": kind(3), "stop_token_ids": [kind(7)]})
    assert params.max_tokens + 1000 == 1100
    assert type(params.max_tokens) is type(params.seed) is int
    assert params.stop_token_ids == {7}
    assert {type(token) for token in params.stop_token_ids} == {int}


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int32])
def test_numpy_numbers_are_numbers_and_become_pythons(kind: Callable[[float], Any]) -> None:
    params = SamplingParams.from_options({"temperature": kind(1), "top_p": kind(1)})
    assert params.temperature == params.top_p == 1.0
    assert type(params.temperature) is float


def test_stop_token_ids_are_taken_from_any_sequence() -> None:
    for ids in ([3, 4], (4, 3), {3, 4}, np.array([3, 4, 3]), iter([3, 4])):
        assert SamplingParams.from_options({"stop_token_ids": ids}).stop_token_ids == {3, 4}
    assert SamplingParams.from_options({"stop_token_ids": []}).stop_token_ids == frozenset()


def test_an_unknown_keyword_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown sampling parameter 'max_token'; did you mean max_tokens\?"):
        SamplingParams.from_options({"max_token": 3})
    with pytest.raises(InvalidRequest, match=r"unknown sampling parameter 'zzz'; known are temperature, top_k, .*"):
        SamplingParams.from_options({"zzz": 3})


@pytest.mark.parametrize("name", sorted(NOT_YET))
def test_what_is_not_supported_yet_is_rejected_by_name_and_not_ignored(name: str) -> None:
    with pytest.raises(
        InvalidRequest, match=f"^{name} is not supported yet; supported are temperature, .*stop_token_ids"
    ):
        SamplingParams.from_options({name: None})


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
