"""The bytes of a request's body: within bounds, and decoded."""

import zlib
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from math import inf
from typing import Final
from zlib import decompressobj

import anyio
from starlette.requests import Request

from rekindle.server.common.errors import ENCODINGS, ApiError, invalid_field
from rekindle.server.common.fields import LARGE
from rekindle.server.http.limits import Limits, on_thread

GZIP: Final = 16 + zlib.MAX_WBITS
"""The windows of zlib for data with the header of gzip."""
WINDOWS: Final = {
    "gzip": (GZIP,),
    "x-gzip": (GZIP,),
    "deflate": (zlib.MAX_WBITS, -zlib.MAX_WBITS),  # some clients leave out the header of zlib
}
"""The windows of zlib for each encoding, in the order to try."""

MOST_STREAMS: Final = 64
"""The most streams of gzip in one body; each one is a copy of the rest."""


async def _nothing() -> None:
    """Do nothing for a body that is dropped at once."""


async def read_body(request: Request, limits: Limits, grow: Callable[[], Awaitable[None]] = _nothing) -> bytes:
    """Return the body of a request, decoded by its content encoding.

    Args:
        request: the request.
        limits: the bounds.
        grow: awaited before the rest of a large body is received, or a large body is returned.

    Raises:
        ApiError: the body is too large, also decoded, arrives too slowly, or has an encoding that cannot be read.
    """
    encodings = [each for each in _encodings_of(request) if each != "identity"]
    if len(encodings) > 1 or not set(encodings) <= WINDOWS.keys():
        message = (
            f"the body has the content encoding {', '.join(encodings)!r:.80}; it may be one of {ENCODINGS}, or none"
        )
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)
    data = await _read(request, limits, grow)
    if not encodings or not data:
        return data
    decoded = await on_thread(partial(_decoded, data, encodings[0], limits.body_bytes))
    if len(data) < LARGE <= len(decoded):
        await grow()
    return decoded


def _encodings_of(request: Request) -> list[str]:
    values = ",".join(request.headers.getlist("content-encoding")).lower().split(",")
    return [each.strip() for each in values if each.strip()]


async def _read(request: Request, limits: Limits, grow: Callable[[], Awaitable[None]]) -> bytes:
    size, is_large = 0, False
    pieces: list[bytes] = []
    with anyio.move_on_after(limits.body_seconds) as time:
        async with aclosing(request.stream()) as stream:
            async for piece in stream:
                size += len(piece)
                if size > limits.body_bytes:
                    raise _too_large(limits.body_bytes)
                pieces.append(piece)
                if size >= LARGE and not is_large:
                    is_large, time.deadline = True, inf
                    await grow()
                    time.deadline = anyio.current_time() + limits.body_seconds
        return b"".join(pieces)
    raise ApiError(HTTPStatus.REQUEST_TIMEOUT, f"the body must arrive within {limits.body_seconds:g} seconds")


def _decoded(data: bytes, encoding: str, most: int) -> bytes:
    """Return the decoded body of at most `most` bytes."""
    error: Exception | None = None
    for window in WINDOWS[encoding]:
        try:
            return _inflated(data, window, most)
        except zlib.error as raised:
            error = error or raised
    raise invalid_field(None, f"the body has the content encoding {encoding}, and is not {encoding}: {error}")


def _inflated(data: bytes, window: int, most: int) -> bytes:
    """Decompress one stream or, for gzip, several in a row.

    Raises:
        zlib.error: the data is damaged or cut.
        ApiError: it is more than `most` bytes.
    """
    parts: list[bytes] = []
    size = 0
    for _ in range(MOST_STREAMS):
        stream = decompressobj(window)
        part = stream.decompress(data, most - size + 1)
        size += len(part)
        if size > most:
            raise _too_large(most)
        if not stream.eof:
            raise zlib.error("it is cut")
        parts.append(part)
        data = stream.unused_data
        if not data:
            return b"".join(parts)
        if window != GZIP:
            break
    raise zlib.error("there is more behind its end")


def _too_large(most: int) -> ApiError:
    return ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body may have at most {most} bytes")
