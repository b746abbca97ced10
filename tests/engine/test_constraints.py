"""Constrained outputs of the default model are the same alone, in any batch, preempted and restored; so are others."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle
from rekindle.core.messages import Advanced
from rekindle.core.request.constraint import Allowed
from tests.engine.small import SMOLLM2, Shapes
from tests.unit.text.test_grammar import TREE, schemas
from tests.waiting import PATIENCE

pytestmark = pytest.mark.wide

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "year_of_birth": {"type": "integer", "minimum": 1900, "maximum": 2020},
        "occupation": {"enum": ["painter", "teacher", "sailor"]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,8}$"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "year_of_birth", "occupation", "tags"],
    "additionalProperties": False,
}
PREFACE = "Here are lines about people, days and the sea, each in a form that a program can read. "
PROMPTS = ["Anna is a teacher. In JSON: ", "The sailor Ahab, in JSON:\n", "A date:", "Is water wet?", "Once", "The sea"]
ASKED: list[dict[str, Any]] = [
    {"json_schema": PERSON},
    {"json_schema": PERSON, "temperature": 1.0, "seed": 4},
    {"regex": r"(19|20)\d\d-(0[1-9]|1[0-2])-\d\d", "temperature": 0.8, "seed": 9, "top_p": 0.9},
    {"choice": ["yes, it certainly is", "no"], "logprobs": 2},
    {"temperature": 1.0, "seed": 1, "max_tokens": 24},
    {"repetition_penalty": 1.2, "min_tokens": 20, "max_tokens": 24},
]


@pytest.fixture(scope="module")
def session() -> Iterator[rekindle.Session]:
    with rekindle.open_sync("smollm2-135m-instruct", progress=False, disk_cache_bytes=0, **SMOLLM2) as session:
        session.precompiled_sync(progress=False)
        yield session
        assert session.stats.unexpected_compilations == 0


@pytest.fixture(scope="module")
def alone(session: rekindle.Session) -> list[rekindle.Generation]:
    pairs = zip(PROMPTS, ASKED, strict=True)
    return [session.generate_sync(PREFACE + prompt, **{"max_tokens": 60} | asked) for prompt, asked in pairs]


def together(session: rekindle.Session) -> list[rekindle.Generation]:
    pairs = zip(PROMPTS, ASKED, strict=True)
    handles = [session.submit(PREFACE + prompt, **{"max_tokens": 60} | asked) for prompt, asked in pairs]
    return [handle.result(timeout=PATIENCE) for handle in handles]


def test_what_is_asked_for_comes(alone: list[rekindle.Generation]) -> None:
    for answer in alone[:2]:
        jsonschema.validate(answer.parsed, PERSON)
        assert answer.parsed == json.loads(answer.text)
        assert list(answer.parsed) == ["name", "year_of_birth", "occupation", "tags"]
    assert alone[2].parsed == alone[2].text
    assert alone[3].parsed in ("yes, it certainly is", "no")
    assert alone[3].logprobs is not None
    assert len(alone[3].logprobs) == len(alone[3].token_ids)
    assert [each.parsed for each in alone[4:]] == [None, None]


def test_tokens_are_the_same_in_a_batch(session: rekindle.Session, alone: list[rekindle.Generation]) -> None:
    compiled = session.stats.compilations
    assert [each.token_ids for each in together(session)] == [each.token_ids for each in alone]
    assert session.stats.compilations == compiled
    assert session.stats.scheduler.forced_tokens > 0


@pytest.mark.deep
def test_tokens_are_the_same_after_preemptions_and_jumps_and_from_disk(alone: list[rekindle.Generation]) -> None:
    crowded: Shapes = {**SMOLLM2, "num_pages": 9, "max_context": 112, "prefill_buckets": (16, 128)}
    jumped: list[int] = []

    def see(handled: rekindle.MessageRecord) -> None:
        if isinstance(handled.message, Advanced):
            jumped.extend(len(each.forced) for _, each in handled.message.outcomes if isinstance(each, Allowed))

    for _ in range(2):
        with rekindle.open_sync("smollm2-135m-instruct", progress=False, **crowded) as session, session.watch(see):
            assert [each.token_ids for each in together(session)] == [each.token_ids for each in alone]
            stats = session.stats.scheduler
            session.save_sync(progress=False)
        assert stats.preemptions > 0
    assert stats.disk_hit_tokens > 0
    assert sum(jumped) > 0


def test_a_type_gives_an_object_of_it(session: rekindle.Session) -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        yes: bool

    answer = session.generate_sync("Is fire hot? ", json_schema=Answer, max_tokens=20)
    assert isinstance(answer.parsed, Answer)
    assert answer.text == json.dumps(answer.parsed.model_dump())


@pytest.mark.deep
def test_what_comes_of_300_schemas_is_valid(session: rekindle.Session) -> None:
    asked: list[tuple[dict[str, Any], rekindle.Handle]] = []

    @settings(max_examples=300, deadline=None, derandomize=False, database=None)
    @given(schema=schemas, seed=st.integers(0, 2**32), temperature=st.sampled_from([0.0, 0.7, 1.5]))
    def ask(schema: dict[str, Any], seed: int, temperature: float) -> None:
        whole = {**schema, "$defs": {"tree": TREE}}
        drawn = {"temperature": temperature, "seed": seed} if temperature else {"temperature": 0}
        asked.append((whole, session.enqueue_sync("An example: ", json_schema=whole, max_tokens=200, **drawn)))

    ask()
    answers = [(schema, handle.result(timeout=PATIENCE)) for schema, handle in asked]
    whole = [(schema, answer) for schema, answer in answers if answer.finish_reason == "stop"]
    for schema, answer in whole:
        jsonschema.validate(answer.parsed, schema)
        assert answer.parsed == json.loads(answer.text)
    assert all(answer.unparsed for _, answer in answers if answer.finish_reason == "length")
    assert len(whole) > 100


@pytest.mark.wide
def test_penalties_and_bans_count_within_a_constraint(session: rekindle.Session) -> None:
    form: dict[str, Any] = {"regex": "[a-z]{2,6}( [a-z]{2,6}){11}", "max_tokens": 80, "temperature": 0}
    prompt = f"{PREFACE}The sea, the sea, the sea: "
    free = session.generate_sync(prompt, **form)
    penalised = session.generate_sync(prompt, **form, frequency_penalty=2.0, repetition_penalty=1.3)
    banned = session.generate_sync(prompt, **form, bad_words=[free.token_ids[:1]])
    for answer in (free, penalised, banned):
        assert re.fullmatch(form["regex"], answer.text)
    assert most_often(penalised.token_ids) < most_often(free.token_ids), "the free one has to say something often"
    assert free.token_ids[0] not in banned.token_ids
    asked: list[dict[str, Any]] = [{"frequency_penalty": 2.0, "repetition_penalty": 1.3}, {}]
    handles = [session.submit(prompt, **form, **each) for each in asked]
    assert [handle.result(timeout=PATIENCE).token_ids for handle in handles] == [penalised.token_ids, free.token_ids]


def most_often(tokens: Sequence[int]) -> int:
    """Return how often the most frequent token is there."""
    return Counter(tokens).most_common(1)[0][1]
