"""Anthropic's own client, and requests as coding agents send them, get what a session gives."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx
import pytest
from pydantic import BaseModel

import rekindle
from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME

USER: list[Any] = [{"role": "user", "content": "Hello"}]
PLACE: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
PLACE |= {"additionalProperties": False}
TOOLS: list[Any] = [{"name": "weather", "description": "The weather of a city.", "input_schema": PLACE}]


class Answer(BaseModel):
    """The form that an answer is parsed into."""

    color: Literal["red", "green"]
    sure: bool


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def calls_in(message: anthropic.types.Message) -> list[Any]:
    """Return the uses of tools in a message; the random model may write text around them."""
    return [block for block in message.content if block.type == "tool_use"]


def test_the_model_is_listed(client: anthropic.Anthropic, session: rekindle.Session) -> None:
    assert [each.id for each in client.models.list()] == [NAME]
    model = client.models.retrieve(NAME)
    assert (model.type, model.max_input_tokens) == ("model", session.settings.max_context)
    assert model.created_at.year > 2000


def test_a_message_is_the_answer_of_the_session(client: anthropic.Anthropic, session: rekindle.Session) -> None:
    made = client.messages.create(
        model=NAME, messages=USER, max_tokens=9, extra_body={"temperature": 1, "seed": 5, "top_k": 20}
    )
    answer = session.generate_sync(USER, max_tokens=9, seed=5, temperature=1, top_k=20)
    (block,) = made.content
    assert block.type == "text"
    assert block.text == answer.content
    assert made.stop_reason == "max_tokens"
    assert made.usage.output_tokens == 9
    assert made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0) == answer.usage.prompt_tokens


def test_a_stream_has_the_same_text(client: anthropic.Anthropic, session: rekindle.Session) -> None:
    with client.messages.stream(model=NAME, messages=USER, max_tokens=9) as stream:
        text = "".join(stream.text_stream)
        made = stream.get_final_message()
    assert text == session.generate_sync(USER, max_tokens=9).content
    assert (made.stop_reason, made.usage.output_tokens) == ("max_tokens", 9)


def test_tools_are_used_whole_and_in_a_stream(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": NAME, "messages": USER, "tools": TOOLS, "max_tokens": 200}
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}):
        made = client.messages.create(**asked, tool_choice=choice)
        with client.messages.stream(**asked, tool_choice=choice) as stream:
            streamed = stream.get_final_message()
        assert made.stop_reason == streamed.stop_reason == "tool_use"
        calls, others = calls_in(made), calls_in(streamed)
        assert [call.input for call in calls] == [call.input for call in others]
        assert all(call.input["city"] in ("Rome", "Oslo") for call in calls)
        assert len(calls) == 1 or "disable_parallel_tool_use" not in choice


def test_a_call_and_its_result_go_back_into_the_conversation(client: anthropic.Anthropic) -> None:
    choice: Any = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    made = client.messages.create(model=NAME, messages=USER, tools=TOOLS, tool_choice=choice, max_tokens=200)
    (call,) = calls_in(made)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    further: list[Any] = [*USER, {"role": "assistant", "content": made.content}, {"role": "user", "content": [result]}]
    following = client.messages.create(model=NAME, messages=further, tools=TOOLS, max_tokens=4)
    counted = client.messages.count_tokens(model=NAME, messages=further, tools=TOOLS)
    usage = following.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens
    assert counted.input_tokens > client.messages.count_tokens(model=NAME, messages=USER, tools=TOOLS).input_tokens


def test_the_tool_runner_runs_functions(client: anthropic.Anthropic) -> None:
    asked: list[str] = []

    @anthropic.beta_tool  # type: ignore[untyped-decorator]  # mypy runs without the package
    def weather(city: Literal["Rome", "Oslo"]) -> str:
        """Return the weather of a city."""
        asked.append(city)
        return "sunny"

    choice: Any = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    runner = client.beta.messages.tool_runner(
        model=NAME, messages=USER, tools=[weather], tool_choice=choice, max_tokens=100, max_iterations=2
    )
    messages = list(runner)
    assert [each.stop_reason for each in messages] == ["tool_use", "tool_use"]
    assert len(asked) >= 1
    assert set(asked) <= {"Rome", "Oslo"}


def test_an_answer_is_parsed(client: anthropic.Anthropic) -> None:
    parsed = client.messages.parse(model=NAME, messages=USER, output_format=Answer, max_tokens=100)
    assert isinstance(parsed.parsed_output, Answer)


def test_thinking_comes_in_its_own_block(client: anthropic.Anthropic) -> None:
    body: dict[str, Any] = {"guided_grammar": 'start: "<think>" /[a-z]{5}/ "</think>" /[0-9]{3}/'}
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    made = client.messages.create(model=NAME, messages=USER, max_tokens=2000, thinking=thinking, extra_body=body)
    with client.messages.stream(
        model=NAME, messages=USER, max_tokens=2000, thinking=thinking, extra_body=body
    ) as stream:
        streamed = stream.get_final_message()
    for message in (made, streamed):
        thought, text = message.content
        assert thought.type == "thinking"
        assert text.type == "text"
        assert (len(thought.thinking), len(text.text), bool(thought.signature)) == (5, 3, True)
        assert message.usage.output_tokens_details is not None
        assert message.usage.output_tokens_details.thinking_tokens == 5
    again: list[Any] = [*USER, {"role": "assistant", "content": made.content}, *USER]
    assert client.messages.create(model=NAME, messages=again, max_tokens=2).usage.output_tokens == 2


def test_errors_are_those_of_the_client(client: anthropic.Anthropic, session: rekindle.Session) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature") as caught:
        client.messages.create(model=NAME, messages=USER, max_tokens=9, extra_body={"temperature": 1000})
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError, match="this server has"):
        client.messages.create(model="claude-other", messages=USER, max_tokens=9)
    with pytest.raises(anthropic.BadRequestError, match="tokens"):
        client.messages.create(model=NAME, messages=[{"role": "user", "content": "x" * 1000}], max_tokens=9)
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    with pytest.raises(
        anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.source\.data.*got an empty file"
    ):
        client.messages.create(model=NAME, messages=[{"role": "user", "content": [image]}], max_tokens=9)
    with session.serve_sync(port=0, api_keys=["secret"]) as server:
        for key, token in (("secret", None), (None, "secret")):
            with anthropic.Anthropic(base_url=server.url, api_key=key, auth_token=token, max_retries=0) as keyed:
                assert keyed.messages.count_tokens(model=NAME, messages=USER).input_tokens
        with (
            anthropic.Anthropic(base_url=server.url, api_key="other", max_retries=0) as keyed,
            pytest.raises(anthropic.AuthenticationError, match="give an API key"),
        ):
            keyed.messages.count_tokens(model=NAME, messages=USER)


# As coding agents send them


def agent_tools() -> list[dict[str, Any]]:
    """Return twenty tools with the schemas of a coding agent: long descriptions, nested objects, drafts, defaults."""
    edits = {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "properties": {
                "old": {"type": "string", "description": "The text to replace"},
                "new": {"type": "string", "description": "Its replacement"},
                "everywhere": {"type": "boolean", "default": False},
            },
            "required": ["old", "new"],
            "additionalProperties": False,
        },
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "An absolute path"},
            "edits": edits,
            "mode": {"anyOf": [{"const": "read"}, {"const": "write"}, {"type": "null"}]},
            "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
        },
        "required": ["path"],
        "additionalProperties": False,
    }
    tools = [{"name": f"Tool{number}", "description": "Do it. ", "input_schema": schema} for number in range(19)]
    tools.append({"name": "weather", "description": "The weather.", "input_schema": PLACE})
    tools[-1]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    return tools


def agent_body(messages: list[Any], **more: Any) -> dict[str, Any]:
    """Return the body of a coding agent's request."""
    lasting = {"type": "ephemeral"}
    return {
        "model": NAME,
        "max_tokens": 32_000,
        "temperature": 1,
        "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: version=1; hash=8f2a1"},
            {"type": "text", "text": "You help in a terminal.", "cache_control": lasting},
            {"type": "text", "text": "Be brief.", "cache_control": {**lasting, "ttl": "1h"}},
        ],
        "messages": messages,
        "metadata": {"user_id": json.dumps({"device": "d", "session": "s"})},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        **more,
    }


def send(server: Server, body: dict[str, Any], path: str = "/v1/messages?beta=true") -> httpx.Response:
    """Send a body with the headers of a coding agent."""
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14",
        "authorization": "Bearer none",
        "x-app": "cli",
        "user-agent": "agent-cli/2.1 (external, cli)",
    }
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=120)


def parts_of(answer: httpx.Response) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the blocks that a stream starts, and its last delta."""
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines]
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    return [each["content_block"] for each in events if each["type"] == "content_block_start"], events[-2]


def test_a_round_of_a_coding_agent_is_served(big_server: Server) -> None:
    reminder = {"type": "text", "text": "<system-reminder>No tasks.</system-reminder>"}
    question = {"role": "user", "content": [reminder, {"type": "text", "text": "Hello"}]}
    tools = agent_tools()
    choice = {"type": "tool", "name": "weather"}
    body = agent_body([question], tools=tools, tool_choice=choice, top_k=1)  # the random model would think forever
    blocks, end = parts_of(send(big_server, body))
    blocks = [block for block in blocks if block["type"] == "tool_use"]
    assert {block["name"] for block in blocks} == {"weather"}
    assert end["delta"]["stop_reason"] == "tool_use"
    used = [{"type": "tool_use", "id": block["id"], "name": "weather", "input": {"city": "Rome"}} for block in blocks]
    results = [{"type": "tool_result", "tool_use_id": block["id"], "content": "sunny"} for block in blocks]
    results[-1] |= {"is_error": True, "content": [{"type": "text", "text": "no network"}]}
    results[-1]["cache_control"] = {"type": "ephemeral"}
    further = [question, {"role": "assistant", "content": used}, {"role": "user", "content": results}]
    further.append({"role": "system", "content": [{"type": "text", "text": "A task was added."}]})
    blocks, end = parts_of(send(big_server, agent_body(further, tools=tools, max_tokens=3)))
    assert [block["type"] for block in blocks] == ["text"]
    assert end["delta"]["stop_reason"] == "max_tokens"
    assert end["usage"]["cache_read_input_tokens"] > 200


def test_the_smaller_requests_of_a_coding_agent_are_served(big_server: Server) -> None:
    counted = {"model": NAME, "messages": USER, "tools": agent_tools()}
    answer = send(big_server, counted, "/v1/messages/count_tokens?beta=true")
    assert answer.json()["input_tokens"] > 200
    quota = {"model": NAME, "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}], "metadata": {}}
    assert send(big_server, quota).json()["stop_reason"] == "max_tokens"
    title: dict[str, Any] = {"type": "object", "properties": {"title": {"enum": ["One", "Two"]}}, "required": ["title"]}
    title |= {"additionalProperties": False}
    form: dict[str, Any] = {
        "output_config": {"format": {"type": "json_schema", "schema": title}},
        "tools": [],
        "stream": False,
    }
    made = send(big_server, agent_body(USER, **form)).json()
    assert json.loads(made["content"][0]["text"])["title"] in ("One", "Two")
