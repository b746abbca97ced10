"""A chat whose context is full goes on: whole turns leave what is sent, seldom, and none leaves the conversation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from rekindle import Chat, InvalidRequest, PromptTooLong
from rekindle.chats.turns import fitted
from rekindle.client.window import FULL
from rekindle.core.concurrency.waits import blocked
from rekindle.session.session import Session
from tests.unit.scripted import call, dictated, scripted_session
from tests.unit.session.test_session_tools import weather

pytestmark = pytest.mark.anyio

CONTEXT = 256
MOST = 24
PAGE = 16
SYSTEM = {"role": "system", "content": "Be kind."}
Messages = Sequence[Mapping[str, Any]]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    with scripted_session(monkeypatch, lambda prompt: "so it is", max_context=CONTEXT) as session:
        yield session


@pytest.fixture
def notes(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the notes that the session displays, as it does with its progress."""
    notes: list[str] = []
    monkeypatch.setattr(session._requests._notes, "_write", notes.append)
    return notes


def full(session: Session, turns: int = 10, **options: Any) -> Chat:
    """Return a conversation with more turns than fit."""
    chat = session.chat(max_tokens=MOST, system=SYSTEM["content"], **options)
    for turn in range(turns):
        chat.say_sync(f"story {turn}")
    return chat


async def test_the_oldest_turns_leave_what_is_sent_and_stay_in_the_conversation(
    session: Session, notes: list[str]
) -> None:
    chat = session.chat(max_tokens=MOST, system=SYSTEM["content"])
    for turn in range(12):
        answer = await chat.say(f"story {turn}")
        assert answer.finish_reason == "stop", "each answer has room to its end"
    assert len(chat) == 25
    first, *others = chat.window
    assert first == SYSTEM
    assert others == chat.messages[-len(others) :]
    assert others[0]["role"] == "user"
    assert 6 < len(others) < 24
    assert session.render(chat.window[:-1]) == session.decode(answer.prompt_token_ids)
    assert notes == [FULL]


async def test_turns_leave_seldom_so_that_prompts_are_found_in_the_cache(session: Session) -> None:
    chat, moves, sent = session.chat(max_tokens=MOST), 0, list[Any]()
    before: tuple[int, ...] = ()
    for turn in range(24):
        answer = await chat.say(f"story {turn}")
        if chat.window[: len(sent)] == sent:
            assert answer.prompt_token_ids[: len(before)] == before
            assert answer.cached_tokens >= len(before) // PAGE * PAGE - PAGE
        else:
            moves += 1
        sent, before = chat.window, answer.prompt_token_ids + answer.token_ids
    assert 2 < moves < 9, "the 24 turns have more than three times the tokens of the context"


async def test_a_chat_begun_anew_sends_the_same_turns(session: Session) -> None:
    chat = session.chat(max_tokens=MOST)
    for turn in range(16):
        await chat.say(f"story {turn}")
        asked = chat.messages[:-1]
        assert blocked(fitted(session._requests, asked, {"max_tokens": MOST}, "trim")) == chat.window[:-1]


@pytest.mark.parametrize("way", ["say", "stream", "show"])
async def test_a_conversation_of_a_file_goes_on_by_any_method(session: Session, way: str) -> None:
    chat = session.chat(messages=full(session).messages, max_tokens=MOST)
    if way == "stream":
        assert [piece async for piece in chat.stream("more")]
    else:
        await getattr(chat, way)("more")
    assert len(chat) == 23
    assert len(chat.window) < 20


async def test_an_undone_turn_brings_back_what_was_sent(session: Session) -> None:
    chat, sent = session.chat(max_tokens=MOST), list[Any]()
    for turn in range(12):
        sent.append(chat.window)
        await chat.say(f"story {turn}")
    fork = chat.fork()
    for before in reversed(sent):
        chat.undo()
        assert chat.window == before
    assert len(fork.window) < len(fork)
    assert fork.window == fork.messages[-len(fork.window) :]
    fork.edit(0, "another story")
    assert fork.window == fork.messages, "what had left was edited"
    await fork.say()


async def test_calls_leave_with_their_results(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_session(monkeypatch, dictated, max_context=3 * CONTEXT) as session:
        chat = session.chat(tools=[weather], max_tokens=100)
        for turn in range(5):
            await chat.say(f"say {call(city=f'Rome {turn}')}")
            roles = [message["role"] for message in chat.window]
            assert roles == ["user", "assistant", "tool", "assistant"] * (len(roles) // 4)
        assert 0 < len(chat.window) < len(chat) == 20


async def test_stop_ends_the_chat_and_names_the_ways_on(session: Session, notes: list[str]) -> None:
    chat = session.chat(max_tokens=MOST, when_full="stop")
    for turn in range(5):
        await chat.say(f"story {turn}")
    with pytest.raises(PromptTooLong, match=r"undo\(\) takes the last turn back, session.chat\(\) begins") as raised:
        await chat.say("story " * 20)
    assert raised.value.most == CONTEXT - 1
    assert raised.value.tokens is not None
    assert raised.value.tokens >= CONTEXT
    assert chat.window == chat.messages
    assert notes == []
    chat.undo()
    answer = await chat.say("Hi", ignore_eos=True, max_tokens=None)
    assert answer.full_context == CONTEXT, "the context cut it, and not max_tokens"


async def test_a_message_too_long_by_itself_is_refused_as_a_prompt(session: Session) -> None:
    for when_full in ("trim", "stop"):
        chat = session.chat(when_full=when_full)
        with pytest.raises(PromptTooLong, match=r"the prompt has .* Shorten it"):
            await chat.say("x" * 2000)
        assert chat.messages == []


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("way", ["say", "stream"])
async def test_a_function_chooses_what_is_sent(session: Session, notes: list[str], is_async: bool, way: str) -> None:
    asked: list[tuple[list[Mapping[str, Any]], int]] = []

    def keep(messages: list[Mapping[str, Any]], budget: int) -> list[Mapping[str, Any]]:
        asked.append((list(messages), budget))
        assert session.count_tokens(messages) > budget
        return [{"role": "system", "content": f"{len(asked)} summaries"}, *messages[-3:]]

    async def keep_later(messages: list[Mapping[str, Any]], budget: int) -> list[Mapping[str, Any]]:
        return keep(messages, budget)

    chat = session.chat(max_tokens=MOST, when_full=keep_later if is_async else keep)
    for turn in range(16):
        if way == "say":
            await chat.say(f"story {turn}")
        else:
            assert [piece async for piece in chat.stream(f"story {turn}")]
    assert len(chat) == 32
    assert len(asked) > 1
    assert {budget for _, budget in asked} == {CONTEXT - MOST}
    assert chat.window[0] == {"role": "system", "content": f"{len(asked)} summaries"}
    assert chat.window[1:] == chat.messages[1 - len(chat.window) :]
    assert asked[-1][0][0] == {"role": "system", "content": f"{len(asked) - 1} summaries"}, "it builds on its own"
    assert notes == []


def returns_nothing(messages: list[Any], budget: int) -> list[Any]:
    return []


def raises(messages: list[Any], budget: int) -> list[Any]:
    raise RuntimeError("no summary")


def keeps_all(messages: list[Any], budget: int) -> list[Any]:
    return [*messages, *messages]


@pytest.mark.parametrize(
    ("keep", "error", "words"),
    [
        (returns_nothing, InvalidRequest, "at least one message"),
        (raises, RuntimeError, "no summary"),
        (
            keeps_all,
            PromptTooLong,
            f"of when_full have at least .* and the function was given {CONTEXT - MOST} as the most",
        ),
    ],
)
async def test_a_function_that_fails_leaves_the_chat_as_it_was(
    session: Session, keep: Callable[..., Any], error: type[Exception], words: str
) -> None:
    chat = session.chat(messages=full(session, 8).messages, max_tokens=MOST, when_full=keep)
    before = chat.messages
    with pytest.raises(error, match=words):
        await chat.say("more")
    assert chat.messages == chat.window == before
    with pytest.raises(InvalidRequest, match=r"when_full must be .* got 'drop'"):
        session.chat(when_full="drop")  # type: ignore[arg-type]


async def test_a_prompt_cut_by_its_tokens_is_not_trimmed(session: Session) -> None:
    chat = session.chat(messages=full(session).messages, truncate_prompt_tokens=-1)
    await chat.say("more")
    assert chat.window == chat.messages
