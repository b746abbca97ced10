"""The APIs of the server agree, each in its own words: instructions, efforts, stop strings, errors."""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

import pytest

from rekindle.server import app
from rekindle.server.common.call import Call
from tests.unit.asgi import Reply, ask
from tests.unit.scripted import HERMES, Serve, call

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
STRICT = (
    "{% for m in messages %}{% if m.role == 'developer' or m.role == 'system' and not loop.first %}"
    "{{ raise_exception('late') }}{% endif %}{% endfor %}" + HERMES
)
SWITCHED = "{% if enable_thinking is defined and not enable_thinking %}QUIET{% endif %}" + HERMES
LEVELS = (
    "{% if reasoning_effort is defined and reasoning_effort not in ['xhigh', 'medium', 'low'] %}"
    "{{ raise_exception('effort') }}{% endif %}{{ reasoning_effort }}|" + HERMES
)


def system(text: str, role: str = "system") -> dict[str, str]:
    return {"role": role, "content": text}


def bodies(
    turns: list[dict[str, Any]], fields: Mapping[str, Mapping[str, Any]] = {}
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return a request of each API for the answer to messages, with further fields by its name."""
    as_ollama = [{**each, "role": each["role"].replace("developer", "system")} for each in turns]
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("/v1/chat/completions", {"messages": turns}),
        "responses": ("/v1/responses", {"input": turns}),
        "messages": ("/v1/messages", {"max_tokens": 50, "messages": as_ollama}),
        "ollama": ("/api/chat", {"stream": False, "messages": as_ollama}),
    }
    return {name: (path, {**body, **fields.get(name, {})}) for name, (path, body) in requests.items()}


class Prompts(list[str]):
    """The prompts of a model so far."""

    def __call__(self, prompt: str) -> str:
        self.append(prompt)
        return "ok"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([system("A"), system("B", "developer"), USER], "system\nA\n\nB"),
        ([system("A"), USER, system("B", "developer")], "user\nhi\n\nB"),
        ([system("A"), USER, {"role": "assistant", "content": "yo"}, system("B"), USER], "user\nB\n\nhi"),
    ],
    ids=["leading", "behind a question", "behind an answer"],
)
async def test_a_strict_template_renders_each_instruction(
    serve: Serve, messages: list[dict[str, Any]], expected: str
) -> None:
    prompts = Prompts()
    session = serve(prompts, STRICT)
    for path, body in bodies(messages).values():
        assert (await ask(app(session), path, body)).status == 200
    await session.generate(messages)
    (prompt,) = prompts  # each of them has read the same
    assert expected in prompt


@pytest.mark.parametrize(("effort", "begin"), [("none", "QUIET"), ("high", "<|im_start|>")])
async def test_no_effort_turns_thinking_off(serve: Serve, effort: str, begin: str) -> None:
    prompts = Prompts()
    session = serve(prompts, SWITCHED)
    fields: dict[str, dict[str, Any]] = {
        "chat": {"reasoning_effort": effort},
        "responses": {"reasoning": {"effort": effort}},
        "messages": {"thinking": {"type": "disabled" if effort == "none" else "adaptive"}},
        "ollama": {"think": effort != "none"},
    }
    for path, body in bodies([USER], fields).values():
        assert (await ask(app(session, strict=True), path, body)).status == 200
    await session.generate([USER], chat_template_kwargs={"reasoning_effort": effort})
    (prompt,) = prompts
    assert prompt.startswith(begin)


@pytest.mark.parametrize(
    ("effort", "level"), [("high", "xhigh"), ("max", "xhigh"), ("minimal", "low"), ("none", "low")]
)
async def test_an_effort_is_the_nearest_level_of_the_template(serve: Serve, effort: str, level: str) -> None:
    prompts = Prompts()
    session = serve(prompts, LEVELS)
    fields: dict[str, dict[str, Any]] = {
        "chat": {"reasoning_effort": effort},
        "responses": {"reasoning": {"effort": effort}},
        "messages": {"output_config": {"effort": effort}},
        "ollama": {"think": effort},
    }
    for path, body in bodies([USER], fields).values():
        assert (await ask(app(session), path, body)).status == 200
    await session.generate([USER], chat_template_kwargs={"reasoning_effort": effort})
    (prompt,) = prompts
    assert prompt.startswith(f"{level}|")


async def test_an_overflow_has_the_words_of_each_api(serve: Serve) -> None:
    """Expect the words that clients look for: they shorten the conversation only then."""
    session = serve("ok")
    long = [{"role": "user", "content": "x " * 5000}]
    for stream in (False, True):
        fields = {name: {"stream": stream} for name in ("chat", "responses", "messages", "ollama")}
        replies = {}
        for name, (path, body) in bodies(long, fields).items():
            replies[name] = reply = await ask(app(session), path, body)
            assert reply.status == 400, name
        for name in ("chat", "responses"):
            error = replies[name].error
            assert (error["code"], error["type"]) == ("context_length_exceeded", "invalid_request_error")
            match = re.search(r"maximum context length is (\d+) tokens.* resulted in (\d+) tokens", error["message"])
            assert match is not None
            assert int(match[1]) < int(match[2])
        error = replies["messages"].error
        match = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", error["message"])
        assert match is not None
        assert int(match[1]) > int(match[2])
        assert error["type"] == "invalid_request_error"
        assert replies["ollama"].json["error"].startswith("the input length exceeds the context length")
    text = await ask(app(session), "/v1/completions", {"prompt": "x " * 5000})
    assert (text.status, text.error["code"], text.error["param"]) == (400, "context_length_exceeded", "prompt")


async def test_top_p_0_takes_the_likeliest_token(serve: Serve) -> None:
    session = serve("ok")
    fields: dict[str, dict[str, Any]] = {
        **{name: {"top_p": 0, "temperature": 0.7} for name in ("chat", "responses", "messages")},
        "ollama": {"options": {"top_p": 0.0}},
    }
    for name, (path, body) in bodies([USER], fields).items():
        assert (await ask(app(session), path, body)).status == 200, name
    answer = await session.generate([USER], top_p=0, temperature=0.7)
    assert (answer.content, answer.seed) == ("ok", None)


async def test_a_model_without_a_template_names_the_options_of_the_server(serve: Serve) -> None:
    session = serve("ok", cast("str", None))
    for name, (path, body) in bodies([USER]).items():
        reply = await ask(app(session), path, body)
        assert reply.status == 400, name
        assert "--chat-template FILE" in reply.body.decode(), name
        assert "open(" not in reply.body.decode(), name
    count = await ask(app(session), "/v1/messages/count_tokens", {"messages": [USER]})
    assert "--chat-template FILE" in count.error["message"]


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
FUNCTION = {"name": "weather", "parameters": PARAMETERS}


def with_tool_and_schema(limit: int, *, stream: bool) -> dict[str, dict[str, Any]]:
    """Return the fields of each API for an answer with calls, or by a schema, of so many tokens."""
    tools = [{"type": "function", "function": FUNCTION}]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    flat = {"type": "json_schema", "name": "x", "schema": SCHEMA}
    own = {"stream": stream}
    return {
        "chat": {**own, "tools": tools, "max_tokens": limit, "response_format": form},
        "responses": {
            **own,
            "tools": [{"type": "function", **FUNCTION}],
            "max_output_tokens": limit,
            "text": {"format": flat},
        },
        "messages": {
            **own,
            "tools": [{"name": "weather", "input_schema": PARAMETERS}],
            "max_tokens": limit,
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
        "ollama": {**own, "tools": tools, "options": {"num_predict": limit}, "format": SCHEMA},
    }


def content_of(reply: Reply) -> str:
    """Return the texts in an answer, whole or as a stream, joined."""
    texts = re.findall(r'"(?:content|text|delta)": ?"((?:[^"\\]|\\.)*)"', reply.body.decode())
    return "".join(json.loads(f'"{each}"') for each in texts)


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.wide), True], ids=["whole", "stream"])
async def test_a_cut_call_beside_a_schema_is_no_content(serve: Serve, stream: bool) -> None:
    """Cut a call, and the second of two, at each of its tokens; a cut answer by the schema stays."""
    session = serve(lambda prompt: call(place="Rome") * 2)
    length = len((await session.generate([USER], max_tokens=400)).token_ids)
    for limit in (*range(1, 20), length // 2, length // 2 + 3, length - 5):
        for path, body in bodies([USER], with_tool_and_schema(limit, stream=stream)).values():
            reply = await ask(app(session), path, body)
            assert reply.status == 200
            assert b"<" not in reply.body, (path, limit, reply.body)
    session = serve(lambda prompt: '{"city": "Rome"}')
    for path, body in bodies([USER], with_tool_and_schema(5, stream=stream)).values():
        reply = await ask(app(session), path, body)
        assert '{"ci' in content_of(reply)


@pytest.mark.parametrize(
    ("options", "text", "allowed"),
    [
        ({"json_schema": SCHEMA}, '{"ci', True),
        ({"json_schema": SCHEMA}, "<tool", False),
        ({"json_schema": SCHEMA}, '{"name": "weather", "arg', False),
        ({"json_schema": SCHEMA}, '[weather(place="R', False),
        ({"json_schema": {"type": "array"}}, "[1, 2", True),
        ({"json_schema": {"type": "boolean"}}, "tr", True),
        ({"json_schema": {"properties": {"name": {}}}}, '{"name": "Rome', True),
        ({"choice": [" yes", "no"]}, "ye", True),
        ({"choice": [" yes", "no"]}, "<", False),
        ({"regex": r" [a-z]+"}, "ab", True),
        ({"regex": r"[a-z]+"}, "<tool", False),
        ({"json_schema": SCHEMA, "tool_choice": "none"}, "<tool", True),
        ({"json_schema": SCHEMA, "tools": []}, "<tool", True),
        ({"tool_choice": "required"}, "{", False),
    ],
)
def test_a_content_beside_tools_begins_as_its_form(options: dict[str, Any], text: str, allowed: bool) -> None:
    assert Call(None, {"tools": [FUNCTION], **options}, None, 1, {}, None).may_have(text) == allowed


@pytest.mark.parametrize(("ignores", "tells"), [(False, False), (True, True)])
async def test_the_end_token_among_the_stop_tokens_is_no_reason(serve: Serve, ignores: bool, tells: bool) -> None:
    """Follow `check_stop` of vLLM in chats and completions, whole and as a stream."""
    session = serve(lambda prompt: "ok")
    assert session.tokenizer is not None
    (end,) = session.tokenizer.encode_chat("<|im_end|>")
    fields = {"stop_token_ids": [end], "ignore_eos": ignores, "max_tokens": 9}
    for path, body in (
        ("/v1/chat/completions", {"messages": [USER]}),
        ("/v1/completions", {"prompt": "<|im_start|>assistant\n", "add_special_tokens": False}),
    ):
        reply = await ask(app(session), path, {**body, **fields})
        choice = reply.json["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", end if tells else None)
        reply = await ask(app(session), path, {**body, **fields, "stream": True})
        assert (f'"stop_reason":{end}' in reply.body.decode()) == tells


@pytest.mark.parametrize("temperature", [0, 0.0, -0.0, 5e-324, 1e-10, 1e-8, 1e-6, 9.9e-6])
async def test_a_tiny_temperature_is_greedy_in_every_api(serve: Serve, temperature: float) -> None:
    """Send fields without effect at temperature 0 beside it, and two choices, as clients do."""
    session = serve(lambda prompt: "ok")
    own: dict[str, Any] = {"temperature": temperature, "top_p": 0.5}
    fields: dict[str, dict[str, Any]] = {
        "chat": {**own, "seed": 3, "n": 2, "top_k": 5},
        "responses": {**own, "seed": 3},
        "messages": {**own, "top_k": 5},
        "ollama": {"options": {**own, "seed": 3, "top_k": 5}},
    }
    text = {"prompt": "<|im_start|>assistant\n", "max_tokens": 1, **own}
    for path, body in (*bodies([USER], fields).values(), ("/v1/completions", text)):
        reply = await ask(app(session), path, body)
        assert reply.status == 200, reply.body
    generation = await session.generate([USER], temperature=temperature)
    assert (generation.text, generation.seed) == ("ok", None)
