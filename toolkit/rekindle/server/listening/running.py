"""Server on a thread, alongside notebook cells that use the same session."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
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
from rekindle.server.access import Access
from rekindle.server.application import application
from rekindle.server.exchange import Service
from rekindle.server.gate import Gate
from rekindle.server.guards import LocalNames
from rekindle.server.limits import Limits
from rekindle.server.listening.connections import Connection, Uvicorn, UvicornApp
from rekindle.server.models.served import Models
from rekindle.server.responses import KeptResponses

BACKLOG = 2048
"""Maximum length of the queue of connections not accepted yet."""

HIGHEST_PORT = 65535
MOST_GRACE = 24 * 60 * 60
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
"""Addresses reachable from this machine only."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate for HTTPS.

    Attributes:
        file: the file with the certificate and its chain, in PEM format.
        key: the file with its private key; None if `file` contains the key.
    """

    file: str | PathLike[str]
    key: str | PathLike[str] | None

    @classmethod
    def of(cls, file: str | PathLike[str] | None, key: str | PathLike[str] | None) -> "Certificate | None":
        """Return the certificate of two files, or None without files.

        Raises:
            ConfigError: a file cannot be read, or the key is encrypted or not that of the certificate.
        """
        if file is None:
            if key is not None:
                raise ConfigError(f"ssl_keyfile is the key of a certificate: give ssl_certfile too, got {key!r:.80}")
            return None
        try:
            # With a password, OpenSSL does not ask for one in the terminal.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(file, key, password="")
        except OSError as error:  # ssl.SSLError too
            files = " and ".join(repr(str(each)) for each in (file, key) if each is not None)
            raise ConfigError(
                f"{files} must be a certificate with its private key in PEM format, without a passphrase, and cannot "
                f"be used: {error}"
            ) from error
        return cls(file, key)


class Server:
    """A server over models, from `session.serve` or `rekindle.serve`.

    It ends with `close`, with its session, or with the process.

    It has a separate thread and event loop. So a cell that computes or blocks does not delay clients, and cells may run
    under trio.

    Attributes:
        url: the address, such as "http://127.0.0.1:8000"; OpenAI's clients take `url + "/v1"`.
        names: the names of the models for clients.
        public: whether other machines may use it without an API key.
        closed: a feed, closed once the server has ended.
    """

    url: str
    names: Sequence[str]
    public: bool

    def __init__(
        self,
        asgi_app: ASGIApp,
        listener: socket.socket,
        host: str,
        grace: float,
        names: Sequence[str],
        public: bool,
        certificate: Certificate | None,
    ):
        port, scheme = listener.getsockname()[1], "http" if certificate is None else "https"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        self.names, self.public = names, public
        self.closed: Feed[None] = Feed()
        self._listener = listener
        config = uvicorn.Config(
            UvicornApp(asgi_app),
            http=Connection,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            ssl_certfile=None if certificate is None else certificate.file,
            ssl_keyfile=None if certificate is None else certificate.key,
        )
        self._uvicorn = Uvicorn(config, grace)
        Work(self._run, "server", self.stop)

    @property
    def name(self) -> str:
        """The name of the only or the first model."""
        return self.names[0]

    def stop(self) -> None:
        """Start the shutdown of `close` without waiting for it. Thread-safe."""
        self._uvicorn.stop()

    @awaitable("await server.close()")
    def close(self) -> Waits[None]:
        """Stop accepting connections, and wait at most `grace` seconds for the requests in flight.

        The remaining requests are then cancelled. Idempotent.
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
            asyncio.run(self._uvicorn.serve(sockets=[self._listener]))
        finally:
            self._listener.close()
            self.closed.close()


class PendingServer(Eventual[Server]):
    """A server not started yet: `await` it, or enter it with `async with`.

    Args:
        models: the models to serve.
        follow: called with the server's `stop` function and its `closed` feed.
        certificate: the certificate for HTTPS; None for HTTP.
        access: the clients with access.
        responses: the responses for later requests.
        host, port, grace, strict: as in `Session.serve`.
    """

    _gives = Server
    _hint = "it does not run yet; server = await session.serve(...)"

    def __init__(
        self,
        models: Models,
        follow: Callable[[Callable[[], None], Feed[None]], None],
        host: str,
        port: int,
        access: Access,
        grace: float,
        certificate: Certificate | None,
        strict: bool,
        responses: KeptResponses,
    ):
        super().__init__()
        _check_number("grace", grace, float, MOST_GRACE, "; it is in seconds")
        self._certificate = certificate
        self._names = [card.name for card in models.cards() if card.parent is None]
        asgi_app, local = application(Service(models, Limits(), Gate(), responses, strict), access), host in LOCAL_HOSTS
        self._app = LocalNames(asgi_app) if local and not access.api_keys else asgi_app
        self._public = not local and not access.api_keys
        self._follow, self._host, self._port, self._grace = follow, host, port, grace

    def __repr__(self) -> str:
        return "<rekindle server that does not run yet; server = await session.serve(...)>"

    def _make(self) -> Waits[Server]:
        listener = bind(self._host, self._port)
        server = Server(self._app, listener, self._host, self._grace, self._names, self._public, self._certificate)
        self._follow(server.stop, server.closed)
        yield from ()  # nothing to wait for: the socket accepts connections already
        return server


def bind(host: str, port: int) -> socket.socket:
    """Return a socket listening at an address; port 0 picks a free one.

    Raises:
        ConfigError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    _check_number("port", port, int, HIGHEST_PORT, "; 0 picks a free port")
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # the rest repeats the address
        raise ConfigError(
            f"the server cannot listen at {host}:{port} ({reason}): give another port (0 picks a free one), or an "
            "address of this machine as host"
        ) from error


def _check_number(name: str, value: Any, kind: type[int | float], most: int, hint: str) -> None:
    """Raise ConfigError unless `value` is an integer or a number of type `kind`, from 0 to `most`."""
    if not isinstance(value, (int, kind)) or not 0 <= value <= most:
        raise ConfigError(f"{name} must be from 0 to {most}, got {value!r:.80}{hint}")
