"""What stands before the routes: API keys, and the form of whatever goes wrong."""

import hmac
from collections.abc import Sequence
from typing import Any

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rekindle.server.refused import INVALID, PARTING_SECONDS, Refused, ending, refused
from rekindle.server.writing.common import dumped

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "0.0.0.0"})
"""Names of this machine alone; so are those that end with ".localhost" (RFC 6761)."""
OPEN_PATHS = frozenset({"/health"})
"""Paths that need no key."""


def reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return an answer whose body is JSON."""
    return Response(dumped(value), status, headers, "application/json")


def refusal(why: Refused) -> Response:
    """Return the answer to a request that is refused."""
    return reply(why.body, why.status, why.headers)


async def told(request: Request, error: Exception) -> Response:
    """Return the answer to a request at which an error was raised."""
    if not isinstance(error, HTTPException):
        return refusal(refused(error, {}))
    # The router knows no such path, or not with this method.
    allowed = (error.headers or {}).get("Allow")
    paths = ", ".join(route.path for route in request.app.routes if "{" not in route.path)
    there = f"use {allowed}" if allowed else f"there are {paths}"
    why = Refused(error.status_code, f"{request.method} {request.url.path:.200} is not served; {there}", INVALID)
    return reply(why.body, why.status, {"allow": allowed} if allowed else None)


class Caught:
    """Answers in place of an app that raises or is cancelled, so that nothing above it tells or logs why."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] != "http":  # such as the start of a server, which hears of an error by the error
            await self._app(scope, receive, send)
            return
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except ClientDisconnect:  # while it sent its body
            pass
        except Exception as error:
            why = refused(error, {})
            if not begun:
                await refusal(why)(scope, receive, send)
        except anyio.get_cancelled_exc_class():  # by a server that ends
            with anyio.move_on_after(PARTING_SECONDS, shield=True):
                if not begun:
                    await refusal(ending())(scope, receive, send)
            raise


class LocalNames:
    """Lets pass who asks for this machine by a name that it always has.

    A web page can have its own name resolved to this machine, and would then be taken for a page of this server. So
    this stands before a server that serves this machine alone and asks for no key.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        name = given if given.endswith("]") else given.rpartition(":")[0] or given
        unnamed = not given and scope.get("http_version") == "1.0"  # no browser leaves the name out
        if scope["type"] == "http" and not unnamed and not _is_local(name):
            message = (
                f"this server is for {', '.join(sorted(LOCAL_NAMES))}, got {name!r:.80}; for others, give it API keys"
            )
            await refusal(Refused(421, message))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _is_local(name: str) -> bool:
    plain = name.lower().removesuffix(".")
    return plain in LOCAL_NAMES or plain.endswith(".localhost")


class ApiKeys:
    """Lets pass who has one of some keys, as `Authorization: Bearer KEY`, or as `x-api-key: KEY`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]):
        self._app = app
        self._accepted = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and not self._knows(scope):
            why = Refused(401, "give an API key of this server, as 'Authorization: Bearer KEY'", code="invalid_api_key")
            await refusal(why)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        given = given.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        # All are compared, so that the time tells nothing of which one is nearly right.
        return sum(hmac.compare_digest(given, accepted) for accepted in self._accepted) > 0
