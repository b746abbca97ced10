"""The identity, the JSON and the events of all answers."""

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import time
from typing import Any, Final, Protocol

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece
from rekindle.results.generation import Generation
from rekindle.server.common.errors import ApiError

DONE = b"data: [DONE]\n\n"
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
"""Content type of server-sent events."""


@dataclass(frozen=True, slots=True)
class Head:
    """The identity of an answer.

    Attributes:
        id: the unique id.
        created: the time of creation, in seconds since 1970.
        model: the name of the model.
        fingerprint: the fingerprint of the session; empty if the object has none.
    """

    id: str
    created: int
    model: str
    fingerprint: str = ""

    @classmethod
    def new(cls, kind: str, model: str, fingerprint: str = "") -> "Head":
        """Return the head of a new answer, with `kind` as prefix of its id."""
        return cls(f"{kind}-{uuid.uuid4().hex}", int(time()), model, fingerprint)

    def of(self, kind: str) -> dict[str, Any]:
        """Return the first fields of an object of this kind."""
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return head | {"system_fingerprint": self.fingerprint} if self.fingerprint else head


COMMENT: Final = b": ping\n\n"
"""Comment of an event stream, without effect on its events."""


@dataclass(frozen=True, slots=True)
class StreamForm:
    """Form of an API's streams around their events.

    Attributes:
        content_type: the content type.
        ping: a sign of life; empty for an API without one.
        error: returns the last event of a stream after a failure before its first event.
    """

    content_type: str
    ping: bytes
    error: Callable[[ApiError], bytes]


class Chunks(Protocol):
    """Writer of one answer as chunks of a stream. Its choices arrive concurrently, in any order."""

    @property
    def content_type(self) -> str:
        """The content type of the stream."""
        ...

    def piece(self, choice: int, piece: Piece, record: Record) -> list[bytes]:
        """Return the events for a piece of a choice; `record` belongs to the choice's request."""
        ...

    def end(self, choice: int, generation: Generation, record: Record) -> list[bytes]:
        """Return the events for the end of a choice."""
        ...

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """Return the events for the end of the answer."""
        ...

    def error_event(self, error: ApiError) -> bytes:
        """Return the last event of an answer that failed after its start."""
        ...


STEP: Final = 10_000
"""Items or characters of a value that are written at once."""
_LINE_ENDS: Final = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""Escapes for characters valid in JSON strings but treated as line ends by some clients."""


def json_bytes(value: Any) -> bytes:
    """Return a value as one line of JSON in UTF-8, with lone surrogates escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)
    return text.encode("utf-8", "backslashreplace")


def large_json_bytes(value: Any) -> bytes:
    """Return a value as `json_bytes`, in steps, between which other threads run."""
    return b"".join(_pieces(value))


def _pieces(value: Any) -> Iterator[bytes]:
    match value:
        case dict():
            for place, (name, each) in enumerate(value.items()):
                yield (b"," if place else b"{") + json_bytes(name) + b":"
                yield from _pieces(each)
            yield b"}" if value else b"{}"
        case list() | str() if len(value) > STEP:
            begin, end = (b"[", b"]") if isinstance(value, list) else (b'"', b'"')
            yield begin
            for start in range(0, len(value), STEP):
                yield b"," if start and isinstance(value, list) else b""
                yield json_bytes(value[start : start + STEP])[1:-1]
            yield end
        case list() if value and isinstance(value[0], dict | list):
            for place, each in enumerate(value):
                yield b"," if place else b"["
                yield from _pieces(each)
            yield b"]"
        case _:
            yield json_bytes(value)


def event(value: Any) -> bytes:
    """Return a server-sent event with a value as JSON."""
    return b"data: " + json_bytes(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """Return a named server-sent event with a value as JSON."""
    return f"event: {name}\n".encode() + event(value)


def large_named_event(name: str, value: Any) -> bytes:
    """Return a named server-sent event with a value of any size; see `large_json_bytes`."""
    return b"".join([f"event: {name}\ndata: ".encode(), *_pieces(value), b"\n\n"])


def error_events(error: ApiError) -> bytes:
    """Return the last events of a completion that failed after its start."""
    return event(error.body) + DONE


def timestamp(seconds: float) -> str:
    """Return a time, in seconds since 1970, in RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
