"""Decisions over HTTP are the session's, in the forms of System One and of OpenAI."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rekindle import Choice, Decision, Decisions, Score, YesNo
from rekindle.results.scores.questions import Question
from rekindle.server import app
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.asgi import ask
from tests.unit.scripted import tokenizer

pytestmark = pytest.mark.anyio

SYSTEMONE: dict[str, Any] = {
    "state": {"message": "WIN!"},
    "instructions": "Be strict.",
    "questions": {
        "spam": {"type": "noul", "instructions": "Is it spam?", "criteria": {"true": "ads"}},
        "tone": {"type": "choice", "instructions": {"ask": "Tone?"}, "criteria": {"calm": None, "pushy": "It presses"}},
        "urgent": {"type": "score", "criteria": ["Can wait", "Today"]},
    },
    "cache_salt": "mine",
}
OPENAI: dict[str, Any] = {
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "WIN!"}]}],
    "questions": [
        {"type": "predicate", "name": "spam", "instructions": "Is it spam?"},
        {
            "type": "choice",
            "instructions": "Tone?",
            "choices": [{"value": True}, {"value": "calm", "description": "c"}],
        },
        {
            "type": "score",
            "instructions": "Urgent?",
            "levels": [{"label": "low"}, {"label": "high", "description": "now"}],
        },
    ],
    "safety_identifier": "someone",
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Sequence[Question], dict[str, Any]]]:
    """Return the calls of `session.decide`, whose first option has three quarters of the probability."""
    records: list[tuple[Any, Sequence[Question], dict[str, Any]]] = []

    async def decide(_: Session, state: Any, questions: Sequence[Question], **options: Any) -> Decisions:
        records.append((state, questions, options))
        shares = [dict.fromkeys(each.names, 0.25) | {each.names[0]: 0.75} for each in questions]
        return Decisions(tuple(Decision(each, p, 0.5, 2, 100, 64) for each, p in zip(questions, shares, strict=True)))

    monkeypatch.setattr(Session, "decide", decide)
    return records


@pytest.fixture
def session() -> Iterator[Session]:
    limits = fake_limits(max_context=512, num_pages=128, page_size=16)
    with fake_session(fake_loaded_engine(limits, tokenizer=tokenizer())) as session:
        yield session


async def test_named_questions_are_answered_in_the_form_of_vllm(session: Session, calls: list[Any]) -> None:
    reply = (await ask(app(session), "/v1/systemone", SYSTEMONE)).json
    ((state, questions, options),) = calls
    assert state == '{"message": "WIN!"}\n\nBe strict.'
    tone = Choice('{"ask": "Tone?"}', {"calm": None, "pushy": "It presses"})
    assert questions == [YesNo("Is it spam?", "ads"), tone, Score("", ["Can wait", "Today"])]
    assert options["cache_salt"] == "mine"
    assert reply["answers"] == {
        "spam": {"type": "noul", "noul": 0.75, "confidence": 0.5, "probabilities": {"yes": 0.75, "no": 0.25}},
        "tone": {
            "type": "choice",
            "choice": "calm",
            "confidence": 0.5,
            "probabilities": {"calm": 0.75, "pushy": 0.25},
        },
        "urgent": {
            "type": "score",
            "score": 0.25,
            "legend": {"0": "Can wait", "1": "Today"},
            "confidence": 0.5,
            "probabilities": {"0": 0.75, "1": 0.25},
        },
    }
    assert reply["usage"] == {"input_tokens": 300, "output_tokens": 3}
    assert reply["diagnostics"]["tone"] == {"label_mass": 0.5, "argmax_is_label": False}


async def test_a_list_of_questions_is_answered_in_the_form_of_openai(session: Session, calls: list[Any]) -> None:
    reply = (await ask(app(session), "/v1/decisions", OPENAI)).json
    ((state, questions, _),) = calls
    assert state == "WIN!"
    assert questions == [
        YesNo("Is it spam?"),
        Choice("Tone?", {"true": None, "calm": "c"}),
        Score("Urgent?", ["low", "high: now"]),
    ]
    assert reply["answers"] == [
        {"name": "spam", "type": "predicate", "probability": 0.75},
        {
            "name": None,
            "type": "choice",
            "choice": True,
            "confidence": 0.5,
            "probabilities": [{"value": True, "probability": 0.75}, {"value": "calm", "probability": 0.25}],
        },
        {
            "name": None,
            "type": "score",
            "score": 0.25,
            "confidence": 0.5,
            "probabilities": [
                {"value": 0, "label": "low", "probability": 0.75},
                {"value": 1, "label": "high", "probability": 0.25},
            ],
        },
    ]
    assert reply["usage"]["input_tokens"] == reply["usage"]["total_tokens"] == 300
    assert reply["usage"]["input_tokens_details"]["cached_tokens"] == 192
    items = [*OPENAI["input"], {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}]
    await ask(app(session), "/v1/decisions", {**OPENAI, "input": items})
    assert calls[1][0].startswith('[{"role": "user", "content": "WIN!"}, {"type": "function_call"')


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("/v1/systemone", {"state": None}, "state is missing"),
        ("/v1/systemone", {"questions": {}}, "questions must have 1 to"),
        ("/v1/systemone", {"questions": {"a": 5}}, "questions.a must be an object with a type"),
        ("/v1/systemone", {"questions": {"a": {"type": "box"}}}, "type must be one of choice, noul, score, got 'box'"),
        ("/v1/systemone", {"questions": {"a": {"type": "choice", "criteria": {}}}}, "needs 1 to 26 options"),
        (
            "/v1/systemone",
            {"questions": {"a": {"type": "noul", "criterion": {}}}},
            "unknown field 'criterion'; did you",
        ),
        ("/v1/systemone", {"question": {}}, "question cannot be served"),
        ("/v1/systemone", {"questions": {"a": {"type": "noul", "criteria": {"b": "c"}}}}, "must be true and false"),
        ("/v1/systemone", {"images": ["data:image/png;base64,AA=="]}, "images"),
        ("/v1/decisions", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "not supported"),
        ("/v1/decisions", {"questions": [{"type": "predicate"}]}, "questions[0] must be an object"),
        ("/v1/decisions", {"questions": ["x"]}, "questions[0] must be an object"),
        ("/v1/decisions", {"questions": [{**OPENAI["questions"][0], "choices": []}]}, "unknown field 'choices'"),
        ("/v1/decisions", {"questions": [{**OPENAI["questions"][0], "name": 5}]}, "name must be a text, got 5"),
        (
            "/v1/decisions",
            {"questions": [{"type": "choice", "instructions": "?", "choices": [{"value": "a", "text": "b"}]}]},
            "unknown field 'text'",
        ),
        ("/v1/decisions", {"input": [["x"]]}, "each item must be an object, got ['x']"),
        ("/v1/decisions", {"input": ["x"]}, "each item must be an object, got 'x'"),
        ("/v1/decisions", {"input": [[]]}, "each item must be an object, got []"),
    ],
)
async def test_a_wrong_body_names_its_place(
    session: Session, calls: list[Any], path: str, change: dict[str, Any], message: str
) -> None:
    body = {**(SYSTEMONE if path == "/v1/systemone" else OPENAI), **change}
    refused = await ask(app(session), path, body)
    assert refused.status == 400
    assert message in refused.error["message"]
    assert not calls
