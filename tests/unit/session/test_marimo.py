"""The model of marimo's chat: messages, options and pieces of an answer."""

import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from rekindle.core.errors import InvalidRequest, PromptTooLong
from rekindle.marimo import chat_model
from rekindle.notebook import front_end, marimo_cell
from rekindle.session.session import Session
from tests.unit.scripted import Serve
from tests.waiting import until

pytestmark = pytest.mark.anyio


@dataclass
class Part:
    text: str = ""
    type: str = "text"
    media_type: str | None = None
    url: str = ""


@dataclass
class Message:
    """A message with the attributes of marimo's."""

    role: str
    content: Any = ""
    parts: list[Part] = field(default_factory=list)
    attachments: list[Any] | None = None


@dataclass
class Configuration:
    """A configuration with the attributes of marimo's, and its defaults."""

    max_tokens: int | None = 4096
    temperature: float | None = 0.5
    top_p: float | None = 1
    top_k: int | None = 40
    frequency_penalty: float | None = 0
    presence_penalty: float | None = 0


def file(kind: str, url: str) -> Part:
    return Part(type="file", media_type=kind, url=url)


async def pieces_of(session: Session, *messages: Message, **options: Any) -> list[Any]:
    model = chat_model(session, **options)
    return [piece async for piece in model(messages, Configuration(max_tokens=60))]


async def test_an_answer_is_text_after_the_conversation(serve: Serve) -> None:
    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return "Hello!"

    session = serve(script)
    talk = Message("user", "Hi"), Message("assistant", parts=[Part("He"), Part("llo")]), Message("user", "So?")
    assert "".join(await pieces_of(session, *talk)) == "Hello!"
    assert [word in prompts[0] for word in ("Hi", "Hello", "So?")] == [True, True, True]


async def test_reasoning_is_a_block_of_its_own(serve: Serve) -> None:
    pieces = await pieces_of(serve("<think>\nthe user asks\n</think>\n\nYes."), Message("user", "Well?"))
    blocks = [piece for piece in pieces if isinstance(piece, dict)]
    assert blocks[0] == {"type": "reasoning-start", "id": "reasoning"}
    assert blocks[-1] == {"type": "reasoning-end", "id": "reasoning"}
    assert "".join(block["delta"] for block in blocks[1:-1]) == "the user asks"
    assert "".join(piece for piece in pieces if isinstance(piece, str)).strip() == "Yes."


async def test_options_count_before_the_configuration(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    session, calls = serve("Yes."), list[dict[str, Any]]()
    stream = Session.stream

    def watched(self: Session, prompt: Any, **options: Any) -> Any:
        calls.append(options)
        return stream(self, prompt, **options)

    monkeypatch.setattr(Session, "stream", watched)
    await pieces_of(session, Message("user", "Well?"))
    await pieces_of(session, Message("user", "Well?"), temperature=0, max_tokens=5)
    assert [(call["max_tokens"], call["temperature"], call.get("top_k")) for call in calls] == [
        (60, 0.5, 40),
        (5, 0, None),
    ]


async def test_an_answer_that_is_left_is_cancelled(serve: Serve) -> None:
    session = serve("word " * 500)
    answer: Any = chat_model(session)([Message("user", "Hi")], Configuration())
    await anext(answer)
    await answer.aclose()
    await until(lambda: not session.requests, "the request ends")
    assert session.stats.scheduler.generated_tokens < 500


@pytest.mark.parametrize("place", ["parts", "attachments"])
async def test_images_are_of_the_prompt_and_other_files_are_refused(serve: Serve, place: str) -> None:
    session = serve("Yes.")
    with pytest.raises(InvalidRequest, match="must be an image, got text/csv"):
        await pieces_of(session, Message("user", "See", **{place: [file("text/csv", "data:,a")]}))
    with pytest.raises(InvalidRequest, match="image"):  # of a model without images
        await pieces_of(session, Message("user", "See", **{place: [file("image/png", "data:image/png;base64,AA==")]}))


def test_nothing_of_marimo_is_looked_for_before_it_is_imported() -> None:
    assert "marimo" not in sys.modules
    assert marimo_cell.context() is None
    assert marimo_cell.run_id() is None
    assert marimo_cell.keepers() == []
    assert not front_end.in_notebook()


async def test_a_long_conversation_goes_on_without_its_oldest_turns(serve: Serve) -> None:
    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return "Hello!"

    session = serve(script)
    talk = [
        each
        for turn in range(20)
        for each in (Message("user", f"turn {turn}: " + 20 * "hi "), Message("assistant", "Yes"))
    ]
    assert "".join(await pieces_of(session, *talk, Message("user", "So?"))) == "Hello!"
    assert "turn 0: hi" not in prompts[0]
    assert "turn 19: hi" in prompts[0]
    with pytest.raises(PromptTooLong, match="the conversation has filled the context"):
        await pieces_of(session, *talk, Message("user", "So?"), when_full="stop")
    with pytest.raises(InvalidRequest, match="when_full must be"):
        chat_model(session, when_full="drop")  # type: ignore[arg-type]
