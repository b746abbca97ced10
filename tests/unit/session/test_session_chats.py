"""A chat remembers its turns, with their tokens in the cache, and a failed turn leaves no trace."""

import asyncio
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from rekindle import Chat, InvalidRequest
from rekindle.core.concurrency.mailbox import in_trio
from rekindle.session.session import Session
from tests.unit.scripted import FORGETFUL, call, dictated, scripted_session
from tests.unit.session.test_session_tools import weather
from tests.unit.sessions import interrupt
from tests.waiting import until

pytestmark = pytest.mark.anyio

PAGE = 16


def echo(prompt: str) -> str:
    """Return an answer with the number of turns so far, and some reasoning."""
    return f"<think>thinking then</think>\n\nthe answer {prompt.count('<|im_start|>')} and more of that"


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    with scripted_session(monkeypatch, echo) as session:
        yield session


def turns_of(chat: Chat) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in chat.messages]


USER, ANSWER = ("user", "Hi"), ("assistant", "the answer 2 and more of that")


async def test_turns_are_remembered_however_they_are_taken(session: Session) -> None:
    chat = session.chat(system="Be kind.", max_tokens=200)
    answer = await chat.say("Hi")
    assert answer.content == "the answer 3 and more of that"
    assert turns_of(chat) == [("system", "Be kind."), USER, ("assistant", answer.content)]
    assert chat.messages[-1]["reasoning_content"] == "thinking then"
    assert chat.say_sync("b").content == "the answer 5 and more of that"
    assert (await chat.show("c")).content == "the answer 7 and more of that"
    assert chat.show_sync("d").content == "the answer 9 and more of that"
    stream = chat.stream("e")
    assert "the answer 11" in "".join([piece.text async for piece in stream])
    assert len(chat) == 11
    assert "".join(part.text for part in chat.stream("f").parts() if part.kind == "content").startswith("the answer 13")
    assert len(chat) == 13


async def test_a_turn_is_for_say_and_not_for_chat(session: Session) -> None:
    begin: Any = session.chat
    with pytest.raises(InvalidRequest, match=r"await chat\.say\('\.\.\.'\).*; got 'hello'"):
        begin("hello")


async def test_a_turn_with_a_cut_prompt_leaves_the_conversation_whole(session: Session) -> None:
    chat = session.chat()
    cut = await chat.say("one", truncate_prompt_tokens=12)
    whole = await chat.say("two")
    assert len(cut.prompt_token_ids) == 12
    assert session.decode(whole.prompt_token_ids) == session.render(chat.messages[:-1])


@pytest.mark.parametrize("most", [None, -1])
@pytest.mark.parametrize("by_letters", [False, True])
async def test_a_turn_costs_its_new_tokens_alone(
    monkeypatch: pytest.MonkeyPatch, by_letters: bool, most: int | None
) -> None:
    script = lambda prompt: f"<think>the then</think>then {'the answer than ' * 3}that"  # noqa: E731
    with scripted_session(monkeypatch, script, by_letters=by_letters) as session:
        chat = session.chat(truncate_prompt_tokens=most)
        before = await chat.say("Hi")
        for text in ("more of that", "and again"):
            answer = await chat.say(text)
            prefix = before.prompt_token_ids + before.token_ids
            assert answer.prompt_token_ids[: len(prefix)] == prefix
            assert answer.cached_tokens >= (len(prefix) - 1) // PAGE * PAGE
            before = answer


async def test_where_the_template_leaves_out_reasoning_the_answer_before_is_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scripted_session(monkeypatch, echo, FORGETFUL) as session:
        chat = session.chat()
        first = await chat.say("Hi, and a long text so that there is a page of it at least, or two")
        second = await chat.say("more")
        assert "thinking" not in session.decode(second.prompt_token_ids)
        assert second.prompt_token_ids[: len(first.prompt_token_ids)] == first.prompt_token_ids
        assert second.cached_tokens >= len(first.prompt_token_ids) // PAGE * PAGE
        assert session.decode(second.prompt_token_ids) == session.render(chat.messages[:-1])


async def test_functions_of_a_chat_are_called_until_there_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_session(monkeypatch, dictated) as session:
        chat = session.chat(tools=[weather])
        answer = await chat.say(f"say {call(city='Rome')}")
        assert answer.content == 'It is: {"city": "Rome", "sun": 1}'
        assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool", "assistant"]
        chat.undo()
        assert len(chat) == 0
        assert chat.say_sync(f"say {call(city='Rome')}").content == answer.content


async def test_calls_of_schemas_are_for_the_caller_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_session(monkeypatch, dictated) as session:
        chat = session.chat(tools=[{"type": "function", "function": {"name": "weather"}}])
        answer = await chat.say(f"say {call(city='Rome')}")
        assert answer.tool_calls[0].arguments == {"city": "Rome"}
        result = {"role": "tool", "content": "sun", "tool_call_id": answer.tool_calls[0].id}
        assert (await chat.say([result])).content == "It is: sun"


async def test_a_fork_goes_its_own_way_and_an_undone_turn_is_gone(session: Session) -> None:
    chat = session.chat()
    await chat.say("Hi")
    fork = chat.fork()
    await fork.say("there")
    assert turns_of(chat) == [USER, ANSWER]
    assert len(fork) == 4
    fork.undo()
    assert turns_of(fork) == turns_of(chat)
    fork.undo()
    with pytest.raises(InvalidRequest, match="no turn to undo"):
        fork.undo()
    assert turns_of(chat) == [USER, ANSWER]


async def test_an_edited_message_is_answered_anew(session: Session) -> None:
    chat = session.chat()
    await chat.say("Hello")
    await chat.say("more")
    chat.edit(-4, "Hi")
    assert turns_of(chat) == [USER]
    await chat.say()
    assert turns_of(chat) == [USER, ANSWER]
    chat.edit(1, "No.")
    assert turns_of(chat) == [USER, ("assistant", "No.")]
    chat.undo()
    assert turns_of(chat) == [USER, ANSWER]
    with pytest.raises(InvalidRequest, match="index must be an integer from -2 to 1"):
        chat.edit(2, "x")
    with pytest.raises(InvalidRequest, match="nothing waits for an answer"):
        await chat.say()


async def test_a_turn_that_fails_or_is_left_leaves_the_chat_as_it_was(session: Session) -> None:
    chat = session.chat()
    await chat.say("Hi")
    before = chat.messages
    with pytest.raises(InvalidRequest, match="temperature"):
        await chat.say("more", temperature=-1)
    with pytest.raises(InvalidRequest, match="the prompt has 2"):
        await chat.say("x" * 2000)
    async for _ in chat.stream("more"):
        break
    stream = chat.stream("more")
    with pytest.raises(InvalidRequest, match="under way"):
        await chat.say("meanwhile")
    stream.close()
    await until(lambda: not session.requests, "the turn that was left had ended")
    assert chat.messages == before
    chat.messages.append({"role": "user", "content": "not said"})
    assert chat.messages == before
    assert (await chat.say("more")).content.startswith("the answer 4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"messages": "Hi"}, "messages must be a list"),
        ({"system": 3}, "system must be a str"),
        ({"tools": [lambda: None]}, "needs a name"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"token_ids": [1]}, "unknown keyword 'token_ids'"),
    ],
)
async def test_what_cannot_begin_a_chat_is_refused_in_words(session: Session, arguments: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        session.chat(**arguments)


async def test_a_switch_of_a_turn_is_true_or_false(session: Session) -> None:
    with pytest.raises(InvalidRequest, match="parallel_tool_calls must be"):
        await session.chat().say("Hi", parallel_tool_calls="no")  # type: ignore[arg-type]


async def test_what_is_no_text_and_no_messages_cannot_be_said(session: Session) -> None:
    chat = session.chat()
    wrongs: tuple[tuple[Any, str], ...] = (
        (3, "a turn takes a str or a list of {role, content} mappings, got 3"),
        ({"role": "user", "content": "Hi"}, "'content': 'Hi'}; put it in a list"),
        ([], "at least one message"),
        ("", "the user message is empty"),
    )
    for wrong, message in wrongs:
        with pytest.raises(InvalidRequest) as raised:
            await chat.say(wrong)
        assert message in str(raised.value)
    assert chat.messages == []


async def test_an_interrupted_turn_without_tools_speaks_of_no_steps(session: Session) -> None:
    if in_trio():  # whose cancellations nobody sees
        return
    task = asyncio.create_task(session.chat().say("Hi", ignore_eos=True, max_tokens=900))
    await until(lambda: session.requests, "the turn had begun")
    task.cancel()
    with pytest.raises(
        asyncio.CancelledError, match=r"tokens?; the text so far is in `generation` of this error$"
    ) as raised:
        await task
    assert not hasattr(raised.value, "__notes__")


async def test_an_interrupted_turn_keeps_the_text_so_far_and_continues_from_its_tokens(session: Session) -> None:
    chat = session.chat(ignore_eos=True, max_tokens=900)
    await interrupt(session, chat, 40)
    question, answer = chat.messages
    assert question == {"role": "user", "content": "Hi"}
    assert answer["role"] == "assistant"
    assert answer["content"].startswith("the answer 2")
    assert (await chat.say("more", ignore_eos=False)).content.startswith("the answer 4")
    chat.undo()
    chat.undo()
    assert chat.messages == []


async def test_a_turn_that_is_interrupted_before_its_first_word_leaves_no_message(session: Session) -> None:
    chat = session.chat()
    await session.pause()
    with anyio.move_on_after(0.01) as scope:
        await chat.say("Hi")
    assert scope.cancelled_caught
    assert chat.messages == []
    session.resume()


async def test_an_edited_result_still_says_what_call_it_is_to(session: Session) -> None:
    result = {"role": "tool", "tool_call_id": "abc", "name": "weather", "content": "sunny"}
    chat = session.chat(messages=[{"role": "user", "content": "Hi"}, result])
    chat.edit(-1, "rain")
    assert chat.messages[-1] == {**result, "content": "rain"}


async def test_a_chat_shows_its_messages(session: Session) -> None:
    chat = session.chat(system="Be kind.")
    assert repr(chat) == "<rekindle.Chat of 1 message, last 'system: Be kind.'>"
    await chat.say("Hi")
    bundle = chat._repr_mimebundle_()
    assert bundle["text/plain"] == "system: Be kind.\nuser: Hi\nassistant: the answer 3 and more of that"
    assert "reasoning" in bundle["text/html"]
    assert "thinking then" in bundle["text/html"]
