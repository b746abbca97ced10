"""A session's answers are taken apart, whole and in streams, and go back into a conversation."""

import html
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from rekindle import Generation, Part, ToolCall
from rekindle.client.calls.options import Messages
from rekindle.notebook.live_parts import GrowingParts, PrintedParts
from rekindle.session.session import Session
from tests.unit.scripted import scripted_session
from tests.waiting import until

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Weather?"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
TOLD: dict[str, Any] = {"tools": [TOOL]}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
ANSWER = f"<think>\nthe user asks\n</think>\n\nLet me see.\n{CALL}\n<tool_call>oops</tool_call>"


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    with scripted_session(monkeypatch, lambda prompt: ANSWER) as session:
        yield session


def check(answer: Generation) -> None:
    assert answer.text == ANSWER
    assert answer.reasoning == "the user asks"
    assert answer.content == "Let me see."
    good, bad = answer.tool_calls
    assert (good.name, good.arguments, good.text, good.error) == ("weather", {"city": "Rome"}, CALL, None)
    assert (bad.name, bad.arguments, bad.text) == ("", {}, "<tool_call>oops</tool_call>")
    assert "expected JSON, got 'oops'" in str(bad.error)
    assert good.id != bad.id
    assert answer.message == {
        "role": "assistant",
        "content": "Let me see.<tool_call>oops</tool_call>",
        "reasoning_content": "the user asks",
        "tool_calls": [
            {"type": "function", "id": good.id, "function": {"name": "weather", "arguments": {"city": "Rome"}}}
        ],
    }


async def test_an_answer_is_taken_apart_in_every_way_to_get_it(session: Session) -> None:
    check(await session.generate([USER], **TOLD))
    conversations: list[Messages] = [[USER], [USER]]
    check((await session.generate(conversations, **TOLD))[1])
    check(session.submit([USER], **TOLD).result())
    check((await session.generate([USER], **TOLD, temperature=1, n=2))[0])
    async with session.prefix([USER], tools=[TOOL]) as prefix:
        check(await prefix.generate())


async def test_it_survives_json_and_pickling_and_a_branch_has_its_own(session: Session) -> None:
    answer = await session.generate([USER], **TOLD)
    check(Generation.from_dict(json.loads(json.dumps(answer.to_dict()))))
    check(pickle.loads(pickle.dumps(answer)))
    branch = await answer.branch(9, answer.token_ids[9])
    check(branch)


async def test_what_is_no_answer_to_a_conversation_is_all_content(session: Session) -> None:
    prompt = session.render([USER])
    answer = await session.generate(prompt)
    assert (answer.response, answer.reasoning, answer.tool_calls) == (None, None, ())
    assert answer.content == answer.text == ANSWER
    assert answer.message == {"role": "assistant", "content": ANSWER}
    parts = [part async for part in session.stream(prompt).parts()]
    assert {part.kind for part in parts} == {"content"}
    assert "".join(map(str, parts)) == ANSWER


def joined(parts: list[Part], kind: str) -> str:
    return "".join(part.text for part in parts if part.kind == kind)


@pytest.mark.parametrize("stop", [None, "see.\n"])
async def test_the_parts_of_a_stream_are_those_of_the_answer(session: Session, stop: str | None) -> None:
    answer = await session.generate([USER], **TOLD, stop=stop or ())
    for parts in (
        [part async for part in session.stream([USER], **TOLD, stop=stop or ()).parts()],
        list(session.stream_sync([USER], **TOLD, stop=stop or ()).parts()),
    ):
        assert joined(parts, "reasoning") == answer.reasoning
        assert joined(parts, "content") == answer.content
        assert tuple(part.call for part in parts if part.call) == answer.tool_calls
        assert len(parts) > 5
    if stop:
        assert answer.content == "Let me"
        assert answer.text.endswith("Let me ")


async def test_an_answer_that_is_cut_has_what_came(session: Session) -> None:
    answer = await session.generate([USER], **TOLD, max_tokens=15)
    assert answer.finish_reason == "length"
    assert (answer.reasoning, answer.content) == ("the user", "")
    assert answer.message == {"role": "assistant", "content": "", "reasoning_content": "the user"}


async def test_the_tokens_of_its_reasoning_are_counted_and_shown(session: Session) -> None:
    whole, cut = await session.generate([USER], **TOLD), await session.generate([USER], **TOLD, max_tokens=15)
    assert whole.usage.reasoning_tokens == len(session.encode("\nthe user asks\n"))
    assert cut.usage.reasoning_tokens == 15 - len(session.encode("<think>"))
    figures = f"{cut.usage.completion_tokens} tokens (reasoning: {cut.usage.reasoning_tokens})"
    assert figures in cut._repr_mimebundle_()["text/html"]
    assert (await session.generate(session.render([USER]))).usage.reasoning_tokens == 0


async def test_closing_the_parts_cancels_the_request(session: Session) -> None:
    parts = session.stream([USER], **TOLD).parts()
    await anext(parts)
    await parts.aclose()
    assert [part async for part in parts] == []
    await until(lambda: not session.requests, "the request had ended")


async def test_a_cell_shows_reasoning_folded_and_calls_as_a_table(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = (await session.generate([USER], **TOLD))._repr_mimebundle_()
    assert "<summary" in bundle["text/html"]
    assert "reasoning, 3 words" in bundle["text/html"]
    assert "city=&quot;Rome&quot;" in bundle["text/html"]
    assert "&lt;tool_call&gt;oops" in bundle["text/html"]
    expected = (
        "[reasoning] the user asks\nLet me see.\n[tool call] weather(city='Rome')\n"
        "[tool call] a call that cannot be read: '<tool_call>oops</tool_call>'\n"
    )
    assert bundle["text/plain"].startswith(expected)
    await session.show([USER], **TOLD)
    assert capsys.readouterr().out.startswith(expected)


async def test_a_table_of_answers_shows_what_they_say_and_call(session: Session) -> None:
    prompts: list[Messages] = [[USER], [USER]]
    bundle = (await session.generate(prompts, **TOLD))._repr_mimebundle_()
    text = "Let me see. weather(city='Rome') a call that cannot be read"
    assert text[:49] in bundle["text/plain"]
    assert "<tool_call>{" not in bundle["text/plain"]
    assert html.escape(text, quote=True) in bundle["text/html"]
    assert "reasoning, 3 words" in bundle["text/html"]
    assert "&lt;think&gt;" not in bundle["text/html"]


async def test_reasoning_that_nothing_follows_is_not_folded(session: Session) -> None:
    prompts: list[Messages] = [[USER], [USER]]
    answers = await session.generate(prompts, **TOLD, max_tokens=15)
    card = answers[0]._repr_mimebundle_()["text/html"]
    assert "<details" not in card
    assert "reasoning, 2 words" in card
    assert "[reasoning] the user" in answers._repr_mimebundle_()["text/plain"]


def test_reasoning_is_shown_while_it_grows_and_folded_once_there_is_more() -> None:
    growing = GrowingParts()
    growing.take([Part("reasoning", "thinking " * 300)])
    assert "<details" not in growing.html
    assert "characters before" in growing.html
    growing.take([Part("content", "So ")])
    assert growing.html.index("<details") < growing.html.index("So ")
    growing.take([Part("tool_call", '{"name": "f'), Part("tool_call", "", ToolCall("f", {"a": 1}, "", "id"))])
    assert "a=1" in growing.html
    assert '{"name"' not in growing.text


def test_a_terminal_begins_each_kind_of_part_on_a_line_of_its_own() -> None:
    call = ToolCall("f", {"a": 1}, "", "id")
    parts = [Part("reasoning", "a"), Part("reasoning", "b"), Part("content", "c"), Part("tool_call", "{")]
    words = PrintedParts().text_of([*parts, Part("tool_call", "", call), Part("tool_call", "", call)])
    assert words == "[reasoning] ab\nc\n[tool call] f(a=1)\n[tool call] f(a=1)"
