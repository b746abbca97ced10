"""Tools of MCP servers are called by runs, chats and the terminal, and whatever a server does, the chat goes on."""

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp import Client, ClientSession, StdioServerParameters, stdio_client

import rekindle
from rekindle import InvalidRequest
from rekindle.__main__ import main
from rekindle.cli.chat import conversing
from tests.clients.mcp_server import server as memory_server
from tests.unit.scripted import dictated, scripted_session
from tests.waiting import until, until_blocking

pytestmark = pytest.mark.anyio
SERVER = Path(__file__).with_name("mcp_server.py")
LOOSE = str(SERVER.with_name("loose_mcp_server.py"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def call(name: str, **arguments: Any) -> str:
    return f"say <tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


ROME = call("weather", place={"city": "Rome"}, days=3)
SUNNY = "sunny in Rome, Italy, for 3 days"


def says(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[rekindle.Session]:
    with scripted_session(monkeypatch, dictated, max_context=8192) as session:
        yield session


@asynccontextmanager
async def connected(*arguments: str, **options: Any) -> AsyncIterator[ClientSession]:
    """Start the server, or another one with arguments, and yield its client."""
    parameters = StdioServerParameters(command=sys.executable, args=list(arguments or [str(SERVER)]))
    async with await anyio.open_file(os.devnull, "w") as log:
        streams = stdio_client(parameters, errlog=log.wrapped)
        async with streams as (reading, writing), ClientSession(reading, writing, **options) as client:
            await client.initialize()
            yield client


async def test_a_server_and_a_function_are_called_side_by_side(session: rekindle.Session) -> None:
    def local(text: str) -> str:
        """Return a text."""
        return text

    async with connected() as client:
        chat = session.chat(tools=[client, local])
        run = await session.run_tools(says(ROME + call("local", text="hi").removeprefix("say ")), [client, local])
        assert [result.content for result in run.results] == [SUNNY, "hi"]
        assert (await chat.say(ROME)).content == f"It is: {SUNNY}"
        assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool", "assistant"]
        stream = chat.stream("say by a stream")
        assert (await stream.handle).content == "by a stream"


PICTURE = "the sky\n[image, image/png, 1.5 kB: not shown, as only text can be read here]"


async def test_what_a_tool_returns_is_text_for_the_model_and_a_value_for_the_caller(session: rekindle.Session) -> None:
    async with connected() as client:
        for text, content, value, error in (
            (call("figures", city="Rome"), '{\n  "Rome": 3\n}', {"Rome": 3}, None),
            (
                call("picture"),
                PICTURE,
                None,
                None,
            ),
            (call("fails", city="Rome"), "error: Error executing tool fails: no weather in Rome", None, "no weather"),
            (call("nothing"), "error: there is no function 'nothing'; there are weather,", None, "there is no"),
            (call("weather", town="Rome"), "error: ", None, "place"),
        ):
            (result,) = (await session.run_tools(says(text), [client])).results
            assert result.content.startswith(content)
            assert value is None or result.value == value
            assert result.error is None if error is None else error in str(result.error)


async def test_a_schema_is_told_without_references_and_forces_a_call(session: rekindle.Session) -> None:
    async with connected() as client:
        chat = session.chat(tools=[client])
        await chat.say("say hello")
        (tool,) = [tool for tool in chat._toolset.tools if tool.name == "weather"]
        assert "$ref" not in json.dumps(tool.schema)
        place = tool.schema["function"]["parameters"]["properties"]["place"]
        assert place["properties"]["country"]["enum"] == ["Italy", "Norway"]
        answer = await session.run_tools(says(ROME), [client], tool_choice="weather")
        assert answer.results[0].content == SUNNY


async def test_tools_are_listed_once_for_a_chat(session: rekindle.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    lists, original = [], ClientSession.list_tools

    async def noted(self: ClientSession, **options: Any) -> Any:
        lists.append(options)
        return await original(self, **options)

    monkeypatch.setattr(ClientSession, "list_tools", noted)
    async with connected() as client:
        chat = session.chat(tools=[client])
        assert lists == []
        await chat.say("say one")
        await chat.fork().say("say two")
        assert len(lists) == 1


async def test_a_client_in_memory_is_a_tool_too(session: rekindle.Session) -> None:
    async with Client(memory_server) as client:
        run = await session.run_tools(says(ROME), [client])
        assert run.results[0].content == SUNNY


async def test_leaving_the_wait_cancels_a_slow_tool(session: rekindle.Session, tmp_path: Path) -> None:
    path = tmp_path / "slow"
    async with connected() as client:
        chat = session.chat(tools=[client])
        async with anyio.create_task_group() as group:
            group.start_soon(chat.say, call("slow", path=str(path)))
            await until(lambda: path.exists() and path.read_text() == "begun", "the tool has begun")
            group.cancel_scope.cancel()
        await until(lambda: path.read_text() == "cancelled", "the server cancels the tool")
        assert len(chat) == 0
        assert (await chat.say(ROME)).content == f"It is: {SUNNY}"


async def test_the_time_limit_of_a_client_is_told_to_the_model(session: rekindle.Session, tmp_path: Path) -> None:
    async with connected(read_timeout_seconds=1.0) as client:
        answer = await session.chat(tools=[client]).say(call("slow", path=str(tmp_path / "slow")))
        assert "It is: error: " in answer.content
        assert "imed out" in answer.content


async def test_a_server_that_dies_is_told_to_the_model_and_the_chat_goes_on(session: rekindle.Session) -> None:
    async with connected() as client:
        chat = session.chat(tools=[client])
        for text in (call("dies"), ROME):
            assert "cannot be reached any more" in (await chat.say(text)).content
        assert (await chat.say("say hello")).content == "hello"
        with pytest.raises(InvalidRequest, match="does not list its tools"):
            await session.run_tools(says("say hello"), [client])


async def test_a_malformed_tool_is_left_out_and_errors_of_a_living_server_are_told(session: rekindle.Session) -> None:
    async with connected(LOOSE) as client:
        with pytest.warns(RuntimeWarning, match="a tool of the MCP server loose is left out"):
            run = await session.run_tools(says(call("good") + call("busy").removeprefix("say ")), [client])
        good, busy = run.results
        assert (good.content, good.value) == ("fine", {"a": 1})
        assert busy.content == "error: Connection closed"


async def test_a_list_without_an_end_is_refused(session: rekindle.Session) -> None:
    async with connected(LOOSE, "endless") as client:
        with pytest.raises(InvalidRequest, match="the MCP server loose does not list its tools: its list has no end"):
            await session.run_tools(says("hi"), [client])


async def test_another_thread_calls_a_client_in_its_own_loop(session: rekindle.Session) -> None:
    async with connected() as client:
        chat = session.chat(tools=[client])
        answer = await anyio.to_thread.run_sync(chat.say_sync, ROME)
        assert answer.content == f"It is: {SUNNY}"
        with pytest.raises(InvalidRequest, match="a blocking call stops the event loop"):
            session.run_tools_sync(says(ROME), [client])
        with pytest.raises(InvalidRequest, match="none runs in this thread"):
            await anyio.to_thread.run_sync(lambda: session.chat(tools=[client]))


async def test_what_cannot_be_a_tool_is_refused(session: rekindle.Session) -> None:
    def weather(city: str) -> str:
        """Return the weather."""
        return city

    async with connected() as client:
        with pytest.raises(InvalidRequest, match=r"2 are called 'weather' \(one of the MCP server weather, a func"):
            await session.run_tools(says(ROME), [client, weather])
        with pytest.raises(InvalidRequest, match="called by run_tools and by chats"):
            await session.generate(says(ROME), tools=[client])
        with pytest.raises(InvalidRequest, match="not listed yet"):
            session.chat(tools=[client]).stream("say hello")


class Typed:
    """Lines of a person, with answers to questions, and acts between them."""

    interactive = True

    def __init__(self, *script: Any, answers: tuple[Any, ...] = ()):
        self._script, self._answers = iter(script), iter(answers)

    def read(self, text: str = "") -> str:
        line: str | None = next(self._script, None)
        if line is None:
            raise EOFError
        return line

    def ask(self, question: str) -> str:
        answer = next(self._answers)
        if isinstance(answer, str):
            return answer
        raise answer


Chatted = Any


@pytest.fixture
def chatted(
    session: rekindle.Session,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    own_cache: None,
) -> Chatted:
    """Return a function to chat in the terminal with a file of servers, and to get its output and its notes."""
    monkeypatch.setattr(rekindle, "open_sync", lambda model, **options: session)

    def chatted(lines: Any, *arguments: str, status: int = 0, server: Any = None, copies: int = 1) -> tuple[str, str]:
        server = server or {"command": sys.executable, "args": [str(SERVER)]}
        path = tmp_path / "servers.json"
        servers = {f"sky{place or ''}": server for place in range(copies)}
        path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
        if isinstance(lines, Typed):
            monkeypatch.setattr(conversing, "open_lines", lambda names, **options: lines)
        monkeypatch.setattr(sys, "stdin", io.StringIO("" if isinstance(lines, Typed) else "\n".join(lines)))
        assert main(["chat", "fake", "--no-history", "--mcp", str(path), *arguments]) == status
        captured = capsys.readouterr()
        return captured.out, captured.err

    return chatted


def test_a_pipe_calls_the_tools_of_a_file_of_servers(chatted: Chatted) -> None:
    output, notes = chatted(["/tools", ROME, call("grow"), call("added"), call("dies"), ROME, "say hello"], "--yes")
    assert "the MCP server sky\n  weather(place, days)  Return the weather of a place.\n" in output
    assert f"It is: {SUNNY}\n" in output
    assert "It is: added\n" in output
    assert output.endswith("hello\n")
    assert "7 tools of 1 MCP server; /tools lists them" in notes
    assert f"weather(place={{'city': 'Rome'}}, days=3), a tool of the MCP server sky\n→ {SUNNY}\n" in notes
    assert "error: the MCP server sky cannot be reached any more, so weather has no result" in notes


def test_a_person_is_asked_before_a_call(chatted: Chatted) -> None:
    typed = Typed(ROME, ROME, ROME, ROME, call("figures", city="Rome"), answers=("n", "what?", "y", "a", ""))
    output, _ = chatted(typed)
    refused = "error: the user did not allow this call of weather"
    assert output.count(f"It is: {refused}") == 1
    assert output.count(f"It is: {SUNNY}") == 3
    assert "'what?' is no answer" in output
    assert "did not allow this call of figures" in output


def test_an_interrupt_at_the_question_ends_the_turn_alone(chatted: Chatted) -> None:
    typed = Typed("say one", ROME, "/show", answers=(KeyboardInterrupt,))
    output, notes = chatted(typed)
    assert "stopped before the first word; the chat is as before" in notes
    assert output.endswith("user: say one\nassistant: one\n\n")


def test_a_slow_call_ends_at_its_limit(chatted: Chatted, tmp_path: Path) -> None:
    path = tmp_path / "slow"
    output, _ = chatted([call("slow", path=str(path))], "--yes", "--tool-timeout", "5")
    assert "It is: error: slow took longer than 5 seconds, and was cancelled" in output
    until_blocking(lambda: path.read_text() == "cancelled", "the server cancels the tool")


def test_a_pipe_without_permission_ends_before_a_model_is_opened(
    chatted: Chatted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rekindle, "open_sync", lambda *model, **options: pytest.fail("a model was opened"))
    with pytest.raises(SystemExit, match="2"):
        chatted([ROME])


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"command": "no-such-program"}, "did not start: No such file or directory: no-such-program"),
        ({"command": sys.executable, "args": [str(SERVER), "broken"]}, "Its last words:\nthe server has no key"),
        ({"url": "http://127.0.0.1:9/mcp"}, "the MCP server sky did not start: "),
    ],
)
def test_a_server_that_does_not_start_is_told_before_a_model_is_opened(
    chatted: Chatted, monkeypatch: pytest.MonkeyPatch, server: Any, words: str
) -> None:
    monkeypatch.setattr(rekindle, "open_sync", lambda *model, **options: pytest.fail("a model was opened"))
    assert words in chatted([ROME], "--yes", status=1, server=server)[1]


def test_two_servers_with_one_tool_are_told(chatted: Chatted) -> None:
    _, notes = chatted([ROME], "--yes", status=1, copies=2)
    assert "2 are called 'weather' (one of the MCP server sky, one of the MCP server sky1)" in notes


def test_a_server_is_reached_by_http(chatted: Chatted) -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, str(SERVER), "http", str(port)], stderr=subprocess.DEVNULL) as process:
        try:
            until_blocking(lambda: _listens(port), "the server listens")
            server = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp", "headers": {"X-Key": "1"}}
            assert f"It is: {SUNNY}" in chatted([ROME], "--yes", server=server)[0]
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_package_imports_no_extra() -> None:
    code = "import rekindle, rekindle.tools.toolset, sys; print(sorted({'mcp', 'llm', 'pydantic'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
