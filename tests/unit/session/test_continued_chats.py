"""A cut answer goes on as if it had not been cut, and a message is answered anew by another seed."""

from collections.abc import Iterator
from typing import Any

import pytest

from rekindle import InvalidRequest
from rekindle.session.session import Session
from tests.unit.scripted import FORGETFUL, HERMES, call, dictated, scripted_session
from tests.unit.session.test_session_tools import weather
from tests.unit.sessions import interrupt

pytestmark = pytest.mark.anyio

ANSWER = "<think>thinking then</think>\n\nthe answer and more of that"
CONTENT = "the answer and more of that"


@pytest.fixture(params=[HERMES, FORGETFUL], ids=["whole", "forgetful"])
def session(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Session]:
    with scripted_session(monkeypatch, lambda prompt: ANSWER, request.param) as session:
        yield session


@pytest.mark.parametrize("most", [3, 14, 30, 45])
async def test_a_cut_answer_goes_on_as_if_it_had_not_been_cut(session: Session, most: int) -> None:
    """Cut it within its thoughts, at their end, and within its content."""
    whole = session.chat(max_tokens=200)
    expected = await whole.say("Hi")
    chat = session.chat(max_tokens=most)
    assert (await chat.say("Hi")).finish_reason == "length"
    cut = chat.messages
    answer = await chat.continue_(max_tokens=200)
    assert (answer.token_ids, answer.text, answer.content) == (expected.token_ids, expected.text, CONTENT)
    assert answer.finish_reason == "stop"
    assert answer.begun == most
    assert chat.messages == whole.messages
    assert answer.cached_tokens >= len(answer.prompt_token_ids) // 16 * 16
    chat.undo()
    assert chat.messages == cut
    tokens = chat.continue_sync().token_ids
    assert tokens == expected.token_ids[: 2 * most], "max_tokens counts the new ones"


async def test_a_complete_answer_has_no_rest(session: Session) -> None:
    chat = session.chat(max_tokens=200)
    for wait in (chat.continue_, chat.retry):
        with pytest.raises(InvalidRequest, match="say something first"):
            await wait()
    await chat.say("Hi")
    before = chat.messages
    with pytest.raises(InvalidRequest, match="the last answer is complete"):
        await chat.continue_()
    with pytest.raises(InvalidRequest, match="unknown keyword 'images'"):
        await chat.continue_(images=[])  # type: ignore[call-arg]
    assert chat.messages == before
    chat.edit(0, "Hello")
    with pytest.raises(InvalidRequest, match="no answer to continue"):
        await chat.continue_()
    await chat.retry()
    assert len(chat) == 2


async def test_an_answer_of_which_only_the_text_is_known_goes_on_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_session(monkeypatch, lambda prompt: f"<think>thinking then</think>{CONTENT}") as session:
        await _go_on_from_a_text(session)


async def _go_on_from_a_text(session: Session) -> None:
    start = {"role": "assistant", "reasoning_content": "thinking then", "content": "the ans"}
    chat = session.chat(messages=[{"role": "user", "content": "Hi"}, start], max_tokens=200)
    answer = await chat.continue_()
    assert answer.content == CONTENT
    assert answer.text.endswith(CONTENT)
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]
    assert chat.messages[-1]["content"] == CONTENT
    chat.edit(-1, "So")
    assert (await chat.continue_(max_tokens=4)).content.startswith("So")


async def test_a_template_with_a_start_of_its_own_for_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    template = HERMES.removesuffix("{% endif %}") + "<think>{% endif %}"
    with scripted_session(monkeypatch, lambda prompt: ANSWER, template) as session:
        start = {"role": "assistant", "content": "the ans"}
        chat = session.chat(messages=[{"role": "user", "content": "Hi"}, start])
        with pytest.raises(InvalidRequest, match="begins an answer otherwise than it writes an earlier one"):
            await chat.continue_()
        assert len(chat) == 2


async def test_a_cut_call_goes_on_and_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_session(monkeypatch, dictated) as session:
        chat = session.chat(tools=[weather], max_tokens=30)
        cut = await chat.say(f"say {call(city='Rome')}")
        assert cut.finish_reason == "length"
        answer = await chat.continue_(max_tokens=80)
        assert answer.content == 'It is: {"city": "Rome", "sun": 1}'
        roles = ["user", "assistant", "tool", "assistant"]
        assert [message["role"] for message in chat.messages] == roles
        await chat.retry()
        assert [message["role"] for message in chat.messages] == roles
        with pytest.raises(InvalidRequest, match="has calls of tools"):
            await session.chat(messages=chat.messages[:2]).continue_()


async def test_a_retry_differs_by_its_seed_and_keeps_the_options(session: Session) -> None:
    chat = session.chat(max_tokens=8, seed=3, temperature=1)
    first = await chat.say("Hi", max_tokens=6, regex="[a-z]{4,9}")
    second = await chat.retry()
    assert first.seed == 3
    assert second.seed not in (None, 3)
    assert len(second.token_ids) <= 6
    assert second.constraint == "regex"
    assert (await chat.retry(seed=3)).text == first.text
    assert len(chat) == 2
    for _ in range(2):
        chat.undo()
    assert chat.messages[-1]["content"] == first.text
    greedy = session.chat(max_tokens=8, temperature=0)
    assert (await greedy.say("Hi")).text == greedy.retry_sync().text, "without a warning about the seed"


async def test_a_stopped_answer_goes_on(session: Session) -> None:
    chat = session.chat(ignore_eos=True, max_tokens=900)
    await interrupt(session, chat, 20)
    stopped = chat.messages[-1]
    answer = await chat.continue_(ignore_eos=False, max_tokens=90)
    assert answer.begun > 20
    assert len(chat) == 2
    assert str(chat.messages[-1]["content"]).startswith(str(stopped["content"]).rstrip())


async def test_an_answer_that_filled_the_context_goes_on_without_the_oldest_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scripted_session(monkeypatch, lambda prompt: "so it is", max_context=128) as session:
        chat = session.chat(max_tokens=8)
        for text in ("one", "two", "three"):
            await chat.say(text)
        cut = await chat.say("four " * 5, ignore_eos=True, max_tokens=None)
        assert cut.full_context == 128
        answer = await chat.continue_(max_tokens=10)
        assert len(answer.token_ids) == len(cut.token_ids) + 10
        assert len(answer.prompt_token_ids) < len(cut.prompt_token_ids)
        assert len(chat) == 8
        assert chat.window[0]["content"] != "one"


async def test_log_probabilities_of_a_continued_answer_are_those_of_all_its_tokens(session: Session) -> None:
    chat = session.chat(max_tokens=4)
    first = await chat.say("Hi", logprobs=1)
    whole = await chat.continue_()
    assert first.logprobs
    assert whole.logprobs
    assert whole.logprobs[:4] == first.logprobs
    assert len(whole.logprobs) == len(whole.token_ids) == 8
    assert (await chat.continue_(logprobs=None)).logprobs is None
    before = chat.messages
    with pytest.raises(InvalidRequest, match="they are not known: leave out logprobs"):
        await chat.continue_(logprobs=1)
    assert chat.messages == before


async def test_options_that_no_answer_takes_are_refused_before_it(session: Session) -> None:
    wrong: Any = {"max_tokens": -1}
    chat = session.chat(max_tokens=4)
    await chat.say("Hi")
    for wait in (chat.continue_, chat.retry):
        with pytest.raises(InvalidRequest, match="max_tokens"):
            await wait(**wrong)
    assert len(chat) == 2
