"""Answers as they come: events to a client that may read slowly, or go away."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.types import Receive, Scope, Send

from rekindle.client.handle import Handle
from rekindle.results.generation import Generation
from rekindle.server.limits import Limits
from rekindle.server.refused import PARTING_SECONDS, Refused, ending, refused
from rekindle.server.writing.common import Chunks

T = TypeVar("T")
GRACE_SECONDS = 10.0
"""How long a client that was too slow may take to read that it was."""
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # has nginx hand on each event at once
)


async def unless_gone(receive: Receive, work: Callable[[], Awaitable[T]]) -> T | None:
    """Do work and return what comes of it; None if the client goes away first, which cancels the work.

    Args:
        receive: of a request whose body was read.
    """
    done: list[T] = []
    failed: list[Exception] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
        try:
            done.append(await work())
        except Exception as error:  # which a task group would put into a group of errors
            failed.append(error)
        tasks.cancel_scope.cancel()
    if failed:
        raise failed[0]
    return done[0] if done else None


async def ended(handles: Sequence[Handle]) -> list[Generation]:
    """Wait for the ends of requests. Leaving the wait in any way cancels all of them."""
    try:
        return [await handle for handle in handles]
    finally:
        cancel(handles)


def cancel(handles: Sequence[Handle]) -> None:
    """End the requests that have not ended."""
    for handle in handles:
        handle.cancel()


class EventStream:
    """An ASGI answer with the events of one or several requests. It begins once the first of them has come.

    The events wait in a buffer of bounded size while the client does not read them, and nobody else waits for it. If
    the buffer is full, the requests are cancelled, and the client is told so when it reads on. If it reads nothing at
    all for some seconds, the answer ends where it is.

    Args:
        handles: the requests, one for each choice.
        chunks: writes the events.
        fields: the fields of the body by the keywords that were made of them.
        limits: bounds what waits for the client, and for how long.
    """

    def __init__(self, handles: Sequence[Handle], chunks: Chunks, fields: Mapping[str, str], limits: Limits):
        self._handles, self._chunks, self._fields = handles, chunks, fields
        self._most, self._seconds = limits.unread, limits.unread_seconds
        self._sending = anyio.CancelScope()
        self._failed: Refused | None = None
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events. Raises Refused if the requests fail before the first."""
        into, out = anyio.create_memory_object_stream[bytes](self._most)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
                tasks.start_soon(self._write, into)
                with self._sending:
                    await self._send(out, send)
                tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():  # by a server that ends
            with anyio.move_on_after(PARTING_SECONDS, shield=True):
                if self._begun:
                    await self._end(send, ending())
            raise
        finally:
            cancel(self._handles)
            into.close()
            out.close()
        if self._failed is not None and not self._begun:
            raise self._failed

    async def _write(self, into: MemoryObjectSendStream[bytes]) -> None:
        """Write the events of all requests into the buffer, and close it."""
        async with into:
            async with anyio.create_task_group() as tasks:
                for choice, handle in enumerate(self._handles):
                    tasks.start_soon(self._write_choice, choice, handle, into, tasks.cancel_scope)
            if self._failed is None:
                await _put(into, self._chunks.last([handle.record.result() for handle in self._handles]))

    async def _write_choice(
        self, choice: int, handle: Handle, into: MemoryObjectSendStream[bytes], all_of_them: anyio.CancelScope
    ) -> None:
        try:
            async for piece in handle:
                for chunk in self._chunks.piece(choice, piece, handle.record):
                    into.send_nowait(chunk)
                await checkpoint()  # pieces that are there already do not wait, and would fill the buffer by themselves
            await _put(into, self._chunks.end(choice, handle.record.result(), handle.record))
        except anyio.WouldBlock:
            message = f"more than {self._most} chunks were not read, so the request was cancelled; read faster"
            self._fail(Refused(408, message, "slow_reader_error"), all_of_them)
            self._sending.deadline = anyio.current_time() + GRACE_SECONDS
        except Exception as error:
            self._fail(refused(error, self._fields), all_of_them)

    def _fail(self, why: Refused, all_of_them: anyio.CancelScope) -> None:
        self._failed = self._failed or why
        all_of_them.cancel()

    async def _send(self, out: MemoryObjectReceiveStream[bytes], send: Send) -> None:
        """Send what is in the buffer until it is closed, all that is there at once, or until nobody reads it."""
        async for first in out:
            if not self._begun:
                self._begun = True
                await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
            body = first + b"".join(_at_hand(out))
            with anyio.move_on_after(self._seconds) as reading:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if reading.cancelled_caught:
                return
        if self._begun:
            await self._end(send, self._failed)

    async def _end(self, send: Send, failed: Refused | None) -> None:
        end = b"" if failed is None else self._chunks.failed(failed)
        await send({"type": "http.response.body", "body": end, "more_body": False})


def _at_hand(out: MemoryObjectReceiveStream[bytes]) -> list[bytes]:
    """Return what can be taken without waiting."""
    found: list[bytes] = []
    while True:
        try:
            found.append(out.receive_nowait())
        except (anyio.WouldBlock, anyio.EndOfStream):
            return found


async def _put(into: MemoryObjectSendStream[bytes], chunks: Sequence[bytes]) -> None:
    for chunk in chunks:
        await into.send(chunk)


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
