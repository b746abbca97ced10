"""Any choice among the allowed tokens of a grammar leads to an output within the constraint."""

import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.core.errors import ConstraintFailed, RekindleError
from rekindle.core.request.constraint import Allowed
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.text.grammar import Compiler, Matcher
from rekindle.core.text.masks import MaskBatcher, Masks, SerialMasks, ThreadedMasks, run_steps
from rekindle.core.text.tokenizer import Tokenizer
from tests.unit.scripted import tokenizer

VOCAB_SIZE, END = 49152, 2
LONGEST = 400


@pytest.fixture(scope="module")
def compiler(smollm2_tokenizer: Tokenizer) -> Compiler:
    return Compiler(smollm2_tokenizer, VOCAB_SIZE, {END})


def place_of(compiler: Compiler, options: dict[str, Any]) -> Matcher:
    params = SamplingParams.from_options({**options, "max_tokens": LONGEST})
    assert params.constraint is not None
    request = Request(0, (5,), params, frozenset({END}), LONGEST + 1)
    return compiler.compile(params.constraint).matcher(request)


def tokens_of(outcome: Allowed | RekindleError) -> list[int]:
    """Return the allowed next tokens; none where the output is complete, or has failed."""
    if isinstance(outcome, RekindleError) or outcome.bits is None:
        return []
    return [int(token) for token in np.flatnonzero(np.unpackbits(outcome.bits.view(np.uint8), bitorder="little"))]


def walked(compiler: Compiler, options: dict[str, Any], seed: int, fewest: int = 2**30) -> list[int] | None:
    """Return the tokens of an output, each drawn at random from the allowed ones; None if it has no end.

    The choice at a place depends on the seed and the place alone. Where the output may end, it often does.
    """
    place = place_of(compiler, options)
    allowed, tokens = run_steps(place.start()), list[int]()
    while True:
        tokens += allowed.forced
        if allowed.complete:
            return tokens
        if len(tokens) >= LONGEST:
            return None
        chance = random.Random(1000 * seed + len(tokens))
        may = tokens_of(allowed)
        assert may, "nothing is left to choose"
        token = may[chance.randrange(len(may))]
        if END in may and chance.random() < 0.5:
            token = END
        if token == END:
            return tokens
        tokens.append(token)
        allowed = run_steps(place.take(token, fewest))


pieces = st.sampled_from(["a", "bc", "é", "[0-9]", r"\.", "[a-f]", "[^a-y\\n]", "[A-Z0-9]", " ", "-", "<b>", '"', "😀"])
patterns = st.recursive(
    pieces,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["?", "{2}", "{0,3}", "{1,4}", "*", "+"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(pattern=patterns, seed=st.integers(0, 999))
def test_a_regular_expression_matches_what_comes_of_it(
    compiler: Compiler, smollm2_tokenizer: Tokenizer, pattern: str, seed: int
) -> None:
    tokens = walked(compiler, {"regex": pattern}, seed)
    if tokens is not None:
        text = smollm2_tokenizer.decode(tokens, skip_special_tokens=False)
        assert re.fullmatch(pattern, text), (pattern, text)


names = st.sampled_from(["a", "name", "größe", "x y", 'q"', "long_name_of_a_property"])
numbers = st.integers(-1000, 1000)
leaves: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.tuples(numbers, st.integers(0, 500)).map(
        lambda two: {"type": "integer", "minimum": two[0], "maximum": two[0] + two[1]}
    ),
    st.just({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    st.integers(0, 5).map(lambda least: {"type": "string", "minLength": least, "maxLength": least + 4}),
    st.sampled_from([r"^[A-Z]{2}-[0-9]{1,3}$", r"^[a-z_]+@[a-z]+\.(com|org)$"]).map(
        lambda p: {"type": "string", "pattern": p}
    ),
    st.sampled_from(["date", "ipv4", "uuid", "email"]).map(lambda form: {"type": "string", "format": form}),
    st.lists(st.sampled_from([1, "b", None, 2.5, [1], {"c": 2}]), min_size=1, max_size=3).map(lambda v: {"enum": v}),
    st.just({"const": {"fixed": [1, 2]}}),
    st.just({"$ref": "#/$defs/tree"}),
)


def an_object(properties: dict[str, dict[str, Any]]) -> dict[str, Any]:
    required = [name for place, name in enumerate(properties) if place % 2 == 0]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(names, inner, min_size=1, max_size=4).map(an_object),
        inner.map(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 3}),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some}),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda some: {"type": "array", "prefixItems": some, "items": False, "minItems": len(some)}
        ),
    ),
    max_leaves=8,
)
TREE = {
    "type": "object",
    "properties": {"leaf": {"type": "integer", "minimum": 0, "maximum": 9}, "under": {"$ref": "#/$defs/tree"}},
    "required": ["leaf"],
    "additionalProperties": False,
}


@settings(max_examples=50, deadline=None)
@given(schema=schemas, seed=st.integers(0, 999))
def test_json_that_comes_of_a_schema_is_valid(
    compiler: Compiler, smollm2_tokenizer: Tokenizer, schema: dict[str, Any], seed: int
) -> None:
    whole = {**schema, "$defs": {"tree": TREE}}
    tokens = walked(compiler, {"json_schema": whole}, seed)
    if tokens is not None:
        value = json.loads(smollm2_tokenizer.decode(tokens, skip_special_tokens=False))
        jsonschema.validate(value, whole, format_checker=jsonschema.FormatChecker())


FORCED: dict[str, Any] = {"schema": schemas, "seed": st.integers(0, 99), "fewest": st.sampled_from([1, 2, 5])}


@settings(max_examples=6, deadline=None)
@given(**FORCED)
def test_forced_tokens_are_those_that_would_have_been_chosen(
    compiler: Compiler, schema: dict[str, Any], seed: int, fewest: int
) -> None:
    options = {"json_schema": {**schema, "$defs": {"tree": TREE}}}
    assert walked(compiler, options, seed, fewest) == walked(compiler, options, seed)


@pytest.mark.wide
@settings(max_examples=40, deadline=None)
@given(**FORCED)
def test_forced_tokens_of_many_schemas_are_those_that_would_have_been_chosen(
    compiler: Compiler, schema: dict[str, Any], seed: int, fewest: int
) -> None:
    options = {"json_schema": {**schema, "$defs": {"tree": TREE}}}
    assert walked(compiler, options, seed, fewest) == walked(compiler, options, seed)


def test_choices_are_taken_as_they_stand(compiler: Compiler, smollm2_tokenizer: Tokenizer) -> None:
    texts = ["a|b", "(", "^$.*+?", "back\\slash", "new\nline", '"quoted"', "tab\t", "<|", "\u2028", "é", "{3}", " x"]
    for text in texts:
        tokens = walked(compiler, {"choice": [text]}, seed=0)
        assert tokens is not None
        assert smollm2_tokenizer.decode(tokens, skip_special_tokens=False) == text
    outputs = {smollm2_tokenizer.decode(walked(compiler, {"choice": texts}, seed) or []) for seed in range(200)}
    assert outputs == set(texts)


def test_an_end_token_that_is_no_special_one_ends_an_output_and_is_not_inside_of_it() -> None:
    text = tokenizer(every_byte=True)
    (end,), limit = text.encode_chat("#"), text.vocab_size + 1
    params = SamplingParams.from_options({"json_schema": {"type": "string"}, "max_tokens": LONGEST, "logprobs": 0})
    request = Request(0, (5,), params, frozenset({end}), LONGEST + 1)
    assert params.constraint is not None
    place = Compiler(text, limit, {end}).compile(params.constraint).matcher(request)
    run_steps(place.start())
    for letter, may_end in (('"', False), ("a", False), ('"', True)):
        (token,) = text.encode_chat(letter)
        allowed = run_steps(place.take(token, 2**30))
        assert (allowed.complete or end in tokens_of(allowed)) == may_end


def test_a_grammar_compiles_once(compiler: Compiler) -> None:
    again = [SamplingParams.from_options({"regex": "[ab]+c"}).constraint for _ in range(2)]
    assert again[0] is not None
    assert again[1] is not None
    assert compiler.compile(again[0]) is compiler.compile(again[1])


def test_masks_computed_together_are_those_computed_alone(compiler: Compiler) -> None:
    kinds: list[dict[str, Any]] = [
        {"regex": "[ab]{3,9}c"},
        {"choice": ["one", "two"]},
        {"json_schema": {**TREE, "$defs": {"tree": TREE}}},
    ] * 3

    def story(masks: Masks) -> list[list[tuple[int, type, list[int]]]]:
        together = MaskBatcher(masks)
        places = [place_of(compiler, options) for options in kinds]
        for index, place in enumerate(places):
            together.begin(index, place.start())
        outcomes, late = together.advance(range(len(kinds)), lambda: False)
        turns = []
        for turn in range(12):
            assert not late
            turns.append([(index, type(each), tokens_of(each)) for index, each in outcomes])
            going = [(index, tokens) for index, _, tokens in turns[-1] if tokens]
            for index, tokens in going:
                token = 1 if index == turn else tokens[turn % 2 - 1]  # one that is not allowed, once in each
                together.begin(index, places[index].take(token, 2))
            outcomes, late = together.advance([index for index, _ in going], lambda: False)
        return turns

    threaded = story(ThreadedMasks(VOCAB_SIZE, 4))
    assert threaded == story(SerialMasks())
    assert {kind for turn in threaded for _, kind, _ in turn} == {Allowed, ConstraintFailed}, (
        "one fails, and others go on"
    )
    assert sum(len(turn) > 1 for turn in threaded) > 4
