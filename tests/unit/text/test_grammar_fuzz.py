"""Random grammars and schemas, small and at every bound, are parsed or refused by an error of Rekindle."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.core.errors import InvalidRequest
from rekindle.core.text.constraints.bounds import DEEPEST_SCHEMA, MOST_LEVELS, MOST_RULES
from rekindle.core.text.constraints.parser import parse_bytes
from tests.unit.text.test_grammar_bounds import LINKS, NESTS, definitions, nested, rules

SIZES = st.sampled_from(
    [1, 3, 50, DEEPEST_SCHEMA // 2, DEEPEST_SCHEMA, 500, MOST_LEVELS // 4, MOST_LEVELS // 2, MOST_RULES]
)
names = st.sampled_from([f"r{each}" for each in range(6)] + [f"T{each}" for each in range(4)])
atoms = names | st.sampled_from(
    ['"a"', '""', "/a*/", "/(a|b)*a/", "/[^a]/", "<[5]>", '%json {"type": "integer"}', '"a".."z"']
)
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(" ".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({' | '.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "~3", "{2,9}", "{99999}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=12,
)
grammars = st.lists(st.tuples(names, expressions), min_size=1, max_size=8).map(
    lambda pairs: "start: r0\n" + "\n".join(f"{name}: {body}" for name, body in dict(pairs).items())
)
chains = st.tuples(
    SIZES, st.sampled_from(['r{0}: "x" r{1}', "r{0}: r{1}", "r{0}: r{1} r{1}", 'r{0}: r{1} | "b"', 'r{0}: (r{1})* "c"'])
).map(lambda pair: rules(pair[0] + 2, pair[1]))
KEYWORDS: dict[str, Any] = {
    "type": st.sampled_from(["string", "integer", "array", "object", "null", ["string", "null"], 5, "str"]),
    "format": st.sampled_from(["path", "uuid", 5]),
    "pattern": st.sampled_from(["^a", "(?!a)", "(((", "a{999}{999}"]),
    "minLength": st.integers(-1, 9),
    "maximum": st.sampled_from([1, -5, 1e300, 2**70]),
    "enum": st.lists(st.integers() | st.text(max_size=3) | st.none(), max_size=3),
    "required": st.lists(st.sampled_from("ab"), max_size=2) | st.booleans(),
    "minItems": st.sampled_from([0, 3, 10**9]),
    "$ref": st.sampled_from(["#", "#/$defs/a", "#/nowhere", "https://example.org", 5]),
    "uniqueItems": st.booleans(),
    "not": st.just({}),
}
schemas = st.recursive(
    st.fixed_dictionaries({}, optional=KEYWORDS) | st.booleans() | st.just(5),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            **KEYWORDS,
            "items": inner,
            "anyOf": st.lists(inner, max_size=3),
            "oneOf": st.lists(inner, max_size=3),
            "allOf": st.lists(inner, max_size=3),
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "$defs": st.fixed_dictionaries({"a": inner}),
        },
    ),
    max_leaves=8,
)
linked = st.tuples(SIZES, st.sampled_from(sorted(LINKS))).map(lambda pair: definitions(pair[0] + 1, LINKS[pair[1]]))
nests = st.tuples(st.integers(1, 300), st.sampled_from(sorted(NESTS))).map(lambda pair: nested(pair[0], NESTS[pair[1]]))
constraints = st.tuples(st.just("grammar"), grammars | chains) | st.tuples(
    st.just("json_schema"), (schemas | linked | nests).map(json.dumps)
)


def check(kind: Any, text: str) -> bool:
    """Parse a constraint; return True unless it is refused."""
    refusals: list[InvalidRequest] = []
    try:
        assert not parse_bytes(kind, text, kind).is_error()
    except InvalidRequest as error:
        refusals.append(error)
    assert all(error.parameter == kind and "<state>" not in str(error) for error in refusals)
    return not refusals


@given(constraints)
@settings(max_examples=40)
def test_random_constraints_are_parsed_or_refused(constraint: tuple[str, str]) -> None:
    check(*constraint)


@pytest.mark.deep
def test_five_hundred_random_constraints_are_parsed_or_refused() -> None:
    outcomes: list[bool] = []

    @given(constraints)
    @settings(max_examples=500, derandomize=False)
    def fuzzed(constraint: tuple[str, str]) -> None:
        outcomes.append(check(*constraint))

    fuzzed()
    assert 50 < sum(outcomes) < len(outcomes)
