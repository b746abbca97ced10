"""The leader's side of a meeting: it listens until all followers have come, and joins them to one group."""

import socket
from collections.abc import Iterable
from contextlib import suppress

from rekindle.concurrency.progress import Progress, Report
from rekindle.concurrency.warning import warn
from rekindle.engine.hosts import joining
from rekindle.engine.hosts.address import Address
from rekindle.engine.hosts.agreement import differences, of_code
from rekindle.engine.hosts.link import Link, LinkLost, greet
from rekindle.errors import ConfigError, HostRefused

LOOK_SECONDS = 0.1


def meet(address: Address, count: int, secret: bytes, report: Report) -> list[Link]:
    """Wait for so many followers, and join them by `jax.distributed`, with this process as the first.

    Args:
        report: called often; what it raises ends the wait.

    Returns:
        The links, in the order of the followers' numbers.

    Raises:
        ConfigError: nobody can listen at the address, or jax has used devices of this process.
        HostRefused: a process has another secret or version, or asks for a number that is not free.
    """
    joining.require_untouched()
    links: dict[int, Link] = {}
    try:
        with _listening(address) as server:
            while True:
                report(Progress("waiting for followers", len(links), count, "followers"))
                if len(links) == count:
                    break
                link = _next(server, secret)
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


def _next(server: socket.socket, secret: bytes) -> Link | None:
    """Return a link to who comes next; None if nobody comes now, or something else than a follower."""
    try:
        connection, peer = server.accept()
    except TimeoutError:
        return None
    try:
        return greet(connection, secret, "leader")
    except LinkLost as error:
        warn(f"{peer[0]}:{peer[1]} has connected to the address where followers are waited for: {error}")
        return None


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
