"""Tools together with a constraint on the answer: a call, or a text of the constraint, in all APIs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

import rekindle
from rekindle.core.request.constraint import Constraint
from rekindle.core.text.constraints.parser import parse_bytes
from rekindle.formats.responses.forms import objects
from rekindle.formats.responses.grammars.call_forms import _FORMS, form_of
from rekindle.formats.responses.grammars.call_grammar import call_grammar
from rekindle.server import app
from rekindle.session.session import Session
from tests.unit.asgi import Reply, ask
from tests.unit.scripted import scripted_session

pytestmark = pytest.mark.anyio

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "parameters": CITY}
SCHEMA = {
    "type": "object",
    "properties": {"sunny": {"type": "boolean"}},
    "required": ["sunny"],
    "additionalProperties": False,
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TEXT = '{"sunny": true}'
USER = {"role": "user", "content": "Weather?"}
TOOL = {"type": "function", "function": FUNCTION}
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "weather"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [USER],
        "tools": [TOOL],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    },
    "/v1/responses": {
        "input": "Weather?",
        "tools": [{"type": "function", **FUNCTION}],
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
    },
    "/v1/messages": {
        "messages": [USER],
        "max_tokens": 200,
        "tools": [{"name": "weather", "input_schema": CITY}],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
    "/api/chat": {"messages": [USER], "tools": [TOOL], "format": SCHEMA},
}
CHOICES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"required": "required", "named": NAMED, "none": "none"},
    "/v1/responses": {"required": "required", "named": {"type": "function", "name": "weather"}, "none": "none"},
    "/v1/messages": {
        "required": {"type": "any"},
        "named": {"type": "tool", "name": "weather"},
        "none": {"type": "none"},
    },
    "/api/chat": {},
}
"""The choices of each API; Ollama's has none."""
CASES = [
    (path, choice, script)
    for path in BODIES
    for choice in ("auto", *CHOICES[path])
    for script in ([CALL, TEXT] if choice == "auto" else [TEXT if choice == "none" else CALL])
]


def user_message(text: str) -> dict[str, Any]:
    """Return a message; a script is asked once for each conversation."""
    return {"role": "user", "content": text}


class Weather(BaseModel):
    """A report."""

    sunny: bool


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Session, list[str]]]:
    """Yield a session, and the list of its answers; the last is the next answer."""
    texts = [""]
    with scripted_session(monkeypatch, lambda prompt: texts[-1]) as session:
        yield session, texts


def content_and_calls(path: str, reply: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the text of an answer and the names of its calls."""
    match path:
        case "/v1/chat/completions":
            message = reply["choices"][0]["message"]
        case "/api/chat":
            message = reply["message"]
        case "/v1/messages":
            texts = [block["text"] for block in reply["content"] if block["type"] == "text"]
            return "".join(texts), [block["name"] for block in reply["content"] if block["type"] == "tool_use"]
        case _:
            items = reply["output"]
            texts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
            return "".join(texts), [item["name"] for item in items if item["type"] == "function_call"]
    return message["content"] or "", [call["function"]["name"] for call in message.get("tool_calls", ())]


def whole_of(path: str, reply: Reply) -> dict[str, Any]:
    """Return the whole answer of a stream, as far as `content_and_calls` reads it."""
    lines = [line.removeprefix("data: ") for line in reply.body.decode().splitlines()]
    events = [json.loads(line) for line in lines if line.startswith("{")]
    match path:
        case "/v1/responses":
            response: dict[str, Any] = events[-1]["response"]
            return response
        case "/v1/messages":
            blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
            for event in events:
                if event["type"] == "content_block_delta" and event["delta"]["type"] == "text_delta":
                    blocks[event["index"]]["text"] += event["delta"]["text"]
            return {"content": blocks}
        case "/api/chat":
            messages = [event["message"] for event in events]
        case _:
            messages = [event["choices"][0]["delta"] for event in events]
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    calls = [call for call in calls if "name" in call["function"]]
    message = {"content": "".join(message.get("content") or "" for message in messages), "tool_calls": calls}
    return {"choices": [{"message": message}], "message": message}


@pytest.mark.parametrize(("path", "choice", "script"), CASES)
async def test_an_answer_is_a_call_or_a_text_of_the_schema(
    scripts: tuple[Session, list[str]], path: str, choice: str, script: str
) -> None:
    session, texts = scripts
    texts.append(script)
    body = {**BODIES[path], **({} if choice == "auto" else {"tool_choice": CHOICES[path][choice]})}
    reply = await ask(app(session), path, {**body, "stream": False})
    assert reply.status == 200, reply.body
    expected = ("", ["weather"]) if script == CALL else (TEXT, [])
    assert content_and_calls(path, reply.json) == expected
    assert content_and_calls(path, whole_of(path, await ask(app(session), path, {**body, "stream": True}))) == expected


async def test_free_text_is_not_allowed_beside_a_schema_except_for_reasoning(
    scripts: tuple[Session, list[str]],
) -> None:
    session, texts = scripts
    for script, content in ((f"<think>Hm.</think>{TEXT}", TEXT), (f"<think>Hm.</think>{CALL}", "")):
        texts.append(script)
        answer = await session.generate([user_message(script)], tools=[TOOL], json_schema=SCHEMA, max_tokens=200)
        assert (answer.content, answer.reasoning) == (content, "Hm.")
    texts.append(f"It is {TEXT}")
    answer = await session.generate([user_message("free")], tools=[TOOL], json_schema=SCHEMA, max_tokens=200)
    assert not answer.content.startswith("It is")


async def test_in_python_a_text_is_parsed_and_a_call_says_so(scripts: tuple[Session, list[str]]) -> None:
    session, texts = scripts
    texts.append(f"<think>Hm.</think>{TEXT}")
    answer = await session.generate([USER], tools=[TOOL], json_schema=Weather, max_tokens=200)
    assert (answer.constraint, answer.parsed, answer.unparsed) == ("json_schema", Weather(sunny=True), None)
    again = rekindle.Generation.from_dict(answer.to_dict())
    assert (again.parsed, again.unparsed) == ({"sunny": True}, None)
    texts.append(CALL)
    prompts: Any = [[user_message("one")], [user_message("two")]]
    answers: Any = await session.generate(prompts, tools=[TOOL], json_schema=Weather, max_tokens=200)
    for answer in (*answers, rekindle.Generation.from_dict(answers[0].to_dict())):
        assert [call.name for call in answer.tool_calls] == ["weather"]
        assert (answer.parsed, answer.unparsed) == (None, "the answer calls tools")
    chat = [user_message("three")]
    answer = await session.generate(chat, tools=[TOOL], json_schema=SCHEMA, tool_choice="required", max_tokens=200)
    assert answer.tool_calls[0].arguments == {"city": "Rome"}


@pytest.mark.parametrize(("option", "text"), [({"choice": ["yes", "no"]}, "yes"), ({"regex": "[0-9]/[0-9]"}, "1/2")])
async def test_other_constraints_hold_for_texts_too(
    scripts: tuple[Session, list[str]], option: dict[str, Any], text: str
) -> None:
    session, texts = scripts
    for script in (text, CALL):
        texts.append(script)
        answer = await session.generate([user_message(script)], tools=[TOOL], max_tokens=200, **option)
        assert (answer.content, len(answer.tool_calls)) == (("", 1) if script == CALL else (text, 0))


@pytest.mark.parametrize(
    ("path", "change", "param"),
    [
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 3}}}},
            "response_format",
        ),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 3}}}},
            "text.format",
        ),
        (
            "/v1/messages",
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": 3}}}},
            "output_config.format",
        ),
    ],
)
async def test_an_error_names_the_field_of_the_body(
    scripts: tuple[Session, list[str]], path: str, change: dict[str, Any], param: str
) -> None:
    each_tools: list[Any] = [BODIES[path]["tools"], []]
    for tools in each_tools:
        reply = await ask(app(scripts[0]), path, {**BODIES[path], **change, "tools": tools})
        assert reply.status == 400
        if path != "/v1/messages":  # whose errors have no such field
            assert reply.error["param"] == param


@pytest.mark.parametrize("place", range(len(_FORMS)))
@pytest.mark.parametrize("text", ['{"name": "Bob"}', "[1, 2]", '"x"'])
def test_texts_and_calls_of_each_form_are_told_apart(place: int, text: str) -> None:
    form = _FORMS[place][1]
    kind = {"{": "object", "[": "array", '"': "string"}[text[0]]
    grammar = call_grammar(
        form,
        [TOOL],
        "required",
        special={},
        reasoning=("<think>", "</think>"),
        answer=Constraint("json_schema", json.dumps({"type": kind})),
    )
    for start in ("", "<think>Hm.</think>\n"):
        assert accepts(grammar, start + text)
        assert not accepts(grammar, f"{start}It is {text}")


def accepts(grammar: str, text: str) -> bool:
    matcher = parse_bytes("grammar", grammar, "grammar").deep_copy()
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


def test_schemas_with_definitions_stand_beside_bare_calls_in_json() -> None:
    form = form_of(objects.LLAMA3)
    assert form is not None
    defined = {
        "type": "object",
        "required": ["a"],
        "additionalProperties": False,
        "properties": {"a": {"$ref": "#/$defs/A"}},
    }
    tool = {"function": {"name": "f", "parameters": {**defined, "$defs": {"A": {"type": "string"}}}}}
    answer = Constraint("json_schema", json.dumps({**defined, "$defs": {"A": {"type": "integer"}}}))
    grammar = call_grammar(form, [tool], "required", special={}, answer=answer)
    for text, fits in (
        ('{"a": 3}', True),
        ('{"a": "x"}', False),
        ('{"name": "f", "parameters": {"a": "x"}}', True),
        ('{"name": "f", "parameters": {"a": 3}}', False),
        ('{"name": "g", "parameters": {"a": "x"}}', False),
    ):
        assert accepts(grammar, text) == fits
