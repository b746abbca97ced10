"""A stop string ends its request where a reader of the text would, in whatever order the stages run."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.client.handle import Handle
from rekindle.core.errors import RequestCancelled
from rekindle.core.request.params import SamplingOptions
from rekindle.core.text.incremental import IncrementalDecoder
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.testing import expected_of
from tests.unit.limits import WAYS
from tests.unit.stages import Stages, request_of, shuffled
from tests.unit.stop_definition import first_stop

pytestmark = pytest.mark.filterwarnings("ignore::rekindle.ParametersIgnored")  # some are mixed with temperature 0

LETTERS = "aé\n"
"""The usual letters of the fake model: few, so stop strings come up often."""


@dataclass(frozen=True)
class Ask:
    """One request; `cuts` are (place, length) of stop strings in the text of a request without stops."""

    prompt: tuple[int, ...]
    options: SamplingOptions
    few_letters: bool
    cuts: list[tuple[int, int]]
    strays: list[str]


@dataclass(frozen=True)
class Expected:
    """The right end of one request."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stopped_by: str | int | None


ASK = st.builds(
    Ask,
    prompt=st.lists(st.integers(0, 250), min_size=1, max_size=20).map(tuple),
    options=st.fixed_dictionaries(
        {
            "max_tokens": st.sampled_from([30, 12, 2, 1]),
            "keep_stop": st.booleans(),
            "temperature": st.sampled_from([0.0, 1.0]),
            "seed": st.integers(0, 250),
        },
        optional={"min_tokens": st.integers(0, 12)},
    ),
    few_letters=st.sampled_from([True, True, False]),
    cuts=st.lists(st.tuples(st.integers(0, 29), st.integers(1, 5)), max_size=3),
    strays=st.lists(st.text(LETTERS + "\ufffd", min_size=1, max_size=4), max_size=2),
)
LIMITS = st.fixed_dictionaries(WAYS | {"num_pages": st.integers(4, 9), "max_running": st.integers(1, 3)})


def pieces_of(token_ids: tuple[int, ...], tokenizer: Tokenizer) -> list[str]:
    """Return the text completed by each token; the last has the rest."""
    decoder = IncrementalDecoder(tokenizer)
    pieces = [decoder.push(token) for token in token_ids]
    rest, cut = decoder.finish()
    pieces[-1] += rest
    assert "".join(pieces) + ("\ufffd" if cut else "") == tokenizer.decode(token_ids)
    return pieces


def read(pieces: list[str], stops: list[str], min_tokens: int) -> tuple[str, int, str | None]:
    """Return, by definition, the text through the first complete stop, its number of tokens, and the stop."""
    end, stop = first_stop([(piece, count >= min_tokens) for count, piece in enumerate(pieces, 1)], stops)
    ends = list(accumulate(map(len, pieces)))
    return "".join(pieces)[:end], len(pieces) if stop is None else 1 + bisect_left(ends, end), stop


def resolved(ask: Ask, capacity: int, tokenizer: Tokenizer) -> tuple[SamplingOptions, Expected]:
    """Return the options of a request and its expected end. Its end token would come early or late."""
    options: SamplingOptions = {**ask.options}
    options["min_tokens"] = min(options.get("min_tokens", 0), options["max_tokens"] or 0)
    if ask.few_letters:
        options["allowed_token_ids"] = sorted({*tokenizer.encode(LETTERS), 250})
        options["stop_token_ids"] = [250]
    token_ids = expected_of(request_of(ask.prompt, options, capacity))
    pieces = pieces_of(token_ids, tokenizer)
    full = "".join(pieces)
    stops = [full[place : place + length] for place, length in ask.cuts] + ask.strays
    options["stop"] = [stop for stop in stops if stop]
    text, count, stop = read(pieces, list(options["stop"] or ()), options["min_tokens"])
    if stop is not None:
        text = text if options.get("keep_stop") else text[: -len(stop)]
        return options, Expected(text, token_ids[:count], "stop", stop)
    if ask.few_letters and token_ids[-1] == 250:
        return options, Expected(text, token_ids, "stop", token_ids[-1])
    return options, Expected(text, token_ids, "length", None)


def assert_ended_as(handle: Handle, expected: Expected) -> None:
    got = handle.result(timeout=0)
    assert Expected(got.text, got.token_ids, got.finish_reason, got.stopped_by) == expected
    assert got.usage.completion_tokens == len(expected.token_ids)
    pieces = [*handle]
    assert "".join(piece.text for piece in pieces) == expected.text
    assert tuple(token for piece in pieces for token in piece.token_ids) == expected.token_ids


def assert_cut_short(handle: Handle, expected: Expected) -> None:
    """Check the text of a cancelled request: it is the beginning of the expected text."""
    text, tokens = "", tuple[int, ...]()
    with pytest.raises(RequestCancelled):  # noqa: PT012 - the pieces before the error count
        for piece in handle:
            text, tokens = text + piece.text, tokens + piece.token_ids
    assert tokens == expected.token_ids[: len(tokens)]
    whole = expected.text + (expected.stopped_by if isinstance(expected.stopped_by, str) else "")
    assert whole.startswith(text.removesuffix("\ufffd"))


def check(asks: list[Ask], limits: dict[str, Any], order: int, cancels: list[int], tokenizer: Tokenizer) -> None:
    stages, choose = Stages(tokenizer, **limits), shuffled(order)
    expectations = [resolved(ask, stages.limits.max_context, tokenizer) for ask in asks]
    handles = [stages.ask(ask.prompt, **options) for ask, (options, _) in zip(asks, expectations, strict=True)]
    for steps in cancels:
        for _ in range(steps):
            stages.step(choose)
        handles[steps % len(handles)].cancel()
    stages.run(choose)
    cancelled = {steps % len(handles) for steps in cancels}
    for place, (handle, (_, expected)) in enumerate(zip(handles, expectations, strict=True)):
        if place in cancelled and "cancelled" in repr(handle):
            assert_cut_short(handle, expected)
        else:
            assert_ended_as(handle, expected)
    stats = stages.assert_nothing_is_left()
    assert stats.ended == len(asks)
    assert cancels or stats.generated_tokens >= sum(len(expected.token_ids) for _, expected in expectations)


STORY = {
    "asks": st.lists(ASK, min_size=1, max_size=4),
    "limits": LIMITS,
    "order": st.integers(0, 2**32),
    "cancels": st.just([]) | st.lists(st.integers(0, 60), max_size=3),
}


@settings(max_examples=150)
@given(**STORY)
def test_a_text_is_cut_as_its_definition_says_in_any_order_of_the_stages(
    byte_tokenizer: Tokenizer, asks: list[Ask], limits: dict[str, Any], order: int, cancels: list[int]
) -> None:
    check(asks, limits, order, cancels, byte_tokenizer)


@pytest.mark.deep
@settings(max_examples=5000, derandomize=False)
@given(**STORY)
def test_a_text_is_cut_as_its_definition_says_in_very_many_orders(
    byte_tokenizer: Tokenizer, asks: list[Ask], limits: dict[str, Any], order: int, cancels: list[int]
) -> None:
    check(asks, limits, order, cancels, byte_tokenizer)
