"""Tools of a source are listed at the first turn, and called like functions."""

import base64
import copy
import io
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import anyio
import pytest
from PIL import Image

from rekindle import InvalidRequest
from rekindle.core.concurrency.waits import Waits, awaited
from rekindle.session.session import Session
from rekindle.tools.calling import FunctionCall, ToolFailed, ToolOutput, result_content, result_text
from rekindle.tools.content import as_text, for_model
from rekindle.tools.mcp.clients import MOST_PAGES, ClientTools
from rekindle.tools.mcp.home import ClientCall, Home
from rekindle.tools.mcp.results import output_of
from rekindle.tools.references import ROOM, without_references
from rekindle.tools.sources import ToolSource
from rekindle.tools.tool import Tool
from tests.unit.scripted import call, dictated, scripted_session
from tests.unit.session.test_session_tools import says, weather

pytestmark = pytest.mark.anyio


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    with scripted_session(monkeypatch, dictated) as session:
        yield session


def rain(town: str) -> ToolOutput:
    if town == "Atlantis":
        raise ToolFailed("under water")
    return ToolOutput(f"rain in {town}", {"rain": town})


class Server(ToolSource):
    """A source with one tool, which counts the questions for its list."""

    def __init__(self, name: str = "rain"):
        self.name, self.questions = "a server", 0
        self.tools: Sequence[Tool] | None = None
        schema = {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
        self._tool = Tool(name, schema, lambda arguments: FunctionCall(rain, dict(arguments)), self.name)

    def wait_listed(self) -> Waits[Sequence[Tool]]:
        yield from ()
        if self.tools is None:
            self.questions += 1
            self.tools = [self._tool]
        return self.tools


async def test_a_chat_asks_a_source_once_and_calls_its_tools_beside_functions(session: Session) -> None:
    server = Server()
    chat = session.chat(tools=[weather, server])
    assert server.questions == 0
    with pytest.raises(InvalidRequest, match="the tools of a server are not listed yet"):
        chat.stream("say hello")
    assert (await chat.say(f"say {call('rain', town='Oslo')}")).content == "It is: rain in Oslo"
    assert chat.fork().say_sync(f"say {call(city='Rome')}").content == 'It is: {"city": "Rome", "sun": 1}'
    assert server.questions == 1


async def test_the_model_reads_the_text_and_the_caller_gets_the_value(session: Session) -> None:
    text = call("rain", town="Oslo") + call("rain", town="Atlantis") + call("rain")
    first, second, third = (await session.run_tools(says(text), [Server()])).results
    assert (first.content, first.value, first.error) == ("rain in Oslo", {"rain": "Oslo"}, None)
    assert (second.content, second.value) == ("error: under water", None)
    assert "error: TypeError: rain() missing" in third.content


async def test_two_tools_of_one_name_are_told_with_their_owners(session: Session) -> None:
    words = r"2 are called 'weather' \(a function, one of a server\)"
    with pytest.raises(InvalidRequest, match=words):
        await session.run_tools(says("hi"), [weather, Server("weather")])
    chat = session.chat(tools=[weather, Server("weather")])
    with pytest.raises(InvalidRequest, match=words):
        await chat.say("say hi")
    assert len(chat) == 0


@pytest.mark.parametrize(
    ("result", "content", "value"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb", "a\nb"),
        ({"content": [{"type": "text", "text": "a"}], "structuredContent": {"a": 1}}, "a", {"a": 1}),
        ({"content": [], "structuredContent": {"a": "ä"}}, '{"a": "ä"}', {"a": "ä"}),
        ({"content": []}, "", ""),
        (
            {"content": [{"type": "audio", "mimeType": "audio/wav", "data": "A" * 8}], "structuredContent": [1]},
            "[audio, audio/wav, 6 B: not shown, as only text can be read here]\n[1]",
            [1],
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "file:a", "text": "its text"}}]},
            "its text",
            "its text",
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "x:1", "mimeType": "a/b", "blob": "AAAA"}}]},
            "[resource x:1, a/b, 3 B: not shown, as only text can be read here]",
            "[resource x:1, a/b, 3 B: not shown, as only text can be read here]",
        ),
        (
            {"content": [{"type": "resource_link", "name": "log", "uri": "file:log"}]},
            "[resource log: file:log]",
            "[resource log: file:log]",
        ),
        (
            {"content": [{"type": "hologram"}]},
            "[hologram, which cannot be shown as text]",
            "[hologram, which cannot be shown as text]",
        ),
    ],
)
def test_each_block_of_a_result_is_text_or_named(result: Any, content: str, value: Any) -> None:
    assert output_of(result) == ToolOutput(content, value)
    with pytest.raises(ToolFailed, match=r"^[^$]") as raised:
        output_of({**result, "isError": True})
    assert str(raised.value) == content or (not content and "without a word" in str(raised.value))


def png(size: tuple[int, int] = (8, 8)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (255, 0, 0)).save(file, "PNG")
    return file.getvalue()


def block(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "image", "mimeType": "image/png", "data": base64.b64encode(data).decode(), **more}


def test_pictures_of_a_result_are_parts_for_models_that_see_and_names_for_others() -> None:
    words, data = {"type": "text", "text": "the page"}, png()
    resource = {"type": "resource", "resource": {"uri": "x:1", "mimeType": "image/png", "blob": block(data)["data"]}}
    output = output_of({"content": [words, block(data), resource]})
    assert isinstance(output.content, list)
    text, *pictures = output.content
    assert text == words
    for picture in pictures:
        assert isinstance(picture, dict)
        assert picture["type"] == "image"
        assert picture["image"].data == data
    assert output.value is output.content
    name = f"[image, image/png, {len(data)} B: not shown, as only text can be read here]"
    assert for_model(output.content, sees=False) == f"the page\n{name}\n{name}"
    assert for_model(output.content, sees=True) is output.content
    damaged = output_of({"content": [block(data[:12])]})
    assert damaged.content == "[image, image/png, 12 B: not shown, as only text can be read here]"
    with pytest.raises(ToolFailed, match=r"the page\n\[image, image/png"):
        output_of({"content": [words, block(data)], "isError": True})


def test_pictures_of_a_function_are_parts_and_other_values_are_not() -> None:
    picture, data = Image.new("L", (4, 2)), png()
    assert [part["type"] for part in result_content(picture)] == ["image"]  # type: ignore[index]
    assert [part["type"] for part in result_content(("look", data, picture))] == ["text", "image", "image"]  # type: ignore[index]
    assert as_text(result_content(picture)) == "[image, 4x2 pixels]"
    for value in (b"bytes", [1, 2], "text", None, {"a": 1}, data[:5]):
        assert result_content(value) == result_text(value)


async def test_a_picture_of_a_function_is_named_for_a_model_of_text(session: Session) -> None:
    def draw(city: str) -> Any:
        return ["here", Image.new("RGB", (4, 2))]

    run = await session.run_tools(says(call("draw", city="Rome")), [draw])
    assert run.results[0].content == "here\n[image, 4x2 pixels: not shown, as only text can be read here]"
    assert run.messages[2]["content"] == run.results[0].content


POINT = {"type": "object", "properties": {"x": {"type": "number"}}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {
                "$defs": {"P": POINT},
                "at": {"$ref": "#/$defs/P", "description": "where"},
                "else": {"$ref": "http://a/b"},
            },
            {"at": {**POINT, "description": "where"}, "else": {}},
        ),
        ({"definitions": {"P": POINT}, "at": {"$ref": "#/definitions/P"}}, {"at": POINT}),
        (
            {"a/b": POINT, "m~n": POINT, "at": {"$ref": "#/properties/a~1b"}, "in": {"$ref": "#/properties/m~0n"}},
            {"at": POINT, "in": POINT},
        ),
        ({"a[0]": POINT, "at": {"$ref": "#/properties/a%5B0%5D"}}, {"at": POINT}),
        (
            {"a": {"type": "array", "prefixItems": [POINT]}, "at": {"$ref": "#/properties/a/prefixItems/0"}},
            {"at": POINT},
        ),
        (
            {"$ref": {"type": "string"}, "at": {"$ref": "#/properties/$ref"}},
            {"$ref": {"type": "string"}, "at": {"type": "string"}},
        ),
        ({"child": {"$ref": "#"}}, {"child": {"type": "object"}}),
        ({"$defs": {"P": {**POINT, "$anchor": "p"}}, "at": {"$ref": "#p"}}, {"at": {**POINT, "$anchor": "p"}}),
        ({"$defs": {"P": {**POINT, "$id": "p.json"}}, "at": {"$ref": "p.json"}}, {"at": {**POINT, "$id": "p.json"}}),
        (
            {"$defs": {"P": True, "N": False}, "at": {"$ref": "#/$defs/P"}, "no": {"$ref": "#/$defs/N"}},
            {"at": {}, "no": {"not": {}}},
        ),
        ({"$defs": {"P": {"$ref": "#/$defs/Q"}, "Q": POINT}, "at": {"$ref": "#/$defs/P"}}, {"at": POINT}),
        ({"$defs": {"P": {"$ref": "#/$defs/P"}}, "at": {"$ref": "#/$defs/P"}}, {"at": {}}),
        (
            {"a": {"enum": [{"$ref": "#/x"}], "default": {"$ref": "#/x"}}},
            {"a": {"enum": [{"$ref": "#/x"}], "default": {"$ref": "#/x"}}},
        ),
        (
            {"a": {"$ref": "#/nowhere"}, "b": {"$ref": "#/properties/a/0"}, "c": {"$ref": 3}},
            {"a": {}, "b": {}, "c": {"$ref": 3}},
        ),
    ],
)
def test_references_of_a_schema_are_resolved_in_place(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    outside: dict[str, Any] = {key: schema.pop(key) for key in ("$defs", "definitions") if key in schema}
    whole = {"type": "object", **outside, "properties": schema}
    copied = copy.deepcopy(whole)
    properties = without_references(whole)["properties"]
    assert {key: properties[key] for key in expected} == expected
    assert whole == copied


def test_an_address_of_the_schema_itself_is_resolved() -> None:
    schema = {"$id": "https://a/tool.json", "$defs": {"P": POINT}, "properties": {"at": {"$ref": "tool.json#/$defs/P"}}}
    assert without_references(schema)["properties"]["at"] == POINT


@pytest.mark.parametrize("kinds", [2, 14, 40])
def test_references_to_each_other_have_an_end(kinds: int) -> None:
    names = [f"T{number}" for number in range(kinds)]
    inner = {"type": "object", "properties": {name: {"$ref": f"#/$defs/{name}"} for name in names}}
    schema = {"$defs": dict.fromkeys(names, inner), "properties": {"doc": {"$ref": "#/$defs/T0"}}}
    schema = json.loads(json.dumps(schema))
    plain = without_references(schema)
    assert set(plain["properties"]["doc"]["properties"]) == set(names)
    assert len(json.dumps(plain)) < 2 * ROOM


def test_a_fan_of_references_has_an_end_and_a_deep_schema_is_refused() -> None:
    levels = {
        f"d{i}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in "ab"}}
        for i in range(30)
    }
    schema = {"$defs": {**levels, "d30": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/d0"}}}
    assert len(json.dumps(without_references(schema))) < 2 * ROOM
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"items": deep}
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        without_references(deep)


class Listing:
    """A client of an MCP server with pages of tools."""

    def __init__(self, pages: list[tuple[list[Any], str | None]]):
        self.pages, self.questions = pages, 0

    async def page(self, cursor: str | None) -> dict[str, Any]:
        tools, after = self.pages[min(self.questions, len(self.pages) - 1)]
        self.questions += 1
        return {"tools": tools, "nextCursor": after}


def described(name: Any, schema: Any = POINT, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema, **more}


async def tools_of_pages(client: Any, monkeypatch: pytest.MonkeyPatch) -> Sequence[Tool]:
    monkeypatch.setattr("rekindle.tools.mcp.clients.page_of", lambda client, cursor: client.page(cursor))
    return await awaited(ClientTools(client, Home.here("a"), "shop").wait_listed())


async def test_a_malformed_tool_is_left_out_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"items": deep}
    tools = [
        described("a"),
        {"name": "b"},
        3,
        described(None),
        described("c", []),
        described("d", deep),
        described("a"),
        described("e"),
    ]
    with pytest.warns(RuntimeWarning) as warnings:
        tools_told = await tools_of_pages(Listing([(tools, None)]), monkeypatch)
    assert [tool.name for tool in tools_told] == ["a", "e"]
    assert len(warnings) == 6
    assert all("the MCP server shop" in str(each.message) for each in warnings)


@pytest.mark.parametrize("after", ["same", None])
async def test_a_list_of_tools_has_an_end(monkeypatch: pytest.MonkeyPatch, after: str | None) -> None:
    pages: list[tuple[list[Any], str | None]] = [([described(f"t{i}")], after or f"page {i}") for i in range(2000)]
    client = Listing(pages)
    with pytest.raises(InvalidRequest, match="the MCP server shop does not list its tools: its list has no end"):
        await tools_of_pages(client, monkeypatch)
    assert client.questions <= MOST_PAGES + 1


async def test_a_list_of_tools_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        async def page(self, cursor: str | None) -> Any:
            await anyio.sleep_forever()

    monkeypatch.setattr("rekindle.tools.mcp.clients.LIST_SECONDS", 0.01)
    with pytest.raises(InvalidRequest, match="the MCP server shop does not list its tools: it did not answer in time"):
        await tools_of_pages(Silent(), monkeypatch)


async def test_a_client_is_called_in_its_loop_alone() -> None:
    async def work(value: str) -> str:
        return value

    home = Home.here("tools[0]")
    assert home.is_here
    assert await ClientCall(home, partial(work, "here")).awaited() == "here"
    with pytest.raises(InvalidRequest, match="await the call instead"):
        ClientCall(home, partial(work, "blocked")).blocked()


def test_a_client_needs_a_loop_that_runs() -> None:
    with pytest.raises(InvalidRequest, match=r"tools\[0\] is a client .* none runs in this thread"):
        Home.here("tools[0]")
