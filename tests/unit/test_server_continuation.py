"""An answer that continues the last message has only its own text, in each API, whole and in streams."""

from typing import Any

import pytest

from rekindle.server import app
from rekindle.session.session import Session
from tests.unit.asgi import ask
from tests.unit.scripted import scripted_session
from tests.unit.test_server_crowd import PATHS, text_of

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Count."}
OPEN = {"role": "assistant", "content": "one two"}


async def answers(session: Session, messages: list[Any], **more: Any) -> set[str]:
    """Return the texts of all APIs, whole and in streams."""
    found = set()
    for path in PATHS:
        for streams in (False, True):
            body = {"messages": messages, "max_tokens": 100, "stream": streams}
            if path == "/v1/chat/completions":
                body |= {"continue_final_message": True, "add_generation_prompt": False, **more}
            if path == "/api/chat":
                del body["max_tokens"]
            found.add(text_of(path, await ask(app(session), path, body), streams))
    return found


async def test_the_continued_text_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_session(monkeypatch, lambda prompt: "one two three") as session:
        assert await answers(session, [USER, OPEN]) == {" three"}
        assert await answers(session, [USER, OPEN], temperature=0, n=1) == {" three"}


async def test_nor_is_the_reasoning_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_session(monkeypatch, lambda prompt: "<think>so</think>one two three") as session:
        for path, last in (
            ("/v1/chat/completions", {**OPEN, "reasoning_content": "so"}),
            ("/api/chat", {**OPEN, "thinking": "so"}),
        ):
            body = {"messages": [USER, last], "stream": False}
            if path == "/v1/chat/completions":
                body["continue_final_message"] = True
            reply = (await ask(app(session), path, body)).json
            message = reply["message"] if path == "/api/chat" else reply["choices"][0]["message"]
            others = {} if path == "/api/chat" else {"refusal": None}
            assert message == {"role": "assistant", "content": " three", **others}


async def test_several_choices_and_an_echo_have_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_session(monkeypatch, lambda prompt: "one two three") as session:
        body = {"messages": [USER, OPEN], "continue_final_message": True, "n": 2, "temperature": 0}
        for echo, text in ((False, " three"), (True, "one two three")):
            reply = await ask(app(session), PATHS[0], {**body, "echo": echo})
            assert [choice["message"]["content"] for choice in reply.json["choices"]] == [text, text]
            one = {**body, "echo": echo, "n": 1, "stream": True}
            assert text_of(PATHS[0], await ask(app(session), PATHS[0], one), True) == text
