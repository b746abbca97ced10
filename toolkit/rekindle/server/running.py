"""A server that runs beside the cells that use its session."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from rekindle.core import markup
from rekindle.core.concurrency.eventual import Eventual
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.threads import Work
from rekindle.core.concurrency.twins import awaitable, blocking
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.core.errors import ConfigError
from rekindle.server.application import app, short_name
from rekindle.server.connections import Connection, Handed, Uvicorn
from rekindle.server.guards import LocalNames
from rekindle.server.served import Served

BACKLOG = 2048
"""How many connections may wait to be taken."""

HIGHEST_PORT = 65535
MOST_GRACE = 24 * 60 * 60
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
"""Addresses at which this machine alone can ask."""


class Server:
    """A server of a session, from `session.serve`. It ends with `close`, with its session, or with the process.

    It has a thread and an event loop of its own, so a cell that computes or blocks does not hold up clients, and cells
    may run under trio.

    Attributes:
        url: where clients find it, such as "http://127.0.0.1:8000"; OpenAI's clients want `url + "/v1"`.
        name: what clients call the model.
        public: whether other machines may reach it, and need no key.
        closed: a feed that is closed once it has ended.
    """

    url: str
    name: str
    public: bool

    def __init__(self, served: ASGIApp, listening: socket.socket, host: str, grace: float, name: str, public: bool):
        port = listening.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self.name, self.public = name, public
        self.closed: Feed[None] = Feed()
        self._listening = listening
        config = uvicorn.Config(
            Handed(served),
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
        )
        self._uvicorn = Uvicorn(config, grace)
        Work(self._run, "server", self.stop)

    def stop(self) -> None:
        """Have the server end as `close` does. Returns at once, and may be called from any thread."""
        self._uvicorn.stop()

    @awaitable("await server.close()")
    def close(self) -> Waits[None]:
        """Take no more connections, and wait until the requests under way have ended, at most as long as `grace` says.

        Those that have not ended by then are cancelled. Idempotent.
        """
        self.stop()
        yield Wait(self.closed)

    close_sync = blocking(close)

    async def __aenter__(self) -> "Server":
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close_sync()

    def __repr__(self) -> str:
        return f"<rekindle.server.Server {'closed' if self.closed.closed else f'at {self.url}'}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        if self.closed.closed:
            return markup.bundle(repr(self), markup.card("Server", "closed"))
        clients = f'base_url="{self.url}/v1", model="{self.name}"'
        facts = markup.facts({"OpenAI clients": clients, "metrics": f"{self.url}/metrics"})
        return markup.bundle(repr(self), markup.card("Server", "serving", facts))

    def _run(self) -> None:
        try:
            asyncio.run(self._uvicorn.serve(sockets=[self._listening]))
        finally:
            self._listening.close()
            self.closed.close()


class PendingServer(Eventual[Server]):
    """A server that is still to be started: `await` it, or enter it with `async with`.

    Args:
        follow: is given what stops the server, and a feed that is closed once it has ended; others as `Session.serve`.
    """

    _gives = Server
    _hint = "it does not run yet; server = await session.serve(...)"

    def __init__(
        self,
        session: Served,
        follow: Callable[[Callable[[], None], Feed[None]], None],
        host: str,
        port: int,
        name: str | None,
        api_keys: Sequence[str],
        origins: Sequence[str],
        grace: float,
    ):
        super().__init__()
        _check_number("grace", grace, float, MOST_GRACE, "; it is in seconds")
        self._name = name or short_name(session.name)
        served, local = app(session, name=self._name, api_keys=api_keys, origins=origins), host in LOCAL_HOSTS
        self._served = LocalNames(served) if local and not api_keys else served
        self._public = not local and not api_keys
        self._follow, self._host, self._port, self._grace = follow, host, port, grace

    def __repr__(self) -> str:
        return "<rekindle server that does not run yet; server = await session.serve(...)>"

    def _make(self) -> Waits[Server]:
        listening = bound(self._host, self._port)
        server = Server(self._served, listening, self._host, self._grace, self._name, self._public)
        self._follow(server.stop, server.closed)
        yield from ()  # there is nothing to wait for: the socket takes connections already
        return server


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections.

    Raises:
        ConfigError: nothing can be bound there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    _check_number("port", port, int, HIGHEST_PORT, "; 0 takes one that is free")
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]  # which has the address once more
        raise ConfigError(
            f"nothing can be served at {host}:{port} ({why}): give another port, of which 0 takes one that "
            "is free, or an address of this machine as host"
        ) from error


def _check_number(name: str, value: Any, kind: type[int | float], most: int, hint: str) -> None:
    """Check that an argument is a number of this type, or an integer, and from 0 to `most`."""
    if not isinstance(value, (int, kind)) or not 0 <= value <= most:
        raise ConfigError(f"{name} must be from 0 to {most}, got {value!r:.80}{hint}")
