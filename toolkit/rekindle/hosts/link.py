"""Authenticated link between two processes: frames of JSON and bytes, each with an HMAC.

The secret itself is never sent. Both sides send a nonce, and prove knowledge of the secret by an HMAC of both nonces.
The keys of all further frames are derived from the nonces too. Frames are numbered, so none can be repeated, dropped or
reordered. Frames are not encrypted.
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
"""Socket options to notice a silently lost machine after about ten seconds."""

Role = Literal["leader", "follower"]


class LinkLost(Exception):
    """The other process is gone, or a message is not authentic."""


class Frame(NamedTuple):
    """A message.

    Attributes:
        header: plain data; its "say" is the kind of the message.
        body: bytes, such as an array's.
    """

    header: dict[str, Any]
    body: bytes


class Link:
    """One end of a link, after the other end has proved its knowledge of the secret.

    One thread may send while another receives.

    Args:
        connection: the socket, closed by `close`.
        keys: the HMAC keys for sending and for receiving.

    Attributes:
        peer: the address of the other end.
    """

    def __init__(self, connection: socket.socket, keys: tuple[bytes, bytes]):
        self.peer = "{}:{}".format(*connection.getpeername()[:2])
        self._connection = connection
        self._keys = keys
        self._send_count = self._receive_count = 0
        self._lock = threading.Lock()

    def send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message; blocks while the other end is slow.

        Raises:
            LinkLost: the other end is gone.
        """
        text = json.dumps(header).encode()
        with self._lock:
            code = _code(self._keys[0], self._send_count, text, body)
            self._send_count += 1
            try:
                self._connection.sendall(LENGTHS.pack(len(text), len(body)) + code + text)
                self._connection.sendall(body)
            except OSError as error:
                raise LinkLost(f"it cannot be written to ({error})") from error

    def receive(self) -> Frame:
        """Wait for the next message.

        Raises:
            LinkLost: the other end is gone, or the message was changed on the way.
        """
        try:
            length, body_length = LENGTHS.unpack(_read_exactly(self._connection, LENGTHS.size))
            code = _read_exactly(self._connection, sha256().digest_size)
            if length > LONGEST_HEADER or body_length > LONGEST_BODY:
                raise LinkLost("a message is longer than the limit")
            text, body = _read_exactly(self._connection, length), _read_exactly(self._connection, body_length)
        except OSError as error:
            raise LinkLost(f"it cannot be read from ({error})") from error
        if not hmac.compare_digest(code, _code(self._keys[1], self._receive_count, text, body)):
            raise LinkLost("a message was changed on the way")
        self._receive_count += 1
        return Frame(json.loads(text), body)

    def close(self) -> None:
        """Close the link, and end a wait for a message in another thread."""
        _shut(self._connection)
        self._connection.close()


def greet(connection: socket.socket, secret: bytes, role: Role) -> Link:
    """Authenticate both ends of a new connection within `GREETING_SECONDS`, and return the link.

    Args:
        connection: a new, connected socket; closed on an error.
        secret: the shared secret.
        role: the role of this process.

    Raises:
        LinkLost: the other end is gone, or is not a process of Rekindle.
        HostRefused: the other end has another secret or protocol, or the same role.
    """
    nonce = secrets.token_hex(32)
    timer = threading.Timer(GREETING_SECONDS, _shut, [connection])  # a socket timeout bounds each read only
    timer.daemon = True
    timer.start()
    try:
        connection.settimeout(GREETING_SECONDS)
        _send_greeting(connection, {"rekindle": PROTOCOL, "role": role, "nonce": nonce})
        greeting = _receive_greeting(connection)
        _require_other(greeting, role)
        nonces = (nonce, greeting["nonce"]) if role == "leader" else (greeting["nonce"], nonce)
        _prove(connection, secret, role, nonces)
        connection.settimeout(None)
        _enable_keepalive(connection)
        sending, receiving = (_proof(secret, f"frames of the {side}", nonces) for side in (role, _other(role)))
        return Link(connection, (bytes.fromhex(sending), bytes.fromhex(receiving)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        connection.close()
        raise LinkLost(f"it does not greet like a process of Rekindle ({error})") from error
    except BaseException:
        connection.close()
        raise
    finally:
        timer.cancel()


def _shut(connection: socket.socket) -> None:
    """Shut a connection down, which ends its waits in other threads."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _prove(connection: socket.socket, secret: bytes, role: Role, nonces: tuple[str, str]) -> None:
    """Exchange proofs. The follower goes first, so a stranger cannot obtain a proof from the leader."""
    if role == "follower":
        _send_greeting(connection, {"proof": _proof(secret, role, nonces)})
    answer = _receive_greeting(connection)
    if not hmac.compare_digest(str(answer.get("proof")), _proof(secret, _other(role), nonces)):
        if role == "leader":
            _send_greeting(connection, {"refused": "secret"})
        raise HostRefused(
            f"the {_other(role)} at {'{}:{}'.format(*connection.getpeername()[:2])} has another secret: give both the "
            "same one, by secret= or REKINDLE_SECRET, or let both use one cache directory, which has one"
        )
    if role == "leader":
        _send_greeting(connection, {"proof": _proof(secret, role, nonces)})


def _require_other(greeting: Mapping[str, Any], role: Role) -> None:
    if greeting["rekindle"] != PROTOCOL:
        raise HostRefused("the other process has another version of Rekindle: install the same one for both")
    if greeting["role"] != _other(role):
        raise HostRefused(f"both processes are the {role}; one has to lead, and the others follow")


def _other(role: Role) -> Role:
    return "follower" if role == "leader" else "leader"


def _proof(secret: bytes, purpose: str, nonces: tuple[str, str]) -> str:
    return hmac.new(secret, json.dumps([PROTOCOL, purpose, *nonces]).encode(), sha256).hexdigest()


def _code(key: bytes, number: int, header: bytes, body: bytes) -> bytes:
    code = hmac.new(key, NUMBER.pack(number) + LENGTHS.pack(len(header), len(body)) + header, sha256)
    code.update(body)
    return code.digest()


def _send_greeting(connection: socket.socket, greeting: Mapping[str, Any]) -> None:
    text = json.dumps(greeting).encode()
    connection.sendall(NUMBER.pack(len(text)) + text)


def _receive_greeting(connection: socket.socket) -> dict[str, Any]:
    (length,) = NUMBER.unpack(_read_exactly(connection, NUMBER.size))
    if length > LONGEST_GREETING:
        raise ValueError("a greeting is short")
    greeting = json.loads(_read_exactly(connection, length))
    if not isinstance(greeting, dict):
        raise TypeError("a greeting is an object")
    return greeting


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    """Read the next `size` bytes.

    Raises:
        LinkLost: the connection ended earlier.
    """
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise LinkLost("its end of the link is closed")
        view = view[count:]
    return bytes(buffer)


def _enable_keepalive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in ALIVE.items():
        if hasattr(socket, name):  # some systems lack some options
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
