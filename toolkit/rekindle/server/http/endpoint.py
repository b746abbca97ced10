"""Routes with a model in the body: the checks of a request, its body, and the use of its model."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final

import anyio
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from rekindle.server.common.errors import ApiError
from rekindle.server.common.events import StreamForm
from rekindle.server.common.fields import LARGE, Fields, parse_body
from rekindle.server.http.exchange import Exchange, Service
from rekindle.server.http.keepalive import KeepAlive
from rekindle.server.http.limits import on_thread
from rekindle.server.http.reading import read_body
from rekindle.server.http.shares import client_of
from rekindle.server.http.streaming import run_until_disconnect
from rekindle.server.models.served import Models

Answer = Callable[[Exchange], Awaitable[ASGIApp]]
"""Function for the answer of a route."""
JSON: Final = "application/json"
BROWSER_HEADERS = frozenset({"origin", "sec-fetch-site"})
"""Headers in requests of browsers for other sites' pages; pages cannot leave them out."""


def check_type(request: Request) -> None:
    """Raise unless the header declares JSON, a type that pages of other sites cannot send without permission (CORS)."""
    kind = _type_of(request)
    if kind != JSON:
        message = f"the body must be of content type {JSON}, got {kind!r:.80}"
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)


def check_origin(request: Request) -> None:
    """Check for a body of JSON by its header, or for a client other than a browser.

    The clients of some APIs give no content type, or another one. Browsers tell the origin of each page with a body.
    """
    kind = _type_of(request)
    if kind != JSON and not BROWSER_HEADERS.isdisjoint(request.headers):
        message = f"a page in a browser must send a body of content type {JSON}, got {kind!r:.80}"
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)


def _type_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def model_in(body: Fields, models: Models) -> str | None:
    """Take the model's name; None if absent."""
    return body.take("model", str)


async def open_first(name: str | None, body: Fields, models: Models) -> ASGIApp | None:
    """Return None, to open the model before the answer."""
    return None


def streams(body: Fields) -> bool:
    """Return True if a body asks for a stream."""
    return body.peek(("stream",)).get("stream") is True


@dataclass(frozen=True, slots=True)
class Convention:
    """The convention of an API for its bodies and streams.

    Attributes:
        form: the form of the streams.
        check: checks the headers of a request; raises ApiError.
        model_in: takes the name of one of the models out of a body; None for the only or the first model.
        early: answers a body, with the model's name, before the model opens; returns None to open it.
        streams: returns True for a body with a stream as its answer, without taking the field.
    """

    form: StreamForm
    check: Callable[[Request], None] = check_type
    model_in: Callable[[Fields, Models], str | None] = model_in
    early: Callable[[str | None, Fields, Models], Awaitable[ASGIApp | None]] = open_first
    streams: Callable[[Fields], bool] = streams


class Endpoint:
    """ASGI app of a route with a model in the body.

    The model is held until the end of the answer, so that a server of several models does not close it earlier.

    Args:
        answer: the function for the answer.
        service: the server's models and rules.
        convention: the convention for the bodies.
    """

    def __init__(self, answer: Answer, service: Service, convention: Convention):
        self.answer, self.convention, self._service = answer, convention, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        request = Request(scope, receive, send)
        self.convention.check(request)
        async with AsyncExitStack() as room:
            body, echoes_much = await self._read(request, room)
            await self._answer(request, body, echoes_much, scope, receive, send)

    async def _read(self, request: Request, room: AsyncExitStack) -> tuple[Fields, bool]:
        """Return the fields of a body, and whether it is large; a large one holds room until the end of its answer."""

        async def grow() -> None:
            await room.enter_async_context(_room_for(request, self._service))

        data = await read_body(request, self._service.limits, grow)
        parse = partial(parse_body, data, strict=self._service.strict)
        return (parse(), False) if len(data) < LARGE else (await on_thread(parse), True)

    async def _answer(
        self, request: Request, body: Fields, echoes_much: bool, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a body."""
        service, convention = self._service, self.convention
        is_large = echoes_much or bool(body.peek(("tools",)))  # tools may have grammars
        name = convention.model_in(body, service.models)
        if (early := await convention.early(name, body, service.models)) is not None:
            await early(scope, receive, send)
            return
        serve = partial(self._serve, request, body, name, is_large, echoes_much)
        app = KeepAlive(serve, service.limits, convention.form) if convention.streams(body) else serve
        await app(scope, receive, send)

    async def _serve(
        self,
        request: Request,
        body: Fields,
        name: str | None,
        is_large: bool,
        echoes_much: bool,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Serve a body by the model of a name."""
        use = self._service.models.use(name)
        async with AsyncExitStack() as uses:
            model = await run_until_disconnect(receive, lambda: uses.enter_async_context(use))
            response = await self.answer(Exchange(request, body, model, self._service, is_large, echoes_much))
            await response(scope, receive, send)


@asynccontextmanager
async def _room_for(request: Request, service: Service) -> AsyncIterator[None]:
    """Hold room for a large body and all that is made of it.

    Raises:
        ApiError: the bodies of other requests leave no room for too long.
    """
    limits, length = service.limits, request.headers.get("content-length", "")
    is_plain = length.isascii() and length.isdigit() and "content-encoding" not in request.headers
    size = int(length) if is_plain else limits.body_bytes
    async with AsyncExitStack() as room:
        with anyio.move_on_after(limits.body_seconds) as wait:
            await room.enter_async_context(service.bodies.take(client_of(request), size))
        if wait.cancelled_caught:
            message = "the server holds as many bytes of requests as it may: try again later, or send smaller ones"
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message)
        yield
