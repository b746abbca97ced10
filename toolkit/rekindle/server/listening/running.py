"""Server on a thread, alongside notebook cells that use the same session."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from ipaddress import IPv6Address

import uvicorn
from starlette.types import ASGIApp

from rekindle import markup
from rekindle.client.concurrency.eventual import Eventual
from rekindle.client.concurrency.twins import awaitable, blocking
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.threads import Work
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.core.errors import ConfigError
from rekindle.core.store.directory import cache_dir
from rekindle.server.application import application
from rekindle.server.http.access import Access
from rekindle.server.http.exchange import Service
from rekindle.server.http.guards import LocalNames
from rekindle.server.http.limits import Limits
from rekindle.server.listening.connections import Connection, Uvicorn, UvicornApp
from rekindle.server.models.gate import Gate
from rekindle.server.models.served import Models
from rekindle.server.openai.responses.kept import KeptResponses
from rekindle.settings.server import ServerSettings, check_number

BACKLOG = 2048
"""Maximum length of the queue of connections not accepted yet."""

HIGHEST_PORT = 65535


class Server:
    """A server over models, from `session.serve` or `rekindle.serve`.

    It ends with `close`, with its session, or with the process. It has a separate thread and event loop. So a busy or
    blocked cell does not delay clients, and cells may run under trio.

    Attributes:
        url: the address, such as "http://127.0.0.1:8000"; OpenAI's clients take `url + "/v1"`.
        names: the names of the models for clients.
        public: whether other machines may use it without an API key.
        closed: a feed, closed once the server has ended.
    """

    url: str
    names: Sequence[str]
    public: bool

    def __init__(self, asgi_app: ASGIApp, listener: socket.socket, settings: ServerSettings, names: Sequence[str]):
        host, port = settings.host, listener.getsockname()[1]
        scheme = "http" if settings.ssl_certfile is None else "https"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        self.names, self.public = names, not settings.local and not settings.api_keys
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
            timeout_keep_alive=settings.timeout_keep_alive,  # type: ignore[arg-type]  # a number for `call_later`
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
        )
        self._uvicorn = Uvicorn(config, settings.grace)
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
        settings: the settings of the server.
        follow: called with the server's `stop` function and its `closed` feed.

    Raises:
        ConfigError: a setting is invalid.
    """

    _gives = Server
    _hint = "it does not run yet; server = await session.serve(...)"

    def __init__(
        self, models: Models, settings: ServerSettings, follow: Callable[[Callable[[], None], Feed[None]], None]
    ):
        super().__init__()
        check_certificate(settings)
        access = Access(settings.api_keys, settings.admin_keys, settings.origins)
        responses = KeptResponses(cache_dir("responses") if settings.keep_responses else None)
        asgi_app = application(Service(models, Limits(), Gate(), settings.strict), access, responses)
        self._app = LocalNames(asgi_app) if settings.local and not access.api_keys else asgi_app
        self._names = models.bases
        self._settings, self._follow = settings, follow

    def __repr__(self) -> str:
        return "<rekindle server that does not run yet; server = await session.serve(...)>"

    def _make(self) -> Waits[Server]:
        listener = bind(self._settings)
        server = Server(self._app, listener, self._settings, self._names)
        self._follow(server.stop, server.closed)
        yield from ()  # nothing to wait for: the socket accepts connections already
        return server


def check_certificate(settings: ServerSettings) -> None:
    """Check the certificate for HTTPS.

    Raises:
        ConfigError: a file cannot be read, or the key is encrypted or that of another certificate.
    """
    file, key = settings.ssl_certfile, settings.ssl_keyfile
    if file is None:
        if key is not None:
            raise ConfigError(f"ssl_keyfile is the key of a certificate: give ssl_certfile too, got {key!r:.80}")
        return
    try:
        # With a password, OpenSSL does not ask for one in the terminal.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(file, key, password="")
    except OSError as error:  # ssl.SSLError too
        files = " and ".join(repr(str(each)) for each in (file, key) if each is not None)
        raise ConfigError(
            f"{files} must be a certificate with its private key in PEM format, without a passphrase, and cannot "
            f"be used: {error}"
        ) from error


def bind(settings: ServerSettings) -> socket.socket:
    """Return a socket at the address of a server; port 0 picks a free one.

    Raises:
        ConfigError: the address cannot be bound.
    """
    host, port = settings.host, settings.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for_both = family == socket.AF_INET6 and _is_any(host) and socket.has_dualstack_ipv6()
    check_number("port", port, int, HIGHEST_PORT, "; 0 picks a free port")
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=for_both)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # the rest repeats the address
        raise ConfigError(
            f"the server cannot listen at {host}:{port} ({reason}): give another port (0 picks a free one), or an "
            "address of this machine as host"
        ) from error


def _is_any(host: str) -> bool:
    """Return True for the IPv6 address of all interfaces, which serves IPv4 too."""
    try:
        return IPv6Address(host).is_unspecified
    except ValueError:
        return False
