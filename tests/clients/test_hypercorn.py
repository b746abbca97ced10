"""The app is served by another ASGI server too, under trio."""

import http.client
import json
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

import pytest
import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from rekindle.server import app
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, fake_limits, fake_loaded_engine, fake_session
from tests.waiting import PATIENCE, until_blocking

BODY = {"prompt": [3, 1, 4], "max_tokens": 4, "logprobs": 0}


def asked(port: int, body: object) -> http.client.HTTPConnection:
    """Return a connection on which a completion was asked for, as soon as the server is there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def connects() -> bool:
        with suppress(ConnectionRefusedError):
            connection.connect()
        return connection.sock is not None

    until_blocking(connects, "hypercorn listened")
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    return connection


def ask(session: Session, port: int) -> None:
    with closing(asked(port, BODY)) as connection, connection.getresponse() as reply:
        assert json.loads(reply.read())["usage"]["completion_tokens"] == 4
    with closing(asked(port, {**BODY, "stream": True})) as connection, connection.getresponse() as reply:
        assert reply.read().endswith(b"data: [DONE]\n\n")


def leave(settler: FakeSettler, session: Session, port: int) -> None:
    with closing(asked(port, {**BODY, "stream": True, "max_tokens": 4000})) as connection:
        settler.step()
        with connection.getresponse() as reply:
            assert reply.readline().startswith(b"data: ")
        (handle,) = session.requests.values()
    # Nothing settles meanwhile, or all tokens could have come before the server hears of it.
    until_blocking(lambda: handle.done, "the server had heard that its client is gone")
    settler.release()
    assert "cancelled" in repr(handle)


def serving(session: Session, call: Callable[[Session, int], None]) -> None:
    """Call a function with a session, and the port where it is served meanwhile, by hypercorn under trio."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]

    async def main() -> None:
        ended = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: serve(app(session), config, shutdown_trigger=ended.wait))
            await trio.to_thread.run_sync(call, session, port)
            ended.set()

    with session:
        trio.run(main)


@pytest.mark.filterwarnings("default")
def test_hypercorn_serves_the_app_under_trio() -> None:
    serving(fake_session(), ask)


@pytest.mark.filterwarnings("default")
def test_who_leaves_is_cancelled_there_too() -> None:
    settler = FakeSettler(held=True)
    serving(fake_session(fake_loaded_engine(fake_limits(), settler=settler)), partial(leave, settler))
