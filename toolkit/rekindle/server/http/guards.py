"""Middleware in front of the routes: API keys, host names, and error responses."""

import hmac
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rekindle.server.common.errors import INVALID, PARTING_SECONDS, ApiError, api_error_of, error_object, shutdown_error
from rekindle.server.common.events import json_bytes, large_json_bytes

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "0.0.0.0"})
"""Host names of the local machine, in addition to all names under ".localhost" (RFC 6761)."""
OPEN_PATHS = frozenset({"/", "/health"})
"""Paths served without an API key."""


def reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(json_bytes(value), status, headers, "application/json")


def large_reply(value: Any) -> Response:
    """Return a JSON response with a value of any size; see `large_json_bytes`."""
    return Response(large_json_bytes(value), media_type="application/json")


def error_reply(error: ApiError, scope: Scope) -> Response:
    """Return the HTTP response for an API error, in the form of the API that the request's path belongs to."""
    return reply(error_object(error, path_of(scope)), error.status, error.headers)


def path_of(scope: Scope) -> str:
    """Return the path of a request, without the prefix under which the app is mounted."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


async def error_response(request: Request, error: Exception) -> Response:
    """Return the response for an exception raised by a route or by the router."""
    if not isinstance(error, HTTPException):
        return error_reply(api_error_of(error, {}), request.scope)
    # The router raised it: the path is unknown, or its method is not allowed.
    allowed = (error.headers or {}).get("Allow")
    paths = ", ".join(route.path for route in request.app.routes if "{" not in route.path)
    hint = f"use {allowed}" if allowed else f"there are {paths}"
    api_error = ApiError(error.status_code, f"{request.method} {request.url.path:.200} is not served; {hint}", INVALID)
    response = error_reply(api_error, request.scope)
    response.headers.update({"allow": allowed} if allowed else {})
    return response


class ErrorBoundary:
    """Middleware to answer exceptions and cancellation with error responses, so the ASGI server logs no traceback."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] != "http":  # such as "lifespan": the ASGI server needs the exception itself
            await self._app(scope, receive, send)
            return
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except ClientDisconnect:  # nobody reads an answer
            pass
        except Exception as error:
            api_error = api_error_of(error, {})
            if not has_started:
                await error_reply(api_error, scope)(scope, receive, send)
        except anyio.get_cancelled_exc_class():  # the server is shutting down
            with anyio.move_on_after(PARTING_SECONDS, shield=True):
                if not has_started:
                    await error_reply(shutdown_error(), scope)(scope, receive, send)
            raise


class LocalNames:
    """Middleware against DNS rebinding: rejects requests with a `Host` other than a local name.

    A malicious web page can make its domain resolve to this machine, and then call this server like one of its pages.
    The middleware guards servers on a local address without API keys.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        headers = scope.get("headers", ())
        host = next((value.decode("latin-1") for name, value in headers if name == b"host"), "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        lacks_host = not host and scope.get("http_version") == "1.0"  # browsers always send it
        if scope["type"] == "http" and not lacks_host and not _is_local(name):
            accepted = ", ".join(sorted(LOCAL_NAMES))
            message = f"this server accepts the hosts {accepted}, got {name!r:.80}; for others, give it API keys"
            await error_reply(ApiError(HTTPStatus.MISDIRECTED_REQUEST, message), scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _is_local(name: str) -> bool:
    plain = name.lower().removesuffix(".")
    return plain in LOCAL_NAMES or plain.endswith(".localhost")


class ApiKeys:
    """Middleware for API keys, sent as `Authorization: Bearer KEY` or `x-api-key: KEY`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]):
        self._app = app
        self._accepted = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] == "http" and path_of(scope) not in OPEN_PATHS and not has_key(scope, self._accepted):
            message = "give an API key of this server, as 'Authorization: Bearer KEY'"
            error = ApiError(HTTPStatus.UNAUTHORIZED, message, code="invalid_api_key")
            await error_reply(error, scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def has_key(scope: Scope, accepted: Sequence[bytes]) -> bool:
    """Return True if a request has one of the accepted keys."""
    headers = dict(scope["headers"])
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    key = token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
    # All keys are compared, so the response time reveals nothing about a partial match.
    return sum(hmac.compare_digest(key, each) for each in accepted) > 0
