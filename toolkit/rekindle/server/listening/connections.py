"""Uvicorn's server and connections, without wake-ups while idle and with timeouts for unused connections."""

import asyncio
import socket
import sys
from contextlib import suppress
from email.utils import formatdate
from urllib.parse import unquote

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rekindle.core.concurrency.mailbox import Mailbox
from rekindle.server.common.errors import PARTING_SECONDS

CHECK_SECONDS = 15.0
"""Seconds between checks of a connection. One that waits for its client, unchanged since the last check, is closed."""
WINDOWS_CONNECTIONS = 4096
"""Limit on connections on Windows, where sockets do not count as open files of a process."""


class Uvicorn(uvicorn.Server):
    """Server without a polling loop; uvicorn's polls for shutdown ten times a second.

    Args:
        grace: seconds for requests in flight to finish on shutdown. The remaining ones are then cancelled, and
            `2 * PARTING_SECONDS` later their connections are aborted.
    """

    def __init__(self, config: uvicorn.Config, grace: float):
        super().__init__(config)
        self._grace = grace
        self._stop_requests: Mailbox[None] = Mailbox()

    def stop(self) -> None:
        """Start a graceful shutdown. Returns immediately and is thread-safe."""
        self._stop_requests.put(None)

    async def main_loop(self) -> None:
        """Wait until `stop` is called."""
        await self._stop_requests.receive()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down gracefully; after `grace` seconds, cancel the remaining requests and then abort connections."""
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
    """Connection with the timeouts missing in uvicorn.

    Uvicorn waits without limit for the rest of a request's headers, for a body after its response, and for a client to
    read the rest of a response. The app limits the time for a body. Over the limit on connections, the one without a
    request for the longest time is closed for a new one, or else the new one, so the process can open other files.
    """

    _check_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start serving a connection."""
        super().connection_made(transport)
        if len(self.connections) > max_connections() and (waiting := self._longest_kept()) is not None:
            waiting.transport.abort()
            self.connections.discard(waiting)
        elif len(self.connections) > max_connections():
            transport.abort()
            return
        self._check(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop a closed connection and its timer."""
        if self._check_timer is not None:
            self._check_timer.cancel()
        super().connection_lost(exc)

    def _longest_kept(self) -> "Connection | None":
        """Return the connection kept open for the longest time since its last response; None without one."""
        timers = {each: each.timeout_keep_alive_task for each in self.connections if isinstance(each, Connection)}
        ends = {
            each: task.when() for each, task in timers.items() if task is not None and not each.transport.is_closing()
        }
        return min(ends, key=lambda each: ends[each], default=None)

    @property
    def _is_kept(self) -> bool:
        """True between a response that the client has read and its next request: uvicorn ends this by its timer."""
        has_timer = self.timeout_keep_alive_task is not None and not self.transport.is_closing()
        return has_timer and self.conn.their_state is h11.IDLE and not self.transport.get_write_buffer_size()

    def _check(self, before: tuple[object, int] | None) -> None:
        """Close the connection if it waits, unchanged since the last check; otherwise schedule the next check."""
        has_no_request = self.cycle is None
        waits = has_no_request or self.cycle.response_complete or self.transport.is_closing()
        now = (self.cycle, self.transport.get_write_buffer_size()) if waits and not self._is_kept else None
        if now is not None and now == before:
            self.transport.abort()
        else:
            self._check_timer = self.loop.call_later(CHECK_SECONDS, self._check, now)


def max_connections() -> int:
    """Return the limit on open connections: half the process's limit on open files."""
    if sys.platform == "win32":
        return WINDOWS_CONNECTIONS
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most // 2


class UvicornApp:
    """Adapter between uvicorn and the app.

    It adds the `Date` header; uvicorn itself would wake up every second for it. It swallows cancellation; uvicorn would
    log it with all stacks. It accepts an absolute URL as request target, as clients send to a proxy.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""

        async def send_with_date(message: Message) -> None:
            if message["type"] == "http.response.start":
                date = (b"date", formatdate(usegmt=True).encode())
                message = {**message, "headers": [*message.get("headers", ()), date]}
            await send(message)

        with suppress(asyncio.CancelledError):
            await self._app(in_origin_form(scope), receive, send_with_date)


def in_origin_form(scope: Scope) -> Scope:
    """Return a scope with a path as request target; an absolute URL's host becomes the `Host` header (RFC 9112)."""
    raw = scope.get("raw_path") or b"/"
    if raw.startswith(b"/") or b"://" not in raw:
        return scope
    host, slash, path = raw.partition(b"://")[2].partition(b"/")
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    path = slash + path or b"/"
    return {**scope, "raw_path": path, "path": unquote(path.decode("ascii")), "headers": [(b"host", host), *headers]}
