"""The app is served by another ASGI server too, under trio."""

import http.client
import json
import socket
import time
from contextlib import closing

import pytest
import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from rekindle.server import app
from rekindle.session.session import Session
from rekindle.testing import fake_session

BODY = {"prompt": [3, 1, 4], "max_tokens": 4, "logprobs": 0}


def asked(port: int, body: object) -> http.client.HTTPConnection:
    """Return a connection on which a completion was asked for, as soon as the server is there."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        except ConnectionRefusedError:
            connection.close()
            time.sleep(0.05)
        else:
            return connection


def ask(session: Session, port: int) -> None:
    with closing(asked(port, BODY)) as connection, connection.getresponse() as reply:
        assert json.loads(reply.read())["usage"]["completion_tokens"] == 4
    with closing(asked(port, {**BODY, "stream": True})) as connection, connection.getresponse() as reply:
        assert reply.read().endswith(b"data: [DONE]\n\n")
    with closing(asked(port, {**BODY, "stream": True, "max_tokens": 4000})) as connection:
        with connection.getresponse() as reply:
            assert reply.readline().startswith(b"data: ")
        (handle,) = session.requests.values()
    while not handle.done:
        time.sleep(0.01)
    assert "cancelled" in repr(handle)


@pytest.mark.filterwarnings("default")
def test_hypercorn_serves_the_app_under_trio() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    with fake_session() as session:

        async def main() -> None:
            ended = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: serve(app(session), config, shutdown_trigger=ended.wait))
                await trio.to_thread.run_sync(ask, session, port)
                ended.set()

        trio.run(main)
