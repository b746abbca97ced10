"""What uvicorn leaves open: it sleeps while nothing happens, and ends connections that nobody uses."""

import asyncio
import socket
import sys
from contextlib import suppress
from email.utils import formatdate
from urllib.parse import unquote

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rekindle.core.concurrency.mailbox import Mailbox
from rekindle.server.refused import PARTING_SECONDS

LOOK_SECONDS = 15.0
"""How often a connection is looked at. One that is not being answered may stay as it is from one look to the next."""
WINDOWS_CONNECTIONS = 4096
"""The most connections at once on Windows, where open sockets are not counted among the files of a process."""


class Uvicorn(uvicorn.Server):
    """A server that wakes for its connections alone; uvicorn's own looks ten times a second whether it is to end.

    Args:
        grace: how many seconds requests under way have to end when the server does. Those that have not ended then are
            cancelled, and some seconds later their connections are closed.
    """

    def __init__(self, config: uvicorn.Config, grace: float):
        super().__init__(config)
        self._grace = grace
        self._stopping: Mailbox[None] = Mailbox()

    def stop(self) -> None:
        """Have the server end in order. Returns at once, and may be called from any thread."""
        self._stopping.put(None)

    async def main_loop(self) -> None:
        """Wait until the server is to end."""
        await self._stopping.receive()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End in order, and what has not ended in time before that."""
        later = asyncio.get_running_loop().call_later
        timers = later(self._grace, self._cancel), later(self._grace + 2 * PARTING_SECONDS, self._abort)
        await super().shutdown(sockets)
        for timer in timers:
            timer.cancel()

    def _cancel(self) -> None:
        for task in tuple(self.server_state.tasks):
            task.cancel()

    def _abort(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()


class Connection(H11Protocol):
    """A connection that is closed where uvicorn would keep it for ever.

    That is where a client does not send all of its request's headers, goes on with a body that has been answered, or
    does not read the rest of an answer. How long a body may take to come is for the app to say. A connection that is
    one too many is closed at once, so that the process can open other files.
    """

    _look_later: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve a connection."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
        else:
            self._look(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that has ended."""
        if self._look_later is not None:
            self._look_later.cancel()
        super().connection_lost(exc)

    def _look(self, before: tuple[object, int] | None) -> None:
        """Close the connection if it is not being answered, and is as it was before; else look again later."""
        unasked = self.cycle is None  # as long as no request has come
        idle = unasked or self.cycle.response_complete or self.transport.is_closing()
        now = (self.cycle, self.transport.get_write_buffer_size()) if idle else None
        if now is not None and now == before:
            self.transport.abort()
        else:
            self._look_later = self.loop.call_later(LOOK_SECONDS, self._look, now)


def most_connections() -> int:
    """Return how many connections a server may have: half as many as the process may open files."""
    if sys.platform == "win32":
        return WINDOWS_CONNECTIONS
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most // 2


class Handed:
    """The app as it is handed to uvicorn.

    It gives each answer its date, for which uvicorn would wake every second, and says nothing of being cancelled, which
    uvicorn would log with all stacks. A target may be a whole URL, as clients of a proxy send it.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                date = (b"date", formatdate(usegmt=True).encode())
                message = {**message, "headers": [*message.get("headers", ()), date]}
            await send(message)

        with suppress(asyncio.CancelledError):
            await self._app(in_origin_form(scope), receive, sent)


def in_origin_form(scope: Scope) -> Scope:
    """Return the scope of a request with a path for its target; the host of a URL is that of the request (RFC 9112)."""
    raw = scope.get("raw_path") or b"/"
    if raw.startswith(b"/") or b"://" not in raw:
        return scope
    host, slash, path = raw.partition(b"://")[2].partition(b"/")
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    path = slash + path or b"/"
    return {**scope, "raw_path": path, "path": unquote(path.decode("ascii")), "headers": [(b"host", host), *headers]}
