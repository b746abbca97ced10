"""A link joins only processes with one secret, and its messages arrive unchanged."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import pytest

from rekindle.core.errors import HostRefused
from rekindle.hosts.link import Frame, Link, LinkLost, Role, greet

SECRET = b"a secret of the tests"


class Recorded:
    """A connection with a record of its output, and with a change of each message on request."""

    def __init__(self, connection: socket.socket, change: Callable[[bytes], bytes] = bytes):
        self._connection, self.change, self.output = connection, change, b""

    def sendall(self, content: bytes) -> None:
        self.output += content
        self._connection.sendall(self.change(content))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.fixture
def connections() -> Iterator[tuple[Recorded, Recorded]]:
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with closing(near), closing(far):
        yield Recorded(near), Recorded(far)


def greeted(
    connections: tuple[Recorded, Recorded],
    secrets: tuple[bytes, bytes] = (SECRET, SECRET),
    roles: tuple[Role, Role] = ("leader", "follower"),
) -> list["Future[Link]"]:
    """Let both ends greet each other at once."""
    with ThreadPoolExecutor(2) as pool:
        each = zip(connections, secrets, roles, strict=True)
        return [pool.submit(greet, connection, secret, role) for connection, secret, role in each]  # type: ignore[arg-type]


def linked(connections: tuple[Recorded, Recorded]) -> tuple[Link, Link]:
    leader, follower = greeted(connections)
    return leader.result(), follower.result()


def test_messages_come_as_they_were_sent_in_order_from_both_sides(connections: tuple[Recorded, Recorded]) -> None:
    leader, follower = linked(connections)
    for number in range(3):
        leader.send({"say": "step", "number": number}, bytes([number]) * 1000)
        follower.send({"say": "ready"})
    for number in range(3):
        assert follower.receive() == Frame({"say": "step", "number": number}, bytes([number]) * 1000)
        assert leader.receive() == Frame({"say": "ready"}, b"")


@pytest.mark.parametrize("wrong", [0, 1])
def test_another_secret_is_refused_on_both_sides(connections: tuple[Recorded, Recorded], wrong: int) -> None:
    secrets = [SECRET, SECRET]
    secrets[wrong] = b"another secret, as long"
    for end in greeted(connections, (secrets[0], secrets[1])):
        with pytest.raises(HostRefused, match="has another secret: give both the same one"):
            end.result()


def test_the_secret_is_never_sent_and_no_two_greetings_are_alike(connections: tuple[Recorded, Recorded]) -> None:
    leader, _ = linked(connections)
    output = b"".join(connection.output for connection in connections)
    assert SECRET not in output
    assert SECRET.hex().encode() not in output
    nonces = [connection.output.partition(b'"nonce": "')[2][:64] for connection in connections]
    assert [len(nonce) for nonce in nonces] == [64, 64]
    for _ in range(2):
        for connection in connections:
            connection.output = b""
        linked(connections)
        assert not any(nonce in connection.output for connection in connections for nonce in nonces)


@pytest.mark.parametrize("roles", [("leader", "leader"), ("follower", "follower")])
def test_two_of_a_kind_are_refused(connections: tuple[Recorded, Recorded], roles: tuple[Role, Role]) -> None:
    for end in greeted(connections, roles=roles):
        with pytest.raises(HostRefused, match="one has to lead, and the others follow"):
            end.result()


def test_a_proof_of_the_leader_is_none_of_a_follower(connections: tuple[Recorded, Recorded]) -> None:
    """Reflect the messages of each end, as somebody without the secret can."""
    near, far = connections
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(greet, near, SECRET, "leader")  # type: ignore[arg-type]
        greeting = far.recv(4096).replace(b'"leader"', b'"follower"')
        far.sendall(len(greeting[8:]).to_bytes(8, "big") + greeting[8:])
        proof = b'{"proof": "' + b"0" * 64 + b'"}'
        far.sendall(len(proof).to_bytes(8, "big") + proof)
        with pytest.raises(HostRefused, match="another secret"):
            leader.result()
    assert b"proof" not in near.output, "the leader proves nothing to who has not proved it first"


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 7 + b"\x02[]", b"\0" * 7 + b"\x02{}", b""])
def test_what_is_no_process_of_rekindle_is_told_apart(connections: tuple[Recorded, Recorded], greeting: bytes) -> None:
    near, far = connections
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(greet, near, SECRET, "leader")  # type: ignore[arg-type]
        far.sendall(greeting)
        with suppress(OSError):  # the other end may have been quick
            far.shutdown(socket.SHUT_WR)
        with pytest.raises(LinkLost):
            leader.result()


def test_a_message_that_was_changed_on_the_way_is_not_taken(connections: tuple[Recorded, Recorded]) -> None:
    leader, follower = linked(connections)
    connections[0].change = lambda content: content.replace(b"seventeen", b"seventy-1")
    leader.send({"say": "enter"}, b"seventeen")
    with pytest.raises(LinkLost, match="changed on the way"):
        follower.receive()


def test_a_message_that_is_repeated_or_sent_back_is_not_taken(connections: tuple[Recorded, Recorded]) -> None:
    leader, follower = linked(connections)
    before = len(connections[0].output)
    leader.send({"say": "gather"})
    message = connections[0].output[before:]
    assert follower.receive().header == {"say": "gather"}
    connections[0].sendall(message)
    with pytest.raises(LinkLost, match="changed on the way"):
        follower.receive()
    connections[1].sendall(message)
    with pytest.raises(LinkLost, match="changed on the way"):
        leader.receive()


def test_an_end_that_is_closed_ends_the_other(connections: tuple[Recorded, Recorded]) -> None:
    leader, follower = linked(connections)
    leader.close()
    with pytest.raises(LinkLost, match="closed"):
        follower.receive()
