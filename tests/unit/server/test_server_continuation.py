"""Several choices of a chat that continues its last message, and an echo of the message."""

import pytest

from rekindle.server import app
from tests.unit.asgi import ask
from tests.unit.scripted import scripted_session
from tests.unit.server.test_server_crowd import PATHS, text_of

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Count."}
OPEN = {"role": "assistant", "content": "one two"}


async def test_several_choices_and_an_echo_have_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_session(monkeypatch, lambda prompt: "one two three") as session:
        body = {"messages": [USER, OPEN], "continue_final_message": True, "n": 2, "temperature": 0}
        for echo, text in ((False, " three"), (True, "one two three")):
            reply = await ask(app(session), PATHS[0], {**body, "echo": echo})
            assert [choice["message"]["content"] for choice in reply.json["choices"]] == [text, text]
            one = {**body, "echo": echo, "n": 1, "stream": True}
            assert text_of(PATHS[0], await ask(app(session), PATHS[0], one), True) == text
