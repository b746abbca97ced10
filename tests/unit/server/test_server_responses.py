"""Responses have what chats have, in items, and their events make the same."""

from collections.abc import Iterator
from typing import Any

import pytest

from rekindle.formats.response import MessageForm
from rekindle.server import app
from rekindle.server.common.errors import ApiError
from rekindle.server.common.fields import Fields
from rekindle.server.openai.responses.body import read_response
from rekindle.session.session import Session
from tests.unit.apis import RESPONSES, named_events
from tests.unit.asgi import ask
from tests.unit.scripted import scripted_session

pytestmark = pytest.mark.anyio

PATH = "/v1/responses"
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
ANSWER = f"<think>\nthe user asks\n</think>\n\nLet me see.\n{CALL}\n{CALL}"
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": None}
SCHEMA = {"type": "object", "properties": {}}


@pytest.fixture(scope="module")
def scripted() -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch, scripted_session(patch, lambda prompt: ANSWER) as session:
        yield session


def read(**fields: Any) -> Any:
    return read_response(Fields(fields), MessageForm(reasoning_key="thinking"))


async def test_a_response_has_an_item_for_each_part_of_the_answer(scripted: Session) -> None:
    reply = (await ask(app(scripted), PATH, {"input": "Weather?", "tools": [TOOL]})).json
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    answer = await scripted.generate([{"role": "user", "content": "Weather?"}], tools=tools, max_tokens=None)
    reasoning, message, *calls = reply["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "the user asks"}]
    assert message["content"][0]["text"] == "Let me see."
    assert [call["call_id"] for call in calls] == [call.id for call in answer.tool_calls]
    assert calls[0]["arguments"] == '{"city": "Rome"}'
    assert (reply["status"], reply["usage"]["output_tokens"]) == ("completed", answer.usage.completion_tokens)
    count = len(scripted.encode("\nthe user asks\n"))
    assert reply["usage"]["output_tokens_details"] == {"reasoning_tokens": count}


@pytest.mark.parametrize("options", [{}, {"parallel_tool_calls": False}, {"max_output_tokens": 15}])
async def test_the_last_event_has_the_whole_and_the_others_make_it(scripted: Session, options: dict[str, Any]) -> None:
    body = {"input": "Weather?", "tools": [TOOL], **options}
    whole = (await ask(app(scripted), PATH, body)).json
    last = RESPONSES.joined(await ask(app(scripted), PATH, {**body, "stream": True}))
    for name in ("status", "incomplete_details", "tools"):
        assert last[name] == whole[name]
    for name in ("output_tokens", "output_tokens_details"):
        assert last["usage"][name] == whole["usage"][name]
    assert [without_id(item) for item in last["output"]] == [without_id(item) for item in whole["output"]]


def without_id(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != "id"}


async def test_what_a_response_said_goes_back_into_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return ANSWER

    with scripted_session(monkeypatch, script) as session:
        user = {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}
        response = (await ask(app(session), PATH, {"input": [user], "tools": [TOOL], "instructions": "Be kind."})).json
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"}
            for item in response["output"]
            if item["type"] == "function_call"
        ]
        reply = await ask(app(session), PATH, {"input": [user, *response["output"], *results], "tools": [TOOL]})
        assert reply.status == 200
    assert "system\nBe kind." in prompts[0]
    assert "<think>the user asks</think>Let me see.<tool_call>" in prompts[-1]
    assert prompts[-1].count("<|im_start|>assistant") == 2
    assert prompts[-1].count("sunny") == 2


def test_fields_become_the_keywords_of_the_session() -> None:
    request = read(
        input="Hello",
        max_output_tokens=5,
        tools=[TOOL],
        tool_choice={"type": "function", "name": "weather"},
        reasoning={"effort": "low", "summary": "auto", "context": "all_turns"},
        stream=True,
        stream_options={"include_obfuscation": False, "reasoning_summary_delivery": "sequential_cutoff"},
        store=True,
        include=[],
        max_tool_calls=3,
        service_tier="flex",
        prompt_cache_key="k",
        safety_identifier="me",
        text={"verbosity": "low"},
        client_metadata={"session_id": "s"},
        access_programs={"cyber": "standard"},
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    assert request.call.prompt == [{"role": "user", "content": "Hello"}]
    ask = request.call.options
    assert (ask["max_tokens"], ask["tool_choice"]) == (5, "weather")
    assert ask["tools"] == [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    assert ask["chat_template_kwargs"] == {"reasoning_effort": "low"}
    text_format = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
    assert read(input="a", text=text_format).call.options["json_schema"] == SCHEMA


def test_what_cannot_be_served_is_refused_by_its_name() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "compaction_trigger"}]}, "input"),
        ({"input": [{"type": ["message"]}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": ["text"]}]}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": "a", "previous_response_id": 1}, "previous_response_id"),
        ({"input": "a", "conversation": "c"}, "conversation"),
        ({"input": "a", "include": ["file_search_call.result"]}, "include"),
        ({"input": "a", "top_logprobs": 1, "tools": [{"type": "function", "name": "f"}]}, "top_logprobs"),
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "tools": [{"type": "functions", "parameters": {}}]}, "tools"),
        ({"input": "a", "tools": [{"type": "namespace", "tools": []}]}, "tools"),
        ({"input": "a", "tool_choice": "required"}, "tool_choice"),
        ({"input": "a", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "a", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"input": "a", "text": {"verbosty": "low"}}, "text.verbosty"),
        ({"input": "a", "reasoning": {"x": 1}}, "reasoning.x"),
    ]
    for fields, param in refused:
        with pytest.raises(ApiError) as caught:
            read(**fields)
        assert (caught.value.status, caught.value.param) == (400, param)


def test_a_refusal_says_what_to_give_instead() -> None:
    for fields, message in (
        ({"max_tokens": 3}, "here it is max_output_tokens"),
        ({"conversation": "c"}, "previous_response_id"),
    ):
        with pytest.raises(ApiError, match=message):
            read(input="a", **fields)


def test_reasoning_that_no_other_item_follows_is_a_message_of_its_own() -> None:
    items = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"role": "user", "content": "?"},
    ]
    assert read(input=items).call.prompt[0] == {"role": "assistant", "content": "", "thinking": "Hm."}


def test_each_reasoning_item_of_a_turn_is_kept() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    first, second = (
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]} for text in "AB"
    )
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "C"}], "encrypted_content": "x"}
    answer = {"role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}
    for items, reasoning in (
        ([first, call, second, {**call, "call_id": "2"}], "A\nB"),
        ([first, second, answer], "A\nB"),
        ([first, answer, summary, call], "A\nC"),
    ):
        (message,) = read(input=items).call.prompt
        assert (message["role"], message["thinking"]) == ("assistant", reasoning)


def test_histories_of_other_servers_are_read() -> None:
    items = [
        {"role": "user", "content": "Help me."},
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "local_shell_call", "call_id": "1", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "1", "output": "a.txt"},
        {"type": "function_call_output", "call_id": "2", "output": None},
        {"type": "shell_call_output", "call_id": "3", "output": [{"stdout": "b.txt"}]},
        {"type": "mcp_call", "id": "4", "name": "m", "arguments": "{}", "output": "c.txt"},
    ]
    body = Fields({"input": items})
    messages = read_response(body, MessageForm()).call.prompt
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "tool",
        "assistant",
        "tool",
    ]
    assert messages[1]["content"] == [{"type": "text", "text": "No."}]
    assert messages[1]["tool_calls"][0]["function"]["name"] == "local_shell"
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"type": "exec", "command": ["ls"]}
    assert [message["content"] for message in messages[2:5]] == ["a.txt", "", '[{"stdout": "b.txt"}]']
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == ["1", "2", "3", "4"]
    assert "'compaction', 'web_search_call'" in body.notes[0]


def test_updates_of_the_configuration_hold_from_then_on() -> None:
    text_format = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    first = {"type": "configuration_update", "reasoning": {"effort": "high"}, "text": text_format}
    second = {"type": "configuration_update", "id": "u", "reasoning": {"effort": "low"}}
    ask = read(input=[first, {"role": "user", "content": "a"}, second], reasoning={"effort": "none", "summary": "auto"})
    assert [each["role"] for each in ask.call.prompt] == ["user"]
    assert ask.call.options["chat_template_kwargs"] == {"reasoning_effort": "low"}
    assert ask.call.options["json_schema"] == SCHEMA
    assert ask.echo["text"] == text_format
    with pytest.raises(ApiError, match="whose text must be an object, got 'a'"):
        read(input=[{"type": "configuration_update", "text": "a"}, {"role": "user", "content": "a"}])


def test_a_conversation_is_not_shortened_on_demand_and_one_that_was_is_read() -> None:
    trigger, message = {"type": "compaction_trigger"}, {"role": "user", "content": "a"}
    with pytest.raises(ApiError, match="ends with a compaction_trigger"):
        read(input=[message, trigger])
    assert read(input=[message, trigger, message]).call.prompt == [message, message]


async def test_a_response_has_all_fields_that_the_api_requires(scripted: Session) -> None:
    tools = [TOOL, {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]
    reply = await ask(app(scripted), PATH, {"input": "Weather?", "tools": tools, "stream": True, "top_p": 0.5})
    for event in named_events(reply):
        if "response" in event:
            response = event["response"]
            assert {"instructions", "temperature", "metadata", "parallel_tool_calls", "tool_choice"} <= set(response)
            assert (response["top_p"], response["temperature"]) == (0.5, None)
            assert [each["strict"] for each in (response["tools"][0], *response["tools"][1]["tools"])] == [None, None]
            assert response["tools"][1]["tools"][0]["parameters"] is None
    plain = (await ask(app(scripted), PATH, {"input": "Weather?"})).json
    assert (plain["tools"], plain["instructions"]) == ([], None)
