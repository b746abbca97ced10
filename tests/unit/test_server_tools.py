"""A request offers some of its tools, and tools whose input is a text, in either form of OpenAI's API."""

import json
from typing import Any

import pytest

from rekindle.core.text.response import MessageForm
from rekindle.server import app
from rekindle.server.errors import ApiError
from rekindle.server.reading.chat import message
from rekindle.server.reading.fields import Fields
from rekindle.server.reading.responses import read_response
from rekindle.server.reading.tools import Tools, read_tools
from tests.unit.asgi import ask
from tests.unit.scripted import scripted_session

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
USER = {"role": "user", "content": "Hi"}


def tool(name: str, kind: str = "function", *, nested: bool, **fields: Any) -> dict[str, Any]:
    return {"type": kind, kind: {"name": name, **fields}} if nested else {"type": kind, "name": name, **fields}


def grammar(syntax: str, definition: str, *, nested: bool) -> dict[str, Any]:
    fields = {"syntax": syntax, "definition": definition}
    return {"type": "grammar", "grammar": fields} if nested else {"type": "grammar", **fields}


def read(nested: bool, **fields: Any) -> Tools:
    return read_tools(Fields(fields), nested=nested)


def names(tools: Tools) -> list[str]:
    return [each["function"]["name"] for each in tools.options["tools"]]


@pytest.mark.parametrize("nested", [True, False])
def test_allowed_tools_are_the_only_ones_that_the_model_sees(nested: bool) -> None:
    tools = [tool(name, nested=nested) for name in "abc"]
    for mode in ("auto", "required"):
        allowed: dict[str, Any] = {"mode": mode, "tools": [tool(name, nested=nested) for name in "ca"]}
        choice = {"type": "allowed_tools", **({"allowed_tools": allowed} if nested else allowed)}
        found = read(nested, tools=tools, tool_choice=choice)
        assert (names(found), found.options["tool_choice"]) == (["a", "c"], mode)
    for wrong in (
        {"type": "allowed_tools"},
        {**choice, "mode": "none", "allowed_tools": {"mode": "none", "tools": tools}},
        {"type": "allowed_tools", "mode": "auto", "tools": [3], "allowed_tools": {"mode": "auto", "tools": [3]}},
        {"type": "allowed_tools", "mode": "auto", "allowed_tools": {"mode": "auto"}},
        {"type": "file_search"},
    ):
        with pytest.raises(ApiError, match=r"must be auto, none, required, .* or of type allowed_tools"):
            read(nested, tools=tools, tool_choice=wrong)
    with pytest.raises(ApiError, match="names a tool that is not in tools: 'a'"):
        read(nested, tools=tools[1:], tool_choice=choice)


@pytest.mark.parametrize("nested", [True, False])
def test_a_custom_tool_is_told_as_a_function_of_a_text(nested: bool) -> None:
    digits = tool("d", "custom", nested=nested, description="Dials.", format=grammar("regex", "[0-9]+", nested=nested))
    plain = tool("t", "custom", nested=nested, format={"type": "text"})
    found = read(nested, tools=[digits, plain], tool_choice=tool("d", "custom", nested=nested))
    dials, writes = (each["function"] for each in found.options["tools"])
    assert dials["parameters"]["properties"] == {"input": {"type": "string", "pattern": "^(?:[0-9]+)$"}}
    assert dials["description"] == "Dials.\nThe input follows this grammar (regex):\n[0-9]+"
    assert writes["parameters"]["properties"] == {"input": {"type": "string"}}
    assert (found.options["tool_choice"], set(found.custom)) == ("d", {"d", "t"})
    assert [found.custom["d"].accepts(text) for text in ("12", "", "1a")] == [True, False, False]
    assert found.custom["t"].accepts("anything")
    for wrong, said in (
        ({"format": {"type": "xml"}}, "neither text nor a grammar"),
        ({"format": grammar("lark", "start: nope", nested=nested)}, "cannot be read: .*unknown name"),
        ({"format": grammar("ebnf", "a", nested=nested)}, r"without syntax \(lark or regex\)"),
    ):
        with pytest.raises(ApiError, match=said):
            read(nested, tools=[tool("w", "custom", nested=nested, **wrong)])
    lark = tool("l", "custom", nested=nested, format=grammar("lark", 'start: "a"+', nested=nested))
    assert names(read(nested, tools=[lark])) == ["l"]
    for choice in ("required", tool("l", "custom", nested=nested)):
        found = read(nested, tools=[lark, digits, plain], tool_choice=choice)
        required = {"l": 'start: "a"+', "d": "start: /[0-9]+/"}
        assert found.options["tool_grammars"] == (required if choice == "required" else {"l": 'start: "a"+'})
    paths = tool("p", "custom", nested=nested, format=grammar("regex", r"/a\/b", nested=nested))
    assert read(nested, tools=[paths], tool_choice="required").options["tool_grammars"] == {"p": r"start: /\/a\/b/"}
    assert "tool_grammars" not in read(nested, tools=[lark, digits]).options


def called(text: Any) -> str:
    return f"<tool_call>{json.dumps({'name': 'run', 'arguments': {'input': text}})}</tool_call>"


@pytest.mark.anyio
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize(("text", "fits"), [("aaa", True), ("b", False), (3, False)])
async def test_the_input_of_a_custom_tool_comes_back_if_it_fits(
    monkeypatch: pytest.MonkeyPatch, path: str, text: Any, fits: bool
) -> None:
    nested = path == CHAT
    run = tool("run", "custom", nested=nested, format=grammar("lark", 'start: "a"+', nested=nested))
    body = {("messages" if nested else "input"): [USER], "tools": [run]}
    with scripted_session(monkeypatch, lambda prompt: called(text)) as session:
        whole = (await ask(app(session), path, body)).json
        reply = await ask(app(session), path, {**body, "stream": True})
    lines = [line.removeprefix("data: ") for line in reply.body.decode().splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    if nested:
        (choice,) = whole["choices"]
        deltas = [event["choices"][0]["delta"] for event in events]
        (entry,) = [each for delta in deltas for each in delta.get("tool_calls", ())] or [None]
        content = "".join(delta.get("content", "") for delta in deltas)
        assert content == (choice["message"]["content"] or "")
        if fits:
            (call,) = choice["message"]["tool_calls"]
            assert call == {"id": call["id"], "type": "custom", "custom": {"name": "run", "input": "aaa"}}
            assert entry == {"index": 0, **call}
        reasons = choice["finish_reason"], events[-1]["choices"][0]["finish_reason"]
        assert reasons == (("tool_calls" if fits else "stop"),) * 2
    else:
        (item,), last = whole["output"], events[-1]["response"]["output"]
        assert [{**each, "id": ""} for each in last] == [{**item, "id": ""}]
        kinds = [event["type"] for event in events]
        assert ("response.custom_tool_call_input.delta" in kinds) == fits
        if fits:
            assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "run", "aaa")
            (done,) = (event for event in events if event["type"] == "response.custom_tool_call_input.done")
            assert done["input"] == "aaa"
        content = "" if fits else item["content"][0]["text"]
    assert content == ("" if fits else called(text))


@pytest.mark.anyio
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_required_input_follows_its_grammar(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    nested = path == CHAT
    definition = 'start: "begin" LF line+\nline: "+" /[^\\n]*/ LF\nLF: /\\n/'
    run = tool("run", "custom", nested=nested, format=grammar("lark", definition, nested=nested))
    body = {("messages" if nested else "input"): [USER], "tools": [run], "tool_choice": "required"}
    with scripted_session(monkeypatch, lambda prompt: called("begin+the end\n")) as session:
        whole = (await ask(app(session), path, body)).json
    entry = whole["choices"][0]["message"]["tool_calls"][0]["custom"] if nested else whole["output"][0]
    assert entry["input"] == "begin\n+the end\n"


def test_past_calls_of_custom_tools_are_calls_of_functions() -> None:
    call = {"id": "1", "type": "custom", "custom": {"name": "run", "input": "aa"}}
    read_message = message({"role": "assistant", "tool_calls": [call]}, MessageForm())
    function = {"name": "run", "arguments": {"input": "aa"}}
    assert read_message["tool_calls"] == [{"id": "1", "type": "function", "function": function}]
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "custom_tool_call", "call_id": "1", "name": "run", "input": "aa"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "done"},
    ]
    _, calls, result = read_response(Fields({"input": items}), MessageForm()).call.prompt
    assert calls["tool_calls"] == read_message["tool_calls"]
    assert result == {"role": "tool", "tool_call_id": "1", "content": "done"}
