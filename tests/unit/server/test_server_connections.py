"""A server sleeps while nothing happens, and closes connections of clients that only seem to ask or to read."""

import http.client
import itertools
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from uvicorn.server import ServerState

from rekindle.server.listening import connections
from rekindle.server.listening.connections import CHECK_SECONDS, Connection, max_connections
from rekindle.server.listening.running import Server
from rekindle.session.session import Session
from tests.unit.sockets import asking
from tests.waiting import PATIENCE

REQUEST = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


NUMBERS = itertools.count()


class Timer:
    """A later call of a loop."""

    def __init__(self, seconds: float, call: Callable[[], None]):
        self.seconds, self.call, self.cancelled = seconds, call, False
        self._number = next(NUMBERS)

    def when(self) -> float:
        """Return the time of the call: timers of one length end in the order of their beginnings."""
        return self._number

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """A loop with a clock and tasks moved by hand."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.task: Any = None

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> Timer:
        timer = Timer(seconds, lambda: call(*arguments))
        self.timers.append(timer)
        return timer

    def create_task(self, coroutine: Any) -> "Loop":
        self.task = coroutine
        return self

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        """Ignore the callback: the task never ends."""

    def look(self) -> None:
        """Let the time of one look pass."""
        pending = [timer for timer in self.timers if timer.seconds == CHECK_SECONDS and not timer.cancelled]
        self.timers.clear()
        for timer in pending:
            timer.call()


class Transport:
    """A transport with a count of the client's unread bytes."""

    def __init__(self) -> None:
        self.unread, self.closing, self.aborted = 0, False, False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.unread += len(data)

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True


async def health(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class Client:
    """A client and its connection, with a clock turned by hand.

    Args:
        state: of the server; None for a server without other connections.
    """

    def __init__(self, state: ServerState | None = None) -> None:
        self.loop, self.transport = Loop(), Transport()
        config = uvicorn.Config(health, http=Connection, ws="none", lifespan="off", log_config=None, interface="asgi3")
        config.load()
        self.protocol = Connection(config, state or ServerState(), {}, self.loop)  # type: ignore[arg-type]
        self.protocol.connection_made(self.transport)  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        self.protocol.data_received(data)

    def answer(self) -> None:
        """Have the app answer the request."""
        with suppress(StopIteration):
            self.loop.task.send(None)
        assert self.transport.unread

    def stays(self, looks: int) -> bool:
        """Let looks pass; return whether the connection is still open."""
        for _ in range(looks):
            self.loop.look()
        return not self.transport.aborted


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    if client.loop.task is not None:
        client.loop.task.close()


@pytest.mark.parametrize("data", [b"G", REQUEST])
def test_a_client_that_does_not_ask_is_left(client: Client, data: bytes) -> None:
    assert client.stays(looks=0)
    client.send(data)
    assert not client.stays(looks=1)


def test_headers_that_come_byte_by_byte_do_not_keep_a_connection(client: Client) -> None:
    client.send(REQUEST)
    client.loop.look()
    for byte in b"x-slow: 1":
        client.send(bytes([byte]))
    assert not client.stays(looks=1)


def test_an_answer_may_take_as_long_as_it_takes(client: Client) -> None:
    client.send(REQUEST + b"\r\n")
    assert client.stays(looks=9)
    client.answer()
    client.transport.unread = 0
    assert client.stays(looks=1)


def test_a_connection_is_kept_for_the_next_request_until_uvicorns_timer_ends(client: Client) -> None:
    client.send(REQUEST + b"\r\n")
    client.answer()
    client.transport.unread = 0
    timer: Any = client.protocol.timeout_keep_alive_task
    assert timer.seconds == client.protocol.timeout_keep_alive
    assert client.stays(looks=9)
    assert not client.transport.closing
    timer.call()
    assert client.transport.closing


def test_a_client_that_asks_again_in_time_keeps_its_connection(client: Client) -> None:
    for _ in range(5):
        client.send(REQUEST + b"\r\n")
        client.answer()
        client.transport.unread = 0
        assert client.stays(looks=1)


def test_a_body_that_goes_on_after_its_answer_does_not_keep_a_connection(client: Client) -> None:
    client.send(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n")
    client.answer()
    client.transport.unread = 0
    assert client.stays(looks=1)
    client.send(b"more")
    assert not client.stays(looks=1)


def test_an_answer_is_kept_for_as_long_as_its_client_reads(client: Client) -> None:
    client.send(REQUEST + b"\r\n")
    client.answer()
    while client.transport.unread:
        assert client.stays(looks=1)
        client.transport.unread -= 1
    assert client.stays(looks=1)


def test_an_answer_that_its_client_reads_no_further_is_given_up(client: Client) -> None:
    client.send(REQUEST + b"\r\n")
    client.answer()
    assert client.transport.unread
    assert not client.stays(looks=2)


def test_a_kept_connection_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "max_connections", lambda: 2)
    state = ServerState()
    first, second = Client(state), Client(state)
    for client in (first, second):
        client.send(REQUEST + b"\r\n")
    refused = Client(state)
    assert refused.transport.aborted
    state.connections.discard(refused.protocol)
    for client in (second, first):
        client.answer()
        client.transport.unread = 0
    new = Client(state)
    assert second.transport.aborted
    assert not first.transport.aborted
    assert not new.transport.aborted
    for client in (first, second):
        client.loop.task.close()


def test_an_answer_that_nobody_reads_is_given_up_where_the_app_gave_it_up(client: Client) -> None:
    client.send(REQUEST + b"\r\n")
    client.transport.unread = 10
    assert client.stays(looks=3)
    client.transport.close()
    assert not client.stays(looks=2)


def test_nothing_is_left_of_a_connection_that_ended(client: Client) -> None:
    client.transport.close()
    client.protocol.connection_lost(None)
    assert all(timer.cancelled for timer in client.loop.timers)
    assert not client.protocol.connections


@pytest.mark.parametrize("most", [1, 2, 5])
def test_as_many_connections_as_there_may_be_are_served_and_one_more_is_closed(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "max_connections", lambda: most)
    state = ServerState()
    clients = [Client(state) for _ in range(most + 1)]
    assert [client.transport.aborted for client in clients] == [*[False] * most, True]
    clients.pop().protocol.connection_lost(None)
    clients.pop().protocol.connection_lost(None)
    assert not Client(state).transport.aborted, "one has ended"


# On a socket


@pytest.fixture
def server(session: Session) -> Iterator[Server]:
    with session.serve_sync(port=0) as server:
        yield server


def connected(server: Server) -> socket.socket:
    url = urlsplit(server.url)
    return socket.create_connection((url.hostname, url.port), timeout=PATIENCE)


def is_ended(connection: socket.socket) -> bool:
    """Read until the server ends the connection, or raise TimeoutError."""
    with suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass
    return True


def check_health(server: Server) -> http.client.HTTPResponse:
    """Check the health of a server, and return its reply to a client that closes its connection."""
    with closing(asking(server.url, "/health")) as connection:
        reply = connection.getresponse()
        assert (reply.status, reply.read()) == (200, b'{"status":"ok"}')
        return reply


FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "a header without an end": lambda: itertools.repeat(b"x" * 1000),
    "headers without an end": lambda: (b"x-%d: 1\r\n" % place for place in itertools.count()),
    "a path without an end": lambda: itertools.chain([b"GET /"], itertools.repeat(b"a" * 1000)),
    "no HTTP": lambda: itertools.repeat(b"\x00\r\n\r\n"),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_headers_is_cut_off_and_others_are_served(server: Server, kind: str) -> None:
    most = 1 << 26
    with connected(server) as connection:
        size = 0 if "path" in kind or "no " in kind else connection.send(REQUEST)
        with suppress(ConnectionError):
            for piece in FLOODS[kind]():
                size += connection.send(piece)
                assert size < most, "it was read on and on"
        assert is_ended(connection)
    check_health(server)


def test_requests_whose_headers_are_many_or_long_are_refused(server: Server) -> None:
    for headers in (b"x: 1\r\n" * 200_000, b"x: %s\r\n" % (b"1" * 1_000_000)):  # more than comes with one read
        with connected(server) as connection, suppress(ConnectionError):
            connection.sendall(REQUEST + headers + b"\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
    check_health(server)


@pytest.mark.parametrize("data", [b"", b"GET ", REQUEST])
def test_a_client_that_stays_silent_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(connections, "CHECK_SECONDS", 0.01)
        with connected(server) as connection, suppress(ConnectionError):
            connection.sendall(data)
            assert is_ended(connection)
    check_health(server)


def test_connections_are_bounded_so_that_other_files_can_be_opened(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, connected(server) as first:
        patch.setattr(connections, "max_connections", lambda: 1)
        first.sendall(REQUEST)
        with connected(server) as second:
            assert is_ended(second)
        first.sendall(b"connection: close\r\n\r\n")
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    check_health(server)


@pytest.mark.parametrize(("files", "most"), [(1024, 512), (1025, 512), (3, 1), (-1, 2**40)])
def test_half_of_the_files_may_be_connections(monkeypatch: pytest.MonkeyPatch, files: int, most: int) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda of: (files, files))
    assert max_connections() == most or max_connections() > most > files


def test_answers_are_dated(server: Server) -> None:
    date = parsedate_to_datetime(check_health(server).headers["date"])
    assert abs(datetime.now(UTC) - date) < timedelta(hours=1)


def test_an_idle_server_never_wakes_by_itself(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep, select = threading.Event(), selectors.DefaultSelector.select

    def noting(selector: Any, timeout: float | None = None) -> Any:
        if timeout is None and threading.current_thread().name == "rekindle-server":
            asleep.set()  # only another thread or a client can wake it now
        return select(selector, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", noting)
    with session.serve_sync(port=0) as server:
        assert asleep.wait(PATIENCE)
        asleep.clear()
        check_health(server)
        assert asleep.wait(PATIENCE)
