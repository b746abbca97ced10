"""The leader's side of a meeting: it listens until all followers have come, and joins them to one group."""

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
from rekindle.hosts.agreement import differences, of_code
from rekindle.hosts.link import Link, LinkLost, greet

LOOK_SECONDS = 0.1
MOST_GREETINGS = 16
"""As many connections are greeted at once; others wait to be accepted."""


def meet(address: Address, count: int, secret: bytes, report: Report) -> list[Link]:
    """Wait for so many followers, and join them by `jax.distributed`, with this process as the first.

    Args:
        report: called often; what it raises ends the wait.

    Returns:
        The links, in the order of the followers' numbers.

    Raises:
        ConfigError: nobody can listen at the address, or jax has used devices of this process.
        HostRefused: a follower that knows the secret is of another version, or asks for a number that is not free.

    Warns:
        RuntimeWarning: somebody else has connected, or a follower with another secret; the wait goes on.
    """
    joining.require_untouched()
    links: dict[int, Link] = {}
    try:
        with _listening(address) as server:
            greetings = _Greetings(server, secret)
            while True:
                report(Progress("waiting for followers", len(links), count, "followers"))
                if len(links) == count:
                    break
                link = greetings.next()
                if link is not None:
                    links[_admitted(link, count, links)] = link
        port = joining.free_port(address.host)
        for index, link in links.items():
            link.send({"say": "welcome", "index": index, "of": count + 1, "port": port})
        joining.lead(address.host, port, count + 1)
    except LinkLost as error:
        _turn_away(links.values(), "another follower is gone")
        raise ConfigError(f"a follower was gone before all had come: {error}. Open the session again") from error
    except BaseException:
        _turn_away(links.values(), "the leader has given up to open a session")
        raise
    return [links[index] for index in range(1, count + 1)]


def _listening(address: Address) -> socket.socket:
    try:
        server = socket.create_server(address)
    except OSError as error:
        raise ConfigError(f"nobody can listen at {address} ({error.strerror}): give Hosts another listen=") from error
    server.settimeout(LOOK_SECONDS)
    return server


class _Greetings:
    """Greets whoever connects, each in a thread, so that who is slow or no follower holds up nobody."""

    def __init__(self, server: socket.socket, secret: bytes):
        self._server, self._secret = server, secret
        self._ended: SimpleQueue[tuple[str, Link | Exception]] = SimpleQueue()
        self._running = 0

    def next(self) -> Link | None:
        """Return a link to a follower that has greeted; None if none has for now."""
        if self._running < MOST_GREETINGS:
            self._accept()
        try:
            peer, outcome = self._ended.get(timeout=0 if self._running < MOST_GREETINGS else LOOK_SECONDS)
        except Empty:
            return None
        self._running -= 1
        if isinstance(outcome, Link):
            return outcome
        warn(f"{peer} has connected to the address where followers are waited for: {outcome}")
        return None

    def _accept(self) -> None:
        try:
            connection, peer = self._server.accept()
        except TimeoutError:
            return
        self._running += 1
        threading.Thread(
            target=self._greet, args=(connection, f"{peer[0]}:{peer[1]}"), name="rekindle-greeting", daemon=True
        ).start()

    def _greet(self, connection: socket.socket, peer: str) -> None:
        try:
            self._ended.put((peer, greet(connection, self._secret, "leader")))
        except (LinkLost, HostRefused) as error:
            self._ended.put((peer, error))


def _admitted(link: Link, count: int, taken: dict[int, Link]) -> int:
    """Return the number that a follower gets.

    Raises:
        HostRefused: it is of another version, or asks for a number that it cannot have; it is told so.
    """
    said = link.receive().header
    index, free = said["index"], [index for index in range(1, count + 1) if index not in taken]
    unlike = differences(of_code(), said["facts"])
    if unlike:
        why = f"the follower at {link.peer} is of another version than its leader (here) is: {unlike}"
    elif index is not None and index not in free:
        why = f"the follower at {link.peer} asks to be process {index}, and free are {free} of {count + 1}"
    else:
        return free[0] if index is None else int(index)
    _turn_away([link], why)
    raise HostRefused(why)


def _turn_away(links: Iterable[Link], why: str) -> None:
    for link in links:
        with suppress(LinkLost):
            link.send({"say": "refused", "why": why})
        link.close()
