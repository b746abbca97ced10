"""A link between two processes: frames of JSON and bytes, each with a code that only who knows the secret can make.

The secret itself is never sent. Both sides send a number that was never used before, and prove that they can make an
HMAC of both numbers; the keys of all further frames are made of them too. A frame has a number, so none can be
repeated, left out or reordered. What is sent can be read by who is on the way.
"""

import hmac
import json
import secrets
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

from rekindle.core.errors import HostRefused

PROTOCOL: Final = 1
GREETING_SECONDS: Final = 10.0
LONGEST_GREETING: Final = 4096
LONGEST_HEADER: Final = 1 << 24
LONGEST_BODY: Final = 1 << 34
LENGTHS: Final = struct.Struct(">IQ")
NUMBER: Final = struct.Struct(">Q")
ALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
"""Options by which a machine that has gone without a word is noticed after some ten seconds."""

Role = Literal["leader", "follower"]


class LinkLost(Exception):
    """The other process is gone, or what comes from there is not from it."""


class Frame(NamedTuple):
    """A message.

    Attributes:
        header: plain data; what is said is its "say".
        body: bytes, such as those of an array.
    """

    header: dict[str, Any]
    body: bytes


class Link:
    """One end of a link, whose other end has proved that it knows the secret.

    One thread may send while another receives.

    Args:
        connection: closed by `close`.
        keys: that of what is sent, and that of what is received.

    Attributes:
        peer: the address of the other end.
    """

    def __init__(self, connection: socket.socket, keys: tuple[bytes, bytes]):
        self.peer = "{}:{}".format(*connection.getpeername()[:2])
        self._connection = connection
        self._keys = keys
        self._sent = self._received = 0
        self._lock = threading.Lock()

    def send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message, which blocks while the other end is slow.

        Raises:
            LinkLost: the other end is gone.
        """
        text = json.dumps(header).encode()
        with self._lock:
            code = _code(self._keys[0], self._sent, text, body)
            self._sent += 1
            try:
                self._connection.sendall(LENGTHS.pack(len(text), len(body)) + code + text)
                self._connection.sendall(body)
            except OSError as error:
                raise LinkLost(f"it cannot be written to ({error})") from error

    def receive(self) -> Frame:
        """Wait for the next message.

        Raises:
            LinkLost: the other end is gone, or somebody has changed the message.
        """
        try:
            length, body_length = LENGTHS.unpack(_exactly(self._connection, LENGTHS.size))
            code = _exactly(self._connection, sha256().digest_size)
            if length > LONGEST_HEADER or body_length > LONGEST_BODY:
                raise LinkLost("a message is longer than any that is sent")
            text, body = _exactly(self._connection, length), _exactly(self._connection, body_length)
        except OSError as error:
            raise LinkLost(f"it cannot be read from ({error})") from error
        if not hmac.compare_digest(code, _code(self._keys[1], self._received, text, body)):
            raise LinkLost("a message is not what was sent")
        self._received += 1
        return Frame(json.loads(text), body)

    def close(self) -> None:
        """Close the link, also under a thread that waits for a message."""
        _shut(self._connection)
        self._connection.close()


def greet(connection: socket.socket, secret: bytes, role: Role) -> Link:
    """Find out whether the other end knows the secret, and prove that this one does, within `GREETING_SECONDS`.

    Args:
        connection: connected, and new; closed if there is no link.
        role: this process's own.

    Raises:
        LinkLost: the other end is gone, or it is no process of Rekindle.
        HostRefused: it has another secret, or another way to greet.
    """
    mine = secrets.token_hex(32)
    late = threading.Timer(GREETING_SECONDS, _shut, [connection])  # a timeout of the socket is one of each read
    late.daemon = True
    late.start()
    try:
        connection.settimeout(GREETING_SECONDS)
        _say(connection, {"rekindle": PROTOCOL, "role": role, "nonce": mine})
        theirs = _heard(connection)
        _require_other(theirs, role)
        nonces = (mine, theirs["nonce"]) if role == "leader" else (theirs["nonce"], mine)
        _prove(connection, secret, role, nonces)
        connection.settimeout(None)
        _notice_silence(connection)
        out, back = (_proof(secret, f"frames of the {side}", nonces) for side in (role, _other(role)))
        return Link(connection, (bytes.fromhex(out), bytes.fromhex(back)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        connection.close()
        raise LinkLost(f"it does not greet as a process of Rekindle does ({error})") from error
    except BaseException:
        connection.close()
        raise
    finally:
        late.cancel()


def _shut(connection: socket.socket) -> None:
    """End what waits for a connection in other threads."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _prove(connection: socket.socket, secret: bytes, role: Role, nonces: tuple[str, str]) -> None:
    """Exchange proofs; the follower goes first, so that nobody can have the leader make one."""
    if role == "follower":
        _say(connection, {"proof": _proof(secret, role, nonces)})
    answer = _heard(connection)
    if not hmac.compare_digest(str(answer.get("proof")), _proof(secret, _other(role), nonces)):
        if role == "leader":
            _say(connection, {"refused": "secret"})
        raise HostRefused(
            f"the {_other(role)} at {'{}:{}'.format(*connection.getpeername()[:2])} has another secret: give both the "
            "same one, by secret= or REKINDLE_SECRET, or let both use one cache directory, which has one"
        )
    if role == "leader":
        _say(connection, {"proof": _proof(secret, role, nonces)})


def _require_other(greeting: Mapping[str, Any], role: Role) -> None:
    if greeting["rekindle"] != PROTOCOL:
        raise HostRefused("the other process has another version of Rekindle: install the same one for both")
    if greeting["role"] != _other(role):
        raise HostRefused(f"both processes would be the {role}; one has to lead, and the others follow")


def _other(role: Role) -> Role:
    return "follower" if role == "leader" else "leader"


def _proof(secret: bytes, what: str, nonces: tuple[str, str]) -> str:
    return hmac.new(secret, json.dumps([PROTOCOL, what, *nonces]).encode(), sha256).hexdigest()


def _code(key: bytes, number: int, header: bytes, body: bytes) -> bytes:
    code = hmac.new(key, NUMBER.pack(number) + LENGTHS.pack(len(header), len(body)) + header, sha256)
    code.update(body)
    return code.digest()


def _say(connection: socket.socket, said: Mapping[str, Any]) -> None:
    text = json.dumps(said).encode()
    connection.sendall(NUMBER.pack(len(text)) + text)


def _heard(connection: socket.socket) -> dict[str, Any]:
    (length,) = NUMBER.unpack(_exactly(connection, NUMBER.size))
    if length > LONGEST_GREETING:
        raise ValueError("a greeting is short")
    said = json.loads(_exactly(connection, length))
    if not isinstance(said, dict):
        raise TypeError("a greeting is an object")
    return said


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Return the next bytes.

    Raises:
        LinkLost: there are fewer.
    """
    found = bytearray(size)
    view = memoryview(found)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise LinkLost("its end of the link is closed")
        view = view[got:]
    return bytes(found)


def _notice_silence(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in ALIVE.items():
        if hasattr(socket, name):  # not every system has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
