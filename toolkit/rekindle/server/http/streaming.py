"""Streamed answers to clients that may read slowly or disconnect."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from math import inf
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from rekindle.client.handle import Handle
from rekindle.results.generation import Generation
from rekindle.server.common.errors import PARTING_SECONDS, ApiError, api_error_of, shutdown_error
from rekindle.server.common.events import Chunks
from rekindle.server.http.limits import Limits, on_thread

T = TypeVar("T")
_JOINED_BYTES = 1 << 16
"""Bytes from which on chunks are sent without more of them."""
GRACE_SECONDS = 10.0
"""Seconds for a slow client to read the buffered events, and the error about its slowness."""
HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx forwards each event immediately
)


async def run_until_disconnect(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` and return its result; cancel it if the client disconnects first.

    Args:
        receive: the ASGI receive callable of a request, after its body was read.
        work: the async function to run.

    Raises:
        ClientDisconnect: the client disconnects first.
    """
    results: list[T] = []
    errors: list[Exception] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_on_disconnect, receive, tasks.cancel_scope)
        try:
            results.append(await work())
        except Exception as error:  # the task group would wrap it in an exception group
            errors.append(error)
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    if not results:
        raise ClientDisconnect
    return results[0]


async def wait_all(handles: Sequence[Handle]) -> list[Generation]:
    """Wait for requests and return their generations. If the wait fails or is cancelled, cancel all requests."""
    try:
        return [await handle for handle in handles]
    finally:
        cancel(handles)


def cancel(handles: Sequence[Handle]) -> None:
    """Cancel the unfinished requests."""
    for handle in handles:
        handle.cancel()


class EventStream:
    """ASGI response with the events of one or several requests. It starts with the first event.

    A buffer holds events not read yet, so a slow client blocks nobody else. Its bound is for pieces: the few events at
    the end of a choice always find room, in the order of writing. When pieces overflow the buffer, the requests are
    cancelled, and the client receives an error as its last event. If a client reads nothing for
    `limits.unread_seconds`, its stream is cut off.

    Args:
        handles: the requests, one for each choice.
        chunks: the writer of the events.
        fields: the field of the body for each keyword of the session call.
        limits: the bounds on unread events and on the wait for the client.
        finish: awaited with the generations before the last events are sent.
        ends_large: whether the last events may repeat much of the body, and are written on a thread.
    """

    def __init__(
        self,
        handles: Sequence[Handle],
        chunks: Chunks,
        fields: Mapping[str, str],
        limits: Limits,
        finish: Callable[[Sequence[Generation]], Awaitable[None]],
        *,
        ends_large: bool = False,
    ):
        self._handles, self._chunks, self._fields, self._limits = handles, chunks, fields, limits
        self._finish, self._ends_large = finish, ends_large
        self._send_scope = anyio.CancelScope()
        self._error: ApiError | None = None
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events. Raises `ApiError` if the requests fail before the first event."""
        writer, reader = anyio.create_memory_object_stream[bytes](inf)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_on_disconnect, receive, tasks.cancel_scope)
                tasks.start_soon(self._write, writer)
                with self._send_scope:
                    await self._send(reader, send)
                tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():  # the server is shutting down
            with anyio.move_on_after(PARTING_SECONDS, shield=True):
                if self._has_started:
                    await self._end(send, shutdown_error())
            raise
        finally:
            cancel(self._handles)
            writer.close()
            reader.close()
        if self._error is not None and not self._has_started:
            raise self._error

    async def _write(self, writer: MemoryObjectSendStream[bytes]) -> None:
        """Write the events of all requests into the buffer, and close it."""
        async with writer:
            async with anyio.create_task_group() as tasks:
                for choice, handle in enumerate(self._handles):
                    tasks.start_soon(self._write_choice, choice, handle, writer, tasks.cancel_scope)
            if self._error is None:
                try:
                    await self._write_last(writer)
                except Exception as error:
                    self._error = api_error_of(error, self._fields)

    async def _write_last(self, writer: MemoryObjectSendStream[bytes]) -> None:
        generations = [handle.record.result() for handle in self._handles]
        write = partial(self._chunks.last, generations)
        last = await on_thread(write) if self._ends_large else write()
        await self._finish(generations)
        for chunk in last:
            writer.send_nowait(chunk)

    async def _write_choice(
        self, choice: int, handle: Handle, writer: MemoryObjectSendStream[bytes], scope: anyio.CancelScope
    ) -> None:
        try:
            async for piece in handle:
                for chunk in self._chunks.piece(choice, piece, handle.record):
                    if writer.statistics().current_buffer_used >= self._limits.unread:
                        raise anyio.WouldBlock
                    writer.send_nowait(chunk)
                await checkpoint()  # the sender needs a turn: iterating over ready pieces never yields to it
            for chunk in self._chunks.end(choice, handle.record.result(), handle.record):
                writer.send_nowait(chunk)
        except anyio.WouldBlock:
            writer.close()  # no other choice may write behind the chunk that is left out
            message = f"more than {self._limits.unread} chunks were not read, so the request was cancelled; read faster"
            self._fail(ApiError(HTTPStatus.REQUEST_TIMEOUT, message, "slow_reader_error"), scope)
            self._send_scope.deadline = anyio.current_time() + GRACE_SECONDS
        except Exception as error:
            self._fail(api_error_of(error, self._fields), scope)

    def _fail(self, error: ApiError, scope: anyio.CancelScope) -> None:
        self._error = self._error or error
        scope.cancel()

    async def _send(self, reader: MemoryObjectReceiveStream[bytes], send: Send) -> None:
        """Send the buffered events, joined into one body each time, until the buffer closes or the client stalls."""
        async for first in reader:
            if not self._has_started:
                self._has_started = True
                headers = [(b"content-type", self._chunks.content_type.encode()), *HEADERS]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            body = b"".join([first, *_take_available(reader, _JOINED_BYTES - len(first))])
            with anyio.move_on_after(self._limits.unread_seconds) as scope:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if scope.cancelled_caught:
                return
        if self._has_started:
            await self._end(send, self._error)

    async def _end(self, send: Send, error: ApiError | None) -> None:
        end = b"" if error is None else self._chunks.error_event(error)
        await send({"type": "http.response.body", "body": end, "more_body": False})


def _take_available(reader: MemoryObjectReceiveStream[bytes], size: int) -> list[bytes]:
    """Return chunks available without waiting, until they have a size: a large one would be copied to be joined."""
    chunks: list[bytes] = []
    while size > 0:
        try:
            chunks.append(reader.receive_nowait())
        except (anyio.WouldBlock, anyio.EndOfStream):
            break
        size -= len(chunks[-1])
    return chunks


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
