"""Each API writes an answer in its own form: the one of the session, the same whole and from a stream."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest

from rekindle.server import app
from rekindle.session.session import Session
from tests.unit.apis import APIS, CHATS, FUNCTION, MESSAGES, OLLAMA, RESPONSES, Answer, Api, Wish
from tests.unit.asgi import Caller, ask
from tests.unit.scripted import Serve, scripted_session
from tests.unit.sessions import submitted
from tests.waiting import until

pytestmark = pytest.mark.anyio

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
ANSWER = f"<think>\nthe user asks\n</think>\n\nLet me see.\n{CALL}\n{CALL}"
ROME = ("weather", {"city": "Rome"})
USER = {"role": "user", "content": "Count."}
WITH_ONE_CALL = (CHATS, RESPONSES, MESSAGES)

each_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
each_with_one_call = pytest.mark.parametrize("api", WITH_ONE_CALL, ids=lambda api: api.path)


async def both(session: Session, api: Api, wish: Wish) -> list[Answer]:
    """Return the whole answer to a wish, and the one of a stream."""
    whole = await ask(app(session), api.path, api.body(wish))
    assert whole.status == 200, whole.body
    streamed = await ask(app(session), api.path, api.body(replace(wish, streams=True)))
    return [api.whole(whole.json), api.whole(api.joined(streamed))]


def texts_of(answers: Sequence[Answer]) -> list[tuple[str, str, str]]:
    return [(each.reasoning, each.content, each.end) for each in answers]


@each_api
async def test_an_answer_is_the_one_of_the_session(monkeypatch: pytest.MonkeyPatch, api: Api) -> None:
    wish = Wish(has_tool=True)
    with scripted_session(monkeypatch, lambda prompt: ANSWER, by_letters=True) as session:
        tools = [{"type": "function", "function": FUNCTION}]
        own = await session.generate(list(wish.messages), tools=tools, max_tokens=None)
        for answer in await both(session, api, wish):
            assert answer == Answer(
                "the user asks",
                "Let me see.",
                [ROME, ROME],
                "tool_calls",
                (own.usage.prompt_tokens, own.usage.completion_tokens),
            )
        assert (own.reasoning, own.content, len(own.tool_calls)) == ("the user asks", "Let me see.", 2)


@each_api
async def test_an_answer_ends_by_itself_at_a_stop_string_or_at_the_limit(serve: Serve, api: Api) -> None:
    session = serve("one two three")
    for wish, text, end in (
        (Wish(), "one two three", "stop"),
        (Wish(stop=" two"), "one", "stop"),
        (Wish(limit=3), "one", "length"),
    ):
        assert texts_of(await both(session, api, wish)) == [("", text, end)] * 2


@each_api
async def test_a_thought_that_is_cut_is_reasoning(serve: Serve, api: Api) -> None:
    whole, streamed = await both(serve(ANSWER), api, Wish(limit=15))
    assert whole == streamed
    assert (whole.content, whole.end) == ("", "length")
    assert whole.reasoning
    assert "the user asks".startswith(whole.reasoning)


@each_api
async def test_an_empty_answer_has_an_empty_text(serve: Serve, api: Api) -> None:
    assert texts_of(await both(serve(""), api, Wish())) == [("", "", "stop")] * 2


@each_with_one_call
async def test_at_most_one_call_is_in_an_answer_on_demand(serve: Serve, api: Api) -> None:
    for answer in await both(serve(ANSWER), api, Wish(has_tool=True, one_call=True)):
        assert (answer.calls, answer.end) == ([ROME], "tool_calls")


@each_api
async def test_a_call_that_cannot_be_read_is_content(serve: Serve, api: Api) -> None:
    answers = await both(serve("See <tool_call>oops</tool_call>"), api, Wish(has_tool=True))
    assert texts_of(answers) == [("", "See<tool_call>oops</tool_call>", "stop")] * 2


@each_with_one_call
@pytest.mark.parametrize("limit", [4, 20, 80])
async def test_a_required_call_that_is_cut_leaves_no_content(serve: Serve, api: Api, limit: int) -> None:
    """Cut the answer in a mark, in a call, and in the mark of a second call."""
    answers = await both(serve(f"{CALL}{CALL}"), api, Wish(has_tool=True, required=True, limit=limit))
    assert [(each.content, each.end) for each in answers] == [("", "length")] * 2
    assert len(answers[0].calls) == (1 if limit == 80 else 0)


@each_api
async def test_an_answer_that_is_cut_ends_so_whatever_it_called(serve: Serve, api: Api) -> None:
    """Cut the answer in its second call; what a stream has of it is no JSON."""
    session = serve(ANSWER)
    whole, _ = await both(session, api, Wish(has_tool=True))
    whole, streamed = await both(session, api, Wish(has_tool=True, limit=whole.tokens[1] - 30))
    assert (whole.calls, whole.end) == ([ROME], "length")
    assert (streamed.calls[0], streamed.end) == (ROME, "length")
    assert all(isinstance(arguments, str) for _, arguments in streamed.calls[1:])
    for cut in range(20, 75, 18):
        _, streamed = await both(session, api, Wish(has_tool=True, limit=cut))
        assert streamed.end == "length"
        for _, text in streamed.calls:
            assert "tool_call" not in streamed.content
            with pytest.raises(json.JSONDecodeError):
                json.loads(text)


@pytest.mark.parametrize("api", [CHATS, MESSAGES, OLLAMA], ids=lambda api: api.path)
@pytest.mark.parametrize("reasoning", [{}, {"reasoning_content": "so"}])
async def test_an_answer_that_continues_a_message_has_its_own_text_alone(
    serve: Serve, api: Api, reasoning: dict[str, Any]
) -> None:
    session = serve("<think>so</think>one two three" if reasoning else "one two three")
    for begin in ("one two", "one "):
        wish = Wish([USER, {"role": "assistant", "content": begin, **reasoning}])
        text = "one two three".removeprefix(begin)
        assert texts_of(await both(session, api, wish)) == [("", text, "stop")] * 2


async def start_client(session: Session, tasks: Any, caller: Caller) -> Any:
    """Start a client, and return its request once there are some tokens, while the engine is paused."""
    await session.pause()
    tasks.start_soon(caller.run)
    (handle,) = await submitted(session)
    while not handle.record.generated:
        await session.step()
    await anyio.wait_all_tasks_blocked()
    return handle


@each_api
@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_goes_away_cancels_its_request(serve: Serve, api: Api, streams: bool) -> None:
    session = serve("x" * 500)
    caller = Caller(app(session), api.path, api.body(Wish(streams=streams)))
    async with anyio.create_task_group() as tasks:
        handle = await start_client(session, tasks, caller)
        caller.disconnect.set()
    session.resume()
    await until(lambda: handle.done, "the request had ended")
    assert repr(handle.record.error) == "RequestCancelled('the request was cancelled')"
    assert not caller.reply.complete


@each_api
async def test_a_failure_in_the_middle_of_a_stream_is_its_last_event(serve: Serve, api: Api) -> None:
    session = serve("x" * 500)
    caller = Caller(app(session), api.path, api.body(Wish(streams=True)))
    async with anyio.create_task_group() as tasks:
        handle = await start_client(session, tasks, caller)
        handle.cancel()
        session.resume()
    assert (caller.reply.status, caller.reply.complete) == (200, True)
    assert "cancelled" in api.error(caller.reply)
