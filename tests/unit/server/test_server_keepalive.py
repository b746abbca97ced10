"""A stream begins and shows signs of life while its text is awaited, and its errors keep their form."""

import json
from typing import Any, cast

import anyio
import pytest
from starlette.types import Receive, Scope, Send

from rekindle.server import Limits, app
from rekindle.server.anthropic.stream import MESSAGES
from rekindle.server.common.errors import ApiError
from rekindle.server.common.events import StreamForm
from rekindle.server.http.access import Access
from rekindle.server.http.endpoint import Endpoint
from rekindle.server.http.exchange import Service
from rekindle.server.http.keepalive import KeepAlive
from rekindle.server.models.gate import Gate
from rekindle.server.openai.events import COMPLETIONS
from rekindle.server.openai.responses.kept import KeptResponses
from rekindle.server.routing import routes_of
from rekindle.session.session import Session
from rekindle.testing import FakeSettler
from tests.unit.asgi import Caller, ask
from tests.unit.sessions import submitted
from tests.waiting import until

pytestmark = pytest.mark.anyio

SOON = Limits(first_seconds=0.02, quiet_seconds=0.02)
USER = {"role": "user", "content": "hi"}
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def form_of(path: str) -> StreamForm:
    """Return the form of the streams at a path."""
    routes = routes_of(Service(cast(Any, None), SOON, Gate()), Access(), KeptResponses())
    (endpoint,) = [route.endpoint for route in routes if route.path == path and isinstance(route.endpoint, Endpoint)]
    return endpoint.convention.form


async def test_a_stream_begins_before_its_first_token(held_session: Session, settler: FakeSettler) -> None:
    """Expect the same of a pause and of a queue: nothing is awaited but time."""
    body = {"prompt": [3, 1], "max_tokens": 3, "stream": True}
    caller = Caller(app(held_session, limits=SOON), "/v1/completions", body)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.run)
        await submitted(held_session)
        await until(lambda: len(caller.reply.pieces) > 2, "several pings had come")
        assert caller.reply.status == 200
        assert caller.reply.headers["content-type"].startswith("text/event-stream")
        assert set(caller.reply.pieces) == {b": ping\n\n"}
        settler.release()
    whole = (await ask(app(held_session), "/v1/completions", {**body, "stream": False})).json
    assert "".join(event["choices"][0]["text"] for event in caller.reply.events) == whole["choices"][0]["text"]


@pytest.mark.parametrize(
    ("path", "ping"),
    [
        ("/v1/chat/completions", b": ping\n\n"),
        ("/v1/completions", b": ping\n\n"),
        ("/v1/responses", b": ping\n\n"),
        ("/responses", b": ping\n\n"),
        ("/v1/messages", PING),
        ("/api/chat", b""),
    ],
)
@pytest.mark.parametrize("late", [False, True])
async def test_an_error_has_a_status_or_is_the_last_event(path: str, ping: bytes, late: bool) -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        if late:
            await anyio.sleep(0.1)
        raise ApiError(400, "no", param="prompt")

    limits = Limits(first_seconds=0.02 if late else 60, quiet_seconds=60)
    caller = Caller(KeepAlive(fail, limits, form_of(path)), path, {})
    if not late:
        with pytest.raises(ApiError, match="no"):
            await caller.run()
        assert caller.reply.status == 0
        return
    await caller.run()
    assert (caller.reply.status, caller.reply.complete) == (200, True)
    event = caller.reply.body.removeprefix(ping).removesuffix(b"data: [DONE]\n\n").split(b"data: ")[-1]
    assert "no" in json.dumps(json.loads(event))
    assert caller.reply.body.startswith(ping)


async def test_a_stream_that_began_on_time_has_pings_between_whole_events() -> None:
    async def talk(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await until(lambda: len(caller.reply.pieces) > 1, "a ping had come")
        await send({"type": "http.response.body", "body": b"data: 2\n\n", "more_body": False})

    caller = Caller(KeepAlive(talk, Limits(first_seconds=0.5, quiet_seconds=0.02), COMPLETIONS), "/v1/completions", {})
    await caller.run()
    assert caller.reply.headers["x-own"] == "1"
    first, *pings, last = caller.reply.pieces
    assert (first, set(pings), last) == (b"data: 1\n\n", {b": ping\n\n"}, b"data: 2\n\n")


async def test_a_client_of_a_server_that_ends_is_told_in_the_stream() -> None:
    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await anyio.sleep_forever()

    caller = Caller(KeepAlive(wait, SOON, MESSAGES), "/v1/messages", {})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.run)
        await until(lambda: caller.reply.pieces, "a ping had come")
        tasks.cancel_scope.cancel()
    assert caller.reply.complete
    assert b"the server shut down" in caller.reply.pieces[-1]


async def test_whole_answers_have_no_ping(held_session: Session, settler: FakeSettler) -> None:
    caller = Caller(app(held_session, limits=SOON), "/v1/completions", {"prompt": [3, 1], "max_tokens": 3})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.run)
        await submitted(held_session)
        await anyio.sleep(0.1)
        assert caller.reply.status == 0
        settler.release()
    assert caller.reply.json["choices"]
