"""A request offers some of its tools, and tools whose input is a text, in either form of OpenAI's API."""

import json
from typing import Any

import pytest

from rekindle.formats.response import MessageForm
from rekindle.server import app
from rekindle.server.common.errors import ApiError
from rekindle.server.common.fields import Fields
from rekindle.server.common.messages import message
from rekindle.server.common.tools.offer import Tools, read_tools
from rekindle.server.openai.responses.body import read_response
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
        offer = read(nested, tools=tools, tool_choice=choice)
        assert (names(offer), offer.options["tool_choice"]) == (["a", "c"], mode)
    for wrong in (
        {"type": "allowed_tools"},
        {**choice, "mode": "none", "allowed_tools": {"mode": "none", "tools": tools}},
        {"type": "allowed_tools", "mode": "auto", "tools": [3], "allowed_tools": {"mode": "auto", "tools": [3]}},
        {"type": "allowed_tools", "mode": "auto", "allowed_tools": {"mode": "auto"}},
        {"type": "allowed_tools", "mode": "auto", "allowed_tools": {"mode": "auto", "tools": []}, "tools": []},
        {"type": "file_search"},
        {"type": ["function"]},
    ):
        with pytest.raises(ApiError, match=r"must be auto, none, required, .* or of type allowed_tools"):
            read(nested, tools=tools, tool_choice=wrong)
    with pytest.raises(ApiError, match="names a tool that is not in tools: 'a'"):
        read(nested, tools=tools[1:], tool_choice=choice)


@pytest.mark.parametrize("nested", [True, False])
def test_a_custom_tool_is_told_as_a_function_of_a_text(nested: bool) -> None:
    digits = tool("d", "custom", nested=nested, description="Dials.", format=grammar("regex", "[0-9]+", nested=nested))
    plain = tool("t", "custom", nested=nested, format={"type": "text"})
    offer = read(nested, tools=[digits, plain], tool_choice=tool("d", "custom", nested=nested))
    dials, writes = (each["function"] for each in offer.options["tools"])
    assert dials["parameters"]["properties"] == {"input": {"type": "string", "pattern": "^(?:[0-9]+)$"}}
    assert dials["description"] == "Dials.\nThe input follows this grammar (regex):\n[0-9]+"
    assert writes["parameters"]["properties"] == {"input": {"type": "string"}}
    assert (offer.options["tool_choice"], set(offer.custom)) == ("d", {"d", "t"})
    assert [offer.custom["d"].accepts(text) for text in ("12", "", "1a")] == [True, False, False]
    assert offer.custom["t"].accepts("anything")
    for wrong, pattern in (
        ({"format": {"type": "xml"}}, "neither text nor a grammar"),
        ({"format": grammar("lark", "start: nope", nested=nested)}, "cannot be read: .*unknown name"),
        ({"format": grammar("ebnf", "a", nested=nested)}, r"without syntax \(lark or regex\)"),
    ):
        with pytest.raises(ApiError, match=pattern):
            read(nested, tools=[tool("w", "custom", nested=nested, **wrong)])
    lark = tool("l", "custom", nested=nested, format=grammar("lark", 'start: "a"+', nested=nested))
    assert names(read(nested, tools=[lark])) == ["l"]
    for choice in ("required", tool("l", "custom", nested=nested)):
        offer = read(nested, tools=[lark, digits, plain], tool_choice=choice)
        assert offer.options["tool_grammars"] == {"l": 'start: "a"+'}  # the schema of "d" has its pattern
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
        content = "".join(delta.get("content") or "" for delta in deltas)
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
@pytest.mark.parametrize(
    ("syntax", "definition"),
    [
        ("lark", 'start: "begin" LF line+\nline: "+" /[^\\n]*/ LF\nLF: /\\n/'),
        ("regex", r"begin\n(\+[^\n]*\n)+"),
    ],
)
async def test_a_required_input_follows_its_grammar(
    monkeypatch: pytest.MonkeyPatch, path: str, syntax: str, definition: str
) -> None:
    nested = path == CHAT
    run = tool("run", "custom", nested=nested, format=grammar(syntax, definition, nested=nested))
    body = {("messages" if nested else "input"): [USER], "tools": [run], "tool_choice": "required"}
    with scripted_session(monkeypatch, lambda prompt: called("begin+the end\n")) as session:
        whole = (await ask(app(session), path, body)).json
    entry = whole["choices"][0]["message"]["tool_calls"][0]["custom"] if nested else whole["output"][0]
    assert entry["input"] == "begin\n+the end\n"


@pytest.mark.anyio
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize(("text", "fits"), [("((a))", True), ("((a)", False)])
async def test_a_required_input_of_a_recursive_grammar_is_checked_at_its_end(
    monkeypatch: pytest.MonkeyPatch, path: str, text: str, fits: bool
) -> None:
    nested = path == CHAT
    run = tool("run", "custom", nested=nested, format=grammar("lark", 'start: "a" | "(" start ")"', nested=nested))
    body = {("messages" if nested else "input"): [USER], "tools": [run], "tool_choice": "required"}
    with scripted_session(monkeypatch, lambda prompt: called(text)) as session:
        whole = (await ask(app(session), path, body)).json
        reply = await ask(app(session), path, {**body, "stream": True})
    lines = [line.removeprefix("data: ") for line in reply.body.decode().splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    if nested:
        message = whole["choices"][0]["message"]
        found = message["tool_calls"][0]["custom"]["input"] if fits else message["content"]
        deltas = [event["choices"][0]["delta"] for event in events]
        streamed = "".join(each.get("content") or "" for each in deltas)
    else:
        (item,) = whole["output"]
        found = item["input"] if fits else item["content"][0]["text"]
        streamed = "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")
    assert found.replace("\n", "") == (text if fits else called(text))
    assert streamed == ("" if fits else found)


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


HOSTED = ("web_search", "image_generation", "local_shell", "tool_search", "a_type_of_tomorrow")


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("kind", HOSTED)
def test_tools_that_a_server_runs_are_left_out_unless_one_is_chosen(kind: str, nested: bool) -> None:
    hosted = {"type": kind, **({"execution": "client", "parameters": {}} if kind == "tool_search" else {})}
    body = Fields({"tools": [hosted, tool("f", nested=nested)]})
    assert names(read_tools(body, nested=nested)) == ["f"]
    assert body.notes == [f"tools of the types '{kind}' are left out: this server runs no tools"]
    assert read(nested, tools=[hosted]).options == {}
    choices: list[Any] = [{"type": kind}]
    if not nested:
        choices.append({"type": "allowed_tools", "mode": "auto", "tools": [hosted]})
    for choice in choices:
        with pytest.raises(ApiError) as refused:
            read(nested, tools=[hosted, tool("f", nested=nested)], tool_choice=choice)
        assert (refused.value.status, refused.value.param) == (400, "tool_choice")
    with pytest.raises(ApiError, match="requires tools that the client runs"):
        read(nested, tools=[hosted], tool_choice="required")
    with pytest.raises(ApiError, match="must each be"):
        read_tools(Fields({"tools": [hosted]}, strict=True), nested=nested)


@pytest.mark.anyio
async def test_a_note_about_a_tool_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with scripted_session(monkeypatch, lambda prompt: "Yes.") as session:
        server = app(session)
        for _ in range(2):
            reply = await ask(server, RESPONSES, {"input": "Hi", "tools": [{"type": "web_search"}]})
            assert reply.json["output"][0]["content"][0]["text"] == "Yes."
    assert [record.message for record in caplog.records if "'web_search'" in record.message] == [
        "a request has parts without effect: tools of the types 'web_search' are left out: this server runs no tools"
    ]


def crm(**fields: Any) -> dict[str, Any]:
    tools = [tool("find", nested=False, description="Finds."), tool("note", "custom", nested=False)]
    return {"type": "namespace", "name": "crm", "description": "Customers.", "tools": tools, **fields}


def test_the_tools_of_a_namespace_are_told_with_its_name() -> None:
    offer = read(False, tools=[tool("find", nested=False), crm(), crm(name="mcp__files__", description="")])
    assert names(offer) == ["find", "crm__find", "crm__note", "mcp__files__find", "mcp__files__note"]
    functions = [each["function"] for each in offer.options["tools"]]
    assert functions[1]["description"] == "crm: Customers.\n\nFinds."
    assert (functions[3]["description"], functions[4]["description"]) == ("Finds.", "")
    assert offer.namespaced["crm__note"] == ("crm", "note")
    assert set(offer.custom) == {"crm__note", "mcp__files__note"}
    for choice, mode in (
        ({"type": "function", "name": "find"}, "find"),
        ({"type": "function", "name": "find", "namespace": "crm"}, "crm__find"),
        ({"type": "function", "name": "crm__find"}, "crm__find"),
    ):
        assert read(False, tools=[tool("find", nested=False), crm()], tool_choice=choice).options["tool_choice"] == mode
    assert (
        read(False, tools=[crm()], tool_choice={"type": "custom", "name": "note"}).options["tool_choice"] == "crm__note"
    )
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "crm"}]}
    assert names(read(False, tools=[tool("find", nested=False), crm()], tool_choice=allowed)) == [
        "crm__find",
        "crm__note",
    ]
    for wrong in (crm(name=3), crm(tools=None), crm(tools=[3])):
        with pytest.raises(ApiError):
            read(False, tools=[wrong])
    with pytest.raises(ApiError, match="two tools with the name 'crm__find'"):
        read(False, tools=[tool("crm__find", nested=False), crm()])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.anyio
async def test_a_call_within_a_namespace_comes_back_with_it(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        calls = [{"name": "crm__find", "arguments": {"a": 1}}, {"name": "crm__note", "arguments": {"input": "x"}}]
        return "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)

    with scripted_session(monkeypatch, script) as session:
        server = app(session)
        reply = await ask(server, RESPONSES, {"input": "Hi", "tools": [crm()], "stream": stream})
        if stream:
            last = reply.body.decode().rstrip().rpartition("\n")[2]
            answer = json.loads(last.removeprefix("data: "))["response"]
            assert b'"arguments":"{\\"a\\": 1}","name":"find"' in reply.body
        else:
            answer = reply.json
        call, note = answer["output"]
        assert (call["type"], call["namespace"], call["name"]) == ("function_call", "crm", "find")
        assert (note["type"], note["namespace"], note["name"], note["input"]) == (
            "custom_tool_call",
            "crm",
            "note",
            "x",
        )
        results = [
            {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"} for item in answer["output"]
        ]
        again = {"input": [{"role": "user", "content": "Hi"}, *answer["output"], *results], "tools": [crm()]}
        assert (await ask(server, RESPONSES, again)).status == 200
    assert '"name": "crm__find"' in prompts[-1]
    assert '"name": "crm__note"' in prompts[-1]
    assert "crm__find crm__note" in prompts[0]


def test_items_may_bring_further_tools() -> None:
    user = {"role": "user", "content": "Hi"}
    search_output = {"type": "tool_search_output", "call_id": "1", "tools": [crm()]}
    more = {"type": "additional_tools", "role": "developer", "tools": [tool("g", nested=False)]}
    request = read_response(
        Fields({"input": [user, search_output, more], "tools": [tool("f", nested=False)]}), MessageForm()
    )
    assert [each["function"]["name"] for each in request.call.options["tools"]] == ["f", "crm__find", "crm__note", "g"]
    assert len(request.call.prompt) == 1
