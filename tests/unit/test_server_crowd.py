"""Among clients that go away and such that send nonsense, all others get what is theirs, and nothing stays behind."""

import random
from collections import Counter
from typing import Any

import anyio
import pytest

from rekindle.server import Limits, app
from rekindle.session.session import Session
from rekindle.testing import expected_tokens, fake_session
from tests.unit.asgi import Caller, Reply
from tests.unit.sessions import assert_all_ends_free

pytestmark = pytest.mark.anyio

TEXT = "/v1/completions"
AT_ONCE = 16


class Crowd:
    """Clients that each do one thing, chosen at random, and check what comes.

    Attributes:
        done: how many of them did each thing.
    """

    def __init__(self, session: Session, seed: int):
        self._chance = random.Random(seed)
        self._app = app(session, limits=Limits(body_bytes=4096))
        self._room = anyio.Semaphore(AT_ONCE)
        self.done = Counter[str]()

    async def client(self) -> None:
        """Do one thing."""
        async with self._room:
            act = self._chance.choice((self.asks, self.leaves, self.errs))
            await act([self._chance.randrange(200) for _ in range(self._chance.randrange(1, 40))])
            self.done[act.__name__] += 1

    async def asks(self, prompt: list[int]) -> None:
        """Ask, and read to the end."""
        length, stream = self._chance.randrange(1, 30), self._chance.random() < 0.5
        body = {"prompt": prompt, "max_tokens": length, "stream": stream, "logprobs": 0}
        reply = await Caller(self._app, TEXT, body).run()
        chosen = [event["choices"][0] for event in reply.events] if stream else reply.json["choices"]
        scores = [score for choice in chosen if choice["logprobs"] for score in choice["logprobs"]["token_logprobs"]]
        # The fake model's log-probability of a token is its negative.
        assert scores == [-float(token) for token in expected_tokens(prompt, length)]

    async def leaves(self, prompt: list[int]) -> None:
        """Ask for much, and go away at once or after some pieces."""
        stream, pieces = self._chance.random() < 0.5, self._chance.randrange(1, 20)

        def sees(reply: Reply) -> bool:
            if len(reply.pieces) == pieces:
                caller.gone.set()
            return False

        body = {"prompt": [prompt, prompt[::-1]], "max_tokens": 3000, "stream": stream, "logprobs": 0}
        caller = Caller(self._app, TEXT, body, stops_at=sees)
        if not stream:
            caller.gone.set()
        await caller.run()
        assert not caller.reply.complete

    async def errs(self, prompt: list[int]) -> None:
        """Send what is too long, or cannot be served."""
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
