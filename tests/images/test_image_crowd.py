"""A crowd of streams with pictures: other requests are served beside it, and memory is bounded."""

import base64
import io
import threading
from typing import Any

import anyio
import numpy as np
import pytest
from PIL import Image

from rekindle import Session
from rekindle.formats.images import sources
from rekindle.formats.images.reading import decode
from rekindle.formats.images.room import ROOM, Ended
from rekindle.server import app
from tests.unit.asgi import Reply, ask
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.anyio, pytest.mark.wide]
COUNT = 12
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 4}


def file_of(number: int) -> bytes:
    """Return the file of an image of its own."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 255, (30, 40, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def chat_of(image: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a conversation with an image."""
    return [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}]


def text_of(reply: Reply) -> str:
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in reply.events if event["choices"])


async def test_others_are_served_beside_a_crowd_with_pictures(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, at_once, release = 0, [0], threading.Event()

    def held(data: bytes, ended: Ended) -> np.ndarray:
        nonlocal decoded
        decoded += 1
        at_once.append(len(ROOM._sizes))
        assert release.wait(PATIENCE)
        return decode(data, ended)

    monkeypatch.setattr(sources, "decode", held)
    served, replies = app(session), dict[int, Reply]()

    async def stream(number: int) -> None:
        url = f"data:image/png;base64,{base64.b64encode(file_of(number)).decode()}"
        image = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
        replies[number] = await ask(served, CHAT, {**BODY, "messages": chat_of(image), "stream": True})

    async with anyio.create_task_group() as tasks:
        for number in range(COUNT):
            tasks.start_soon(stream, number)
        await until(lambda: decoded, "an image is decoded")
        for _ in range(3):  # the loop and the engine are free, though all images wait
            assert (await ask(served, "/health")).status == 200
            assert (await ask(served, CHAT, {**BODY, "messages": [{"role": "user", "content": "Hi"}]})).status == 200
        assert not replies
        release.set()
    assert decoded >= COUNT
    assert max(at_once) <= ROOM._at_once
    assert (list(ROOM._waiting), ROOM._sizes) == ([], [])
    assert all(reply.status == 200 and reply.complete for reply in replies.values())
    for number in (0, COUNT - 1):
        alone = await session.generate(chat_of({"type": "image", "image": file_of(number), "detail": "low"}), **BODY)
        assert text_of(replies[number]) == alone.text
