"""Leader's side of joining: it listens until all followers have connected, and joins them in one group."""

import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue

from rekindle.core.concurrency.progress import Progress, Report
from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import ConfigError, HostRefused
from rekindle.hosts import joining
from rekindle.hosts.address import Address
from rekindle.hosts.agreement import code_facts, differences
from rekindle.hosts.link import Link, LinkLost, greet

POLL_SECONDS = 0.1
MAX_GREETINGS = 16
"""The most connections greeted at once; others wait to be accepted."""


def meet(address: Address, count: int, secret: bytes, report: Report) -> list[Link]:
    """Wait for `count` followers, and join them by `jax.distributed`, with this process as the first.

    Args:
        address: the address to listen at.
        count: the number of followers.
        secret: the shared secret.
        report: called often with the progress; its exceptions end the wait.

    Returns:
        The links, in the order of the followers' numbers.

    Raises:
        ConfigError: the address cannot be bound, or jax has used devices of this process.
        HostRefused: a follower with the secret has another version, or requests a taken number.

    Warns:
        RuntimeWarning: a stranger has connected, or a follower with another secret; the wait goes on.
    """
    joining.require_untouched()
    links: dict[int, Link] = {}
    try:
        with _listen(address) as server:
            greetings = _Greetings(server, secret)
            while True:
                report(Progress("waiting for followers", len(links), count, "followers"))
                if len(links) == count:
                    break
                link = greetings.next()
                if link is not None:
                    links[_admit(link, count, links)] = link
        port = joining.free_port(address.host)
        for index, link in links.items():
            link.send({"say": "welcome", "index": index, "of": count + 1, "port": port})
        joining.lead(address.host, port, count + 1)
    except LinkLost as error:
        _reject(links.values(), "another follower is gone")
        raise ConfigError(f"a follower was lost before all had joined: {error}. Open the session again") from error
    except BaseException:
        _reject(links.values(), "the leader has given up opening a session")
        raise
    return [links[index] for index in range(1, count + 1)]


def _listen(address: Address) -> socket.socket:
    try:
        server = socket.create_server(address)
    except OSError as error:
        raise ConfigError(f"cannot listen at {address} ({error.strerror}): give Hosts another listen=") from error
    server.settimeout(POLL_SECONDS)
    return server


class _Greetings:
    """Greeter of all connections, each in a separate thread, so a slow one or a stranger delays nobody."""

    def __init__(self, server: socket.socket, secret: bytes):
        self._server, self._secret = server, secret
        self._outcomes: SimpleQueue[tuple[str, Link | Exception]] = SimpleQueue()
        self._active = 0

    def next(self) -> Link | None:
        """Return a link to a newly greeted follower, or None if there is none yet."""
        if self._active < MAX_GREETINGS:
            self._accept()
        try:
            peer, outcome = self._outcomes.get(timeout=0 if self._active < MAX_GREETINGS else POLL_SECONDS)
        except Empty:
            return None
        self._active -= 1
        if isinstance(outcome, Link):
            return outcome
        warn(f"{peer} has connected to the address of followers, and is rejected: {outcome}")
        return None

    def _accept(self) -> None:
        try:
            connection, peer = self._server.accept()
        except TimeoutError:
            return
        self._active += 1
        threading.Thread(
            target=self._greet, args=(connection, f"{peer[0]}:{peer[1]}"), name="rekindle-greeting", daemon=True
        ).start()

    def _greet(self, connection: socket.socket, peer: str) -> None:
        try:
            self._outcomes.put((peer, greet(connection, self._secret, "leader")))
        except (LinkLost, HostRefused) as error:
            self._outcomes.put((peer, error))


def _admit(link: Link, count: int, links: dict[int, Link]) -> int:
    """Return the number of a new follower.

    Raises:
        HostRefused: the follower has another version, or requests a taken number. The follower receives the reason too.
    """
    header = link.receive().header
    index, free = header["index"], [index for index in range(1, count + 1) if index not in links]
    mismatch = differences(code_facts(), header["facts"])
    if mismatch:
        reason = f"the follower at {link.peer} is of another version than its leader (here): {mismatch}"
    elif index is not None and index not in free:
        reason = f"the follower at {link.peer} asks to be process {index} of {count + 1}, but only {free} are free"
    else:
        return free[0] if index is None else int(index)
    _reject([link], reason)
    raise HostRefused(reason)


def _reject(links: Iterable[Link], reason: str) -> None:
    for link in links:
        with suppress(LinkLost):
            link.send({"say": "refused", "why": reason})
        link.close()
