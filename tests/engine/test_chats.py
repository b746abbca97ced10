"""On a real model, a turn of a chat is computed from its new tokens on, and chosen calls are made and answered."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle import Session
from tests.engine.small import SMOLLM2
from tests.unit.scripted import HERMES
from tests.waiting import until_blocking

PAGE = SMOLLM2["page_size"]


@pytest.fixture(scope="module")
def session(smollm2_path: Path) -> Iterator[Session]:
    with rekindle.open_sync(smollm2_path, progress=False, **SMOLLM2) as session:
        yield session


@pytest.fixture(scope="module")
def told(smollm2_path: Path) -> Iterator[Session]:
    """Open a session whose chat template has a place for tools, which that of SmolLM2 has not."""
    with rekindle.open_sync(smollm2_path, progress=False, chat_template=HERMES, **SMOLLM2) as session:
        yield session


@pytest.mark.wide
def test_a_turn_is_computed_from_its_new_tokens_on(session: Session) -> None:
    chat = session.chat(system="Answer in one sentence.", max_tokens=30, temperature=0)
    before = chat.say_sync("What is the capital of France?")
    for text in ("And that of Italy?", "And that of Spain?"):
        answer = chat.say_sync(text)
        known = before.prompt_token_ids + before.token_ids
        assert answer.prompt_token_ids[: len(known)] == known
        assert answer.cached_tokens >= (len(known) - 1) // PAGE * PAGE
        assert session.render(chat.messages[:-1]) == session.decode(answer.prompt_token_ids)
        before = answer


@pytest.mark.wide
def test_a_conversation_that_goes_on_after_a_restart_is_warm(smollm2_path: Path, compilations: list[str]) -> None:
    """Continue by a click in a new session: its new tokens alone are computed, and nothing is compiled."""
    options: dict[str, Any] = {"max_tokens": 30, "temperature": 0}
    with rekindle.open_sync(smollm2_path, progress=False, precompile="all", **SMOLLM2) as session:
        widget = session.chat(system="Answer in one sentence.", **options).widget()
        for text in ("What is the capital of France?", "And that of Italy?"):
            assert widget.send(text)
            until_blocking(lambda: not widget._is_busy, "the turn had ended")
        before = widget.answers[4]
    with rekindle.open_sync(smollm2_path, progress=False, precompile="all", **SMOLLM2) as session:
        assert session.restored.compiled == 0
        chat = session.chat(**options)
        widget = chat.widget()
        widget._resuming.look()
        compilations.clear()
        widget.resume("resume-0")
        answer = chat.say_sync("And that of Spain?")
        known = before.prompt_token_ids + before.token_ids
        assert answer.prompt_token_ids[: len(known)] == known
        assert answer.cached_tokens >= (len(known) - 1) // PAGE * PAGE > 0
        assert answer.cached.disk or answer.cached.host
        assert compilations == []


@pytest.mark.wide
def test_a_cut_answer_goes_on_as_if_it_had_not_been_cut(session: Session) -> None:
    question = "Write a short story about a lighthouse."
    every: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 1, "seed": 5})
    for options in every:
        whole = session.chat(max_tokens=24, **options).say_sync(question)
        chat = session.chat(max_tokens=8, **options)
        chat.say_sync(question)
        for _ in range(2):
            answer = chat.continue_sync()
        assert answer.token_ids == whole.token_ids
        assert chat.messages[-1]["content"] == whole.content
        assert answer.cached_tokens >= (len(answer.prompt_token_ids) + 8) // PAGE * PAGE - PAGE


@pytest.mark.wide
@pytest.mark.parametrize("place", ["template", "system message"])
def test_a_chosen_call_is_made_and_read(place: str, request: pytest.FixtureRequest) -> None:
    told: Session = request.getfixturevalue("told" if place == "template" else "session")

    def weather(city: str, days: int) -> str:
        """Return the weather of a city."""
        return f"sunny in {city}"

    messages = [{"role": "user", "content": "What is the weather in Rome?"}]
    for choice in ("required", "weather"):
        answer = told.generate_sync(messages, tools=[weather], tool_choice=choice, max_tokens=80, temperature=0)
        calls = answer.tool_calls[:-1] if answer.finish_reason == "length" else answer.tool_calls
        assert calls
        assert all(call.error is None for call in calls)
        assert {call.name for call in calls} == {"weather"}
        assert all(set(call.arguments) == {"city", "days"} for call in calls)
    assert told.generate_sync(messages, tools=[weather], tool_choice="none", max_tokens=4).tool_calls == ()
    wrongs: tuple[tuple[Any, str], ...] = (
        ("nothing", r"the name of a tool \(weather"),
        (3, "tool_choice must be a str"),
    )
    for wrong, words in wrongs:
        with pytest.raises(rekindle.InvalidRequest, match=words):
            told.generate_sync(messages, tools=[weather], tool_choice=wrong)
    idle = told.generate_sync(
        messages, tools=[weather], tool_choice="required", regex="a", max_tokens=80, temperature=0
    )
    assert idle.tool_calls, "a required call leaves the constraint without effect"
    with told.prefix_sync(messages, tools=[weather]) as prefix:
        assert prefix.generate_sync("Please.", tool_choice="weather", max_tokens=80, temperature=0).tool_calls
    with pytest.raises(rekindle.InvalidRequest, match="tool_choice belongs to calls on the prefix"):
        told.prefix(messages, tools=[weather], tool_choice="required")
    with pytest.raises(rekindle.InvalidRequest, match="needs tools"):
        told.generate_sync(messages, tool_choice="required")
    with pytest.raises(rekindle.InvalidRequest, match="tool_choice='required' needs a conversation"):
        told.generate_sync("text", tool_choice="required")
