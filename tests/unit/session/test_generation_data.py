"""A generation survives JSON, pickling and copying unchanged, and its JSON form stays stable."""

import ast
import copy
import json
import math
import pickle
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle import CachedTokens, Generation, InvalidData, Piece, Timings, TokenLogprob, Usage
from rekindle.formats.response import MessageForm, Response, ToolCall
from rekindle.testing import fake_session

TOP = TokenLogprob(7, "é", -0.1, 1, (), "é".encode())
FORM = MessageForm("thinking", True, False)
FULL = Generation(
    text="né",
    token_ids=(5, 6),
    finish_reason="stop",
    stopped_by=6,
    logprobs=(TokenLogprob(5, "n", -1.5, 2, (TOP,), b"n"), TokenLogprob(6, r"\xc3", -math.inf, 9, (), b"\xc3")),
    prompt_logprobs=(None, TOP),
    prompt_token_ids=(3, 4),
    seed=2**63,
    usage=Usage(2, 2, 1, 1),
    timings=Timings(0.1, 0.30000000000000004, 1e-300),
    cached=CachedTokens(1, 0, 1),
    cut=b"\xc3",
    end_token="</s>",
    begun=1,
    response=Response(
        "né", "Hm.", (ToolCall("f", {"x": [1, None]}, "<f>", "a1"), ToolCall("", {}, "<", "b2", "no JSON")), FORM
    ),
    drawn_in=4,
    weights_version=((0, 1), (2, 1)),
    prompt="Say n.",
    repeats_at=1,
)
GOLDEN = """
{"version": 7, "text": "n\\u00e9", "token_ids": [5, 6], "finish_reason": "stop", "stopped_by": 6, "logprobs":
[{"token_id": 5, "text": "n", "logprob": -1.5, "rank": 2, "top": [{"token_id": 7, "text": "\\u00e9", "logprob": -0.1,
"rank": 1, "top": [], "bytes": "w6k="}], "bytes": "bg=="}, {"token_id": 6, "text": "\\\\xc3", "logprob": "-inf",
"rank": 9, "top": [], "bytes": "ww=="}], "prompt_logprobs": [null, {"token_id": 7, "text": "\\u00e9", "logprob": -0.1,
"rank": 1, "top": [], "bytes": "w6k="}], "prompt_token_ids": [3, 4], "seed": 9223372036854775808, "usage":
{"prompt_tokens": 2, "completion_tokens": 2, "reasoning_tokens": 1, "image_tokens": 1}, "timings":
{"queued": 0.1, "first_token": 0.30000000000000004, "total": 1e-300},
"cached": {"device": 1, "host": 0, "disk": 1}, "cut": "ww==", "end_token": "</s>",
"begun": 1, "constraint": null, "response": {"content": "n\\u00e9", "reasoning": "Hm.", "tool_calls": [{"name": "f",
"arguments": {"x": [1, null]}, "text": "<f>", "id": "a1", "error": null}, {"name": "", "arguments": {}, "text": "<",
"id": "b2", "error": "no JSON"}], "form": {"reasoning_key": "thinking", "arguments_as_text": true, "null_content":
false}}, "weights_version": [[0, 1], [2, 1]], "prompt": "Say n.",
"repeats_at": 1}
"""
"""FULL in version 7 of the form, readable by this and every later Rekindle."""

counts, texts = st.integers(0, 2**63), st.text(max_size=5)
floats = st.floats(allow_nan=False)
ids = st.lists(counts, max_size=3).map(tuple)
tokens = st.recursive(
    st.builds(TokenLogprob, counts, texts, floats, counts, bytes=st.binary(max_size=4)),
    lambda inner: st.builds(
        TokenLogprob, counts, texts, floats, counts, st.lists(inner, max_size=2).map(tuple), st.binary(max_size=4)
    ),
    max_leaves=3,
)
generations = st.builds(
    Generation,
    text=texts,
    token_ids=ids,
    finish_reason=st.sampled_from(["stop", "length", "cancelled", "held"]),
    stopped_by=st.none() | texts | counts,
    logprobs=st.none() | st.lists(tokens, max_size=3).map(tuple),
    prompt_logprobs=st.none() | st.lists(st.none() | tokens, max_size=3).map(tuple),
    prompt_token_ids=ids,
    seed=st.none() | counts,
    usage=st.builds(Usage, counts, counts, counts, counts),
    timings=st.builds(Timings, floats, floats, floats),
    cached=st.builds(CachedTokens, counts, counts, counts),
    cut=st.binary(max_size=3),
    end_token=st.none() | texts,
    begun=counts,
    constraint=st.sampled_from([None, "json_schema", "regex"]),
    response=st.none()
    | st.builds(
        Response,
        texts,
        st.none() | texts,
        st.lists(st.builds(ToolCall, texts, st.dictionaries(texts, counts | texts), texts, texts), max_size=2).map(
            tuple
        ),
    ),
    weights_version=st.lists(st.tuples(counts, counts), max_size=2).map(tuple),
    prompt=st.none() | texts,
    repeats_at=st.none() | counts,
)


MADE_AGAIN = ("drawn_in", "parsed", "unparsed")


def whole(generation: Generation) -> dict[str, Any]:
    """Return all attributes with a life beyond the notebook, also the ones outside of a comparison."""
    return {name: getattr(generation, name) for name in Generation.__slots__ if name not in MADE_AGAIN}


def through_json(generation: Generation) -> Generation:
    return Generation.from_dict(json.loads(json.dumps(generation.to_dict(), allow_nan=False)))


def test_the_form_is_pinned() -> None:
    assert FULL.to_dict() == json.loads(GOLDEN)
    assert list(FULL.to_dict()) == list(json.loads(GOLDEN))
    assert whole(Generation.from_dict(json.loads(GOLDEN))) == whole(FULL)


def test_the_forms_before_are_read() -> None:
    before = json.loads(GOLDEN) | {"version": 6}
    del before["usage"]["image_tokens"]
    without = replace(FULL, usage=Usage(2, 2, 1))
    assert whole(Generation.from_dict(before)) == whole(without)
    del before["repeats_at"]
    before, without = before | {"version": 5}, replace(without, repeats_at=None)
    assert whole(Generation.from_dict(before)) == whole(without)
    del before["prompt"]
    before, without = before | {"version": 4}, replace(without, prompt=None)
    assert whole(Generation.from_dict(before)) == whole(without)
    del before["weights_version"]
    before, without = before | {"version": 3}, replace(without, weights_version=())
    assert whole(Generation.from_dict(before)) == whole(without)
    del before["usage"]["reasoning_tokens"]
    before, without = before | {"version": 2}, replace(without, usage=Usage(2, 2))
    assert whole(Generation.from_dict(before)) == whole(without)
    del before["constraint"], before["response"]
    assert whole(Generation.from_dict(before | {"version": 1})) == whole(replace(without, response=None))


@pytest.mark.parametrize(
    ("constraint", "text", "reason", "value"),
    [
        ("json_schema", '{"a": [1, null]}', "stop", {"a": [1, None]}),
        ("json_schema", "null", "stop", None),
        ("choice", "yes", "stop", "yes"),
        (None, "1", "stop", None),
    ],
)
def test_what_a_text_means_is_read_again(constraint: Any, text: str, reason: Any, value: Any) -> None:
    payload = replace(FULL, constraint=constraint, text=text, finish_reason=reason, response=None).to_dict()
    generation = Generation.from_dict(json.loads(json.dumps(payload)))
    assert generation.parsed == value
    assert generation.unparsed is None
    cut = Generation.from_dict(payload | {"finish_reason": "length"})
    assert cut.parsed is None
    assert (cut.unparsed is None) == (constraint is None)


def test_the_form_in_the_docstring_is_the_form() -> None:
    example = re.search(r"\{.*\}", Generation.to_dict.__doc__ or "", re.DOTALL)
    assert example is not None
    payload = ast.literal_eval(example[0])
    assert Generation.from_dict(payload).to_dict() == payload


@settings(max_examples=20, deadline=None)
@given(generations)
def test_nothing_is_lost_in_json(generation: Generation) -> None:
    again = through_json(generation)
    assert again == generation
    assert whole(again) == whole(generation)


@settings(max_examples=20, deadline=None)
@given(generations)
def test_json_by_its_own_method_and_within_other_values_is_that_of_the_dict(generation: Generation) -> None:
    assert generation.to_json() == json.dumps(generation.to_dict())
    among = json.loads(json.dumps({"answers": [generation]}, default=Generation.to_dict))
    assert Generation.from_dict(among["answers"][0]) == generation


def test_a_number_that_is_none_is_read_as_it_was() -> None:
    token = TokenLogprob(1, "a", math.nan, 1)
    logprobs = through_json(replace(FULL, logprobs=(token,))).logprobs
    assert logprobs is not None
    assert math.isnan(logprobs[0].logprob)


def test_what_a_session_returns_is_plain() -> None:
    options: dict[str, Any] = {"max_tokens": 3, "logprobs": 2, "prompt_logprobs": 1, "temperature": 1}
    with fake_session() as session:
        batch = session.generate_sync(token_ids=[[3, 1], [4]], n=2, **options)
    assert [[through_json(each) for each in draws] for draws in batch] == batch
    assert pickle.loads(pickle.dumps(batch)) == batch == copy.deepcopy(batch)


def changed(**changes: Any) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(GOLDEN)
    return payload | changes


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (changed(version=8), "expected a generation of version 1 to 7, as returned by to_dict(), got version 8"),
        ({}, "got version None"),
        ([], "expected a dict"),
        ({"version": 2}, "got one with no text and no token_ids"),
        (changed(extra=1), "got one with an unknown extra"),
        (changed(token_ids="5 6"), "token_ids: expected a list, got '5 6'"),
        (changed(token_ids=[5, "6"]), "token_ids: item 1: expected int, got '6'"),
        (changed(finish_reason="eos"), "finish_reason: expected 'stop' or"),
        (changed(stopped_by=True), "stopped_by: expected str or int or null, got True"),
        (changed(weights_version=[[0, 1], [1]]), "weights_version: item 1: expected two integers, got [1]"),
        (changed(cut="?"), "cut: expected bytes in base64, got '?'"),
        (changed(usage=None), "usage: expected an object with prompt_tokens, completion_tokens,"),
        (changed(timings={"queued": "0", "first_token": 0, "total": 0}), "timings: queued: expected a number"),
        (changed(logprobs=[None]), "logprobs: item 0: expected an object with token_id"),
    ],
)
def test_what_is_no_generation_is_refused_in_words(payload: Any, message: str) -> None:
    with pytest.raises(InvalidData, match=re.escape(message)):
        Generation.from_dict(payload)


VALUES = [
    FULL,
    TOP,
    Piece("né", (5, 6), (TOP, TOP)),
    Usage(2, 3),
    Timings(0.1, 0.2, 0.3),
    CachedTokens(1, 2, 3),
    [FULL, replace(FULL, text="")],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_results_are_equal_after_pickling(value: Any, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(value, protocol))
    assert again == value
    assert type(again) is type(value)
    if isinstance(value, Generation):
        assert whole(again) == whole(value)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_results_are_equal_after_copying(value: Any) -> None:
    assert copy.copy(value) == copy.deepcopy(value) == value


def test_the_cell_that_has_drawn_it_is_this_notebooks_alone() -> None:
    assert FULL.drawn_in == 4
    assert pickle.loads(pickle.dumps(FULL)).drawn_in is None
    assert through_json(FULL).drawn_in is None


def test_timings_and_cached_tokens_do_not_count_and_equals_have_one_hash() -> None:
    later = replace(FULL, timings=Timings(1, 2, 3), cached=CachedTokens(), end_token=None, drawn_in=None)
    assert later == FULL
    assert hash(later) == hash(FULL)
    assert len({FULL, later, replace(FULL, text="other")}) == 2
    assert all(hash(copy.deepcopy(value)) == hash(value) for value in VALUES if not isinstance(value, list))
