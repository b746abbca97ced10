"""Tools of a source are listed at the first turn, and called like functions."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from rekindle import InvalidRequest
from rekindle.core.concurrency.waits import Waits
from rekindle.session.session import Session
from rekindle.tools.calling import FunctionCall, ToolFailed, ToolOutput
from rekindle.tools.mcp.home import ClientCall, Home
from rekindle.tools.mcp.results import output_of
from rekindle.tools.records import without_references
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


def test_references_of_a_schema_are_resolved_in_place() -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}}}
    schema = {
        "type": "object",
        "$defs": {"Point": point},
        "properties": {"at": {"$ref": "#/$defs/Point", "description": "where"}, "else": {"$ref": "http://a/b"}},
    }
    assert without_references(schema) == {
        "type": "object",
        "properties": {"at": {**point, "description": "where"}, "else": {}},
    }
    assert "$defs" in schema


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
