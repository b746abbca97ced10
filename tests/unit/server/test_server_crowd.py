"""Among clients that leave and clients with nonsense, all others get their answers, and nothing stays behind."""

import json
import random
import re
from collections import Counter
from typing import Any

import anyio
import pytest

from rekindle.server import Limits, app
from rekindle.session.session import Session
from rekindle.testing import expected_tokens, fake_session
from tests.unit.asgi import Caller, Reply
from tests.unit.scripted import scripted_session
from tests.unit.sessions import assert_all_ends_free

pytestmark = pytest.mark.anyio

TEXT = "/v1/completions"
AT_ONCE = 16


class Crowd:
    """Clients with one random act each, and a check of its reply.

    Attributes:
        done: the number of clients by act.
    """

    def __init__(self, session: Session, seed: int):
        self._chance = random.Random(seed)
        self._app = app(session, limits=Limits(body_bytes=4096))
        self._room = anyio.Semaphore(AT_ONCE)
        self.done = Counter[str]()

    async def client(self) -> None:
        """Do one random act."""
        async with self._room:
            act = self._chance.choice((self.asks, self.leaves, self.errs))
            await act([self._chance.randrange(200) for _ in range(self._chance.randrange(1, 40))])
            self.done[act.__name__] += 1

    async def asks(self, prompt: list[int]) -> None:
        """Ask, and read to the end."""
        length, stream = self._chance.randrange(1, 30), self._chance.random() < 0.5
        body = {"prompt": prompt, "max_tokens": length, "stream": stream, "logprobs": 0}
        reply = await Caller(self._app, TEXT, body).run()
        choices = [event["choices"][0] for event in reply.events] if stream else reply.json["choices"]
        scores = [score for choice in choices if choice["logprobs"] for score in choice["logprobs"]["token_logprobs"]]
        # The fake model's log-probability of a token is its negative.
        assert scores == [-float(token) for token in expected_tokens(prompt, length)]

    async def leaves(self, prompt: list[int]) -> None:
        """Ask for much, and go away at once or after some pieces."""
        stream, pieces = self._chance.random() < 0.5, self._chance.randrange(1, 20)

        def sees(reply: Reply) -> bool:
            if len(reply.pieces) == pieces:
                caller.disconnect.set()
            return False

        body = {"prompt": [prompt, prompt[::-1]], "max_tokens": 3000, "stream": stream, "logprobs": 0}
        caller = Caller(self._app, TEXT, body, stops_at=sees)
        if not stream:
            caller.disconnect.set()
        await caller.run()
        assert not caller.reply.complete

    async def errs(self, prompt: list[int]) -> None:
        """Send an invalid body, or a body over the limit."""
        bodies: list[tuple[Any, int]] = [
            (b"{", 400),
            (b"[" * 5000, 413),
            ({"prompt": prompt, "top_p": 2}, 400),
            ({"prompt": prompt, "no": 1}, 400),
            ({"prompt": [10**6]}, 400),
        ]
        body, status = self._chance.choice(bodies)
        reply = await Caller(self._app, TEXT, body).run()
        assert reply.status == status
        assert reply.error["message"]


async def test_a_crowd_leaves_nothing_behind() -> None:
    with fake_session(max_running=4, num_pages=400, max_context=4096) as session:
        crowd = Crowd(session, seed=1)
        async with anyio.create_task_group() as tasks:
            for _ in range(60):
                tasks.start_soon(crowd.client)
        for handle in session.requests.values():
            await handle.record.pieces.wait(2**60)
        await assert_all_ends_free(session)
        assert min(crowd.done[name] for name in ("asks", "leaves", "errs")) > 5


PATHS = ("/v1/chat/completions", "/v1/messages", "/api/chat")


def answer_to(prompt: str) -> str:
    """Return the answer to the number in a prompt."""
    (number,) = re.findall(r"number (\d+)", prompt)
    return f"It is {number}. " * (int(number) % 7 + 1) + "Well."


def text_of(path: str, reply: Reply, streams: bool) -> str:
    """Return the text of an answer in the form of its API."""
    if not streams:
        body = reply.json
        if path == "/v1/chat/completions":
            return str(body["choices"][0]["message"]["content"])
        return str(body["content"][0]["text"] if path == "/v1/messages" else body["message"]["content"])
    if path == "/v1/chat/completions":
        return "".join(event["choices"][0]["delta"].get("content") or "" for event in reply.events)
    lines = [line.removeprefix("data: ") for line in reply.body.decode().splitlines() if "{" in line]
    parts = [json.loads(line) for line in lines]
    if path == "/v1/messages":
        return "".join(part["delta"].get("text", "") for part in parts if part["type"] == "content_block_delta")
    return "".join(part["message"]["content"] for part in parts)


async def test_a_crowd_of_three_apis_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    chance, done = random.Random(2), Counter[tuple[str, bool]]()
    with scripted_session(monkeypatch, answer_to) as session:
        server = app(session)

        async def client(number: int, path: str, streams: bool, leaves: bool) -> None:
            def sees(reply: Reply) -> bool:
                if leaves and len(reply.pieces) == 2:
                    caller.disconnect.set()
                return False

            messages = [{"role": "user", "content": f"number {number}"}]
            body = {"messages": messages, "max_tokens": 300, "stream": streams}
            if path == "/api/chat":
                body = {"messages": messages, "stream": streams, "options": {"num_predict": 300}}
            caller = Caller(server, path, body, stops_at=sees)
            if leaves and not streams:
                caller.disconnect.set()
            reply = await caller.run()
            if not leaves:
                assert text_of(path, reply, streams) == answer_to(f"number {number}")
            done[path, leaves] += 1

        async with anyio.create_task_group() as tasks:
            for number in range(36):
                leaves = number % 4 == 3
                tasks.start_soon(client, number, PATHS[number % 3], chance.random() < 0.5, leaves)
        await assert_all_ends_free(session)
    assert len(done) == 6, done
