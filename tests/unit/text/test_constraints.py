"""A constraint is checked at the call, and the meaning of a whole output is its value."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pydantic
import pytest
from typing_extensions import TypedDict

from rekindle.core.errors import BatchFailed, ConstraintFailed, InvalidBatch, InvalidRequest
from rekindle.core.request.params import SamplingParams
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session


class City(pydantic.BaseModel):
    name: str
    people: int = pydantic.Field(ge=0)


@dataclass
class Point:
    x: int
    y: float


class Record(TypedDict):
    kind: Literal["a", "b"]


class Color(Enum):
    RED = "red"


@pytest.fixture(scope="module")
def session(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    with fake_session(fake_loaded_engine(fake_limits(max_context=128), tokenizer=byte_tokenizer)) as session:
        yield session


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "3", 3),
        ('{"type": "integer"}', "3", 3),
        (City, '{"name": "Oslo", "people": 7}', City(name="Oslo", people=7)),
        (Point, '{"x": 1, "y": 2}', Point(1, 2.0)),
        (Record, '{"kind": "a"}', {"kind": "a"}),
        (list[Point], '[{"x": 1, "y": 2.5}]', [Point(1, 2.5)]),
        (Color, '"red"', Color.RED),
        (int | None, "null", None),
    ],
)
def test_a_schema_may_be_a_dict_or_a_type(schema: Any, text: str, value: Any) -> None:
    constraint = SamplingParams.from_options({"json_schema": schema}).constraint
    assert constraint is not None
    assert constraint.value(text) == value
    assert isinstance(json.loads(constraint.text), dict)


def test_what_the_type_alone_refuses_has_no_value() -> None:
    class Even(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("it is odd")
            return n

    constraint = SamplingParams.from_options({"json_schema": Even}).constraint
    assert constraint is not None
    with pytest.raises(ValueError, match="it is odd"):
        constraint.value('{"n": 3}')


def test_a_type_without_pydantic_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(InvalidRequest, match="pip install pydantic, or give the JSON schema as a dict"):
        SamplingParams.from_options({"json_schema": Point})
    assert SamplingParams.from_options({"json_schema": {}}).constraint is not None


class Unknown:
    """A class that pydantic knows nothing of."""


def test_what_is_no_type_is_refused_with_what_to_do() -> None:
    wrongs: tuple[tuple[Any, str], ...] = (
        (City(name="Oslo", people=7), "got an object of one, City(name='Oslo', people=7): give City"),
        (Point(1, 2.0), "give Point"),
        (len, "got a function, <built-in function len>"),
        (lambda x: x, "got a function"),
        (Unknown, "a type that pydantic knows"),
        (object(), "a type that pydantic knows"),
        ([1], "a type such as a pydantic model or a dataclass, got [1]"),
    )
    for wrong, message in wrongs:
        with pytest.raises(InvalidRequest) as raised:
            SamplingParams.from_options({"json_schema": wrong})
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": "{"}, "this text is not JSON"),
    ({"json_schema": "[1]"}, "which is an object"),
    ({"json_schema": {"a": {1, 2}}}, "this is not JSON"),
    ({"json_schema": {"enum": [float("nan")]}}, "this is not JSON"),
    ({"json_schema": {"type": "integer", "not": {}}}, 'Unimplemented keys: ["not"]'),
    ({"json_schema": {"type": "integer", "not": {}, "x-guidance": {"lenient": True}}}, 'Unimplemented keys: ["not"]'),
    (
        {"json_schema": {"type": "string", "minLength": 3, "maxLength": 2}},
        "minLength (3) is greater than maxLength (2)",
    ),
    ({"json_schema": {"enum": []}}, "Unsatisfiable schema"),
    ({"json_schema": {"$ref": "#/nowhere"}}, "json_schema cannot be served"),
    ({"json_schema": {"minProperties": 2, "patternProperties": {"^[ab]$": {}}}}, "a repeated key would count twice"),
    ({"json_schema": {"items": {"type": "object", "minProperties": 3, "required": ["a"]}}}, "minProperties=3"),
    ({"regex": "(a"}, "unclosed group"),
    ({"regex": "(?=a)b"}, "look-around"),
    ({"regex": r"a[^\s\S]"}, "matches no text"),
    ({"choice": ["a"] * 5000}, "may be at most 4096 texts, got 5000"),
    ({"choice": ["\ud800"]}, "UTF-8"),
    ({"grammar": "start: nowhere"}, "nowhere"),
    ({"grammar": "nothing"}, "grammar cannot be served"),
    ({"regex": "a", "choice": ["a"]}, "regex and choice each constrain the output"),
    ({"regex": "a", "ignore_eos": True}, "which ignore_eos=True forbids"),
    ({"regex": "ab", "min_tokens": 3}, "allows nothing after 2 tokens, and min_tokens=3 asks for more"),
]


def test_a_limit_of_the_parser_is_told_as_what_it_is(session: Session) -> None:
    """Give alternatives beyond the parser's most items in a row, of which the request bans none."""
    many = " | ".join(f'"{number}" a' for number in range(1000, 4000))
    with pytest.raises(ConstraintFailed, match=r"the grammar failed after 1 token: .* max is 2000") as raised:
        session.generate_sync("hi", grammar=f'start: {many}\na: "x" | a "y"', max_tokens=6)
    assert "bad_words" not in str(raised.value)


@pytest.mark.parametrize(("options", "message"), BAD)
def test_what_cannot_be_served_is_told_at_the_call(session: Session, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidRequest, ConstraintFailed)) as raised:
        session.generate_sync("hi", **options)
    assert message in str(raised.value)
    assert "<state>" not in str(raised.value)
    with pytest.raises((InvalidBatch, InvalidRequest, BatchFailed)):
        session.generate_sync(["hi", "ho"], **options)
    assert session.generate_sync("hi", max_tokens=3).usage.completion_tokens == 3


def test_a_model_without_a_tokenizer_serves_no_constraint() -> None:
    with fake_session() as session, pytest.raises(InvalidRequest, match="no tokenizer, so regex cannot be served"):
        session.generate_sync(token_ids=[1], regex="a")


def test_where_nothing_is_left_to_choose_that_request_alone_fails(session: Session, byte_tokenizer: Tokenizer) -> None:
    digits = byte_tokenizer.encode("0123456789")
    free = session.generate_sync("ho", max_tokens=30)
    other = session.submit("ho", max_tokens=30)
    doomed = session.submit("hi", regex="[0-9]{2}x[0-9]", allowed_token_ids=digits)
    with pytest.raises(ConstraintFailed, match="no token was left to choose after 3"):
        doomed.result()
    assert other.result() == free


def test_forced_tokens_come_without_the_device(session: Session) -> None:
    before = session.stats.scheduler
    answer = session.generate_sync("hi", choice=["the only one"])
    after = session.stats.scheduler
    assert (answer.text, answer.finish_reason, answer.stopped_by) == ("the only one", "stop", None)
    assert after.ticks == before.ticks
    assert after.forced_tokens - before.forced_tokens == after.generated_tokens - before.generated_tokens == 12


def test_forced_tokens_behind_drawn_ones_are_computed_where_those_are(session: Session) -> None:
    before = session.stats.scheduler
    answer = session.generate_sync("hi", regex="[0-9] is the answer[a-z]")
    after = session.stats.scheduler
    assert answer.text[1:-1] == " is the answer"
    assert after.forced_tokens - before.forced_tokens == len(" is the answer")
    assert after.preemptions == before.preemptions


def test_a_scored_output_is_forced_by_masks_alone(session: Session) -> None:
    before = session.stats.scheduler.forced_tokens
    answer = session.generate_sync("hi", choice=["the only one"], logprobs=0)
    assert (answer.text, len(answer.logprobs or ())) == ("the only one", 12)
    assert session.stats.scheduler.forced_tokens == before


def test_a_cut_output_is_told(session: Session) -> None:
    answer = session.generate_sync("hi", regex="[a-z]{20}", max_tokens=6)
    assert (answer.finish_reason, answer.parsed) == ("length", None)
    assert answer.unparsed == "the output was cut before the regular expression was fulfilled; raise max_tokens"
    assert "not parsed" in repr(answer._repr_mimebundle_())
    whole = session.generate_sync("hi", regex="[a-z]{6}", max_tokens=6)
    assert (whole.finish_reason, whole.parsed, whole.unparsed) == ("stop", whole.text, None)


def test_a_stop_string_ends_a_constrained_output(session: Session) -> None:
    answer = session.generate_sync("hi", regex="ab(cd|ef)+xyz", stop="bc", max_tokens=50)
    again = session.generate_sync("hi", regex="abcdxyz(a|b)", stop="cdx")
    assert (again.text, again.stopped_by, again.parsed) == ("ab", "cdx", None)
    assert answer.stopped_by in ("bc", None)
    assert "the stop string 'cdx' ended the output" in str(again.unparsed)


def test_a_branch_goes_on_within_its_constraint(session: Session) -> None:
    answer = session.generate_sync("hi", regex="[ab]{3}(x|y)z", logprobs=2)
    other = "b" if answer.text[1] == "a" else "a"
    branch = answer.branch(1, other, logprobs=None).result()
    assert branch.text[:2] == answer.text[0] + other
    assert branch.parsed == branch.text
    with pytest.raises(InvalidRequest, match="start of the output does not match the regular expression"):
        answer.branch(1, "q", logprobs=None).result()


def test_draws_and_streams_are_held_to_it_too(session: Session) -> None:
    draws = session.generate_sync("hi", n=5, seed=3, regex="[!-z]{5}~?")
    assert len({draw.text for draw in draws}) > 1
    assert all(draw.parsed == draw.text for draw in draws)
    stream = session.stream_sync("hi", regex="[!-z]{5}~?")
    assert "".join(piece.text for piece in stream) == session.generate_sync("hi", regex="[!-z]{5}~?").text
