"""A client that goes away or does not read costs only its own request, and its slot and pages are free again."""

from typing import Any, cast

import anyio
import pytest
from anyio.abc import TaskGroup

from rekindle.client.handle import Handle
from rekindle.server import Limits, app
from rekindle.server.common.errors import ApiError
from rekindle.server.http.streaming import EventStream, _take_available
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, fake_session
from tests.unit.asgi import Caller, Reply, ask
from tests.unit.sessions import assert_all_ends_free, submitted
from tests.waiting import until

pytestmark = pytest.mark.anyio

TEXT = "/v1/completions"
ENDLESS = {"prompt": [3, 1, 4], "max_tokens": 4000}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_cancels_its_requests(
    held_session: Session, settler: FakeSettler, stream: bool
) -> None:
    caller = Caller(app(held_session), TEXT, {**ENDLESS, "prompt": [[3, 1, 4], [1, 5]], "stream": stream})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.run)
        handles = await submitted(held_session, 2)
        for _ in range(3):
            settler.step()
        await until(lambda: any(handle.record.generated for handle in handles), "a token was there")
        caller.disconnect.set()
    assert not caller.reply.complete
    settler.release()
    await until(lambda: all(handle.done for handle in handles), "both requests had ended")
    assert [repr(handle.record.error) for handle in handles] == ["RequestCancelled('the request was cancelled')"] * 2
    await assert_all_ends_free(held_session)


async def test_leaving_the_app_in_another_way_cancels_its_requests(held_session: Session, settler: FakeSettler) -> None:
    for stream in (False, True):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Caller(app(held_session), TEXT, {**ENDLESS, "stream": stream}).run)
            await submitted(held_session)
            tasks.cancel_scope.cancel()
        await until(lambda: not held_session.requests, "the request had ended")
    settler.release()
    await assert_all_ends_free(held_session)


@pytest.mark.parametrize("stream", [False, True])
async def test_who_is_left_by_a_server_that_ends_is_told(
    held_session: Session, settler: FakeSettler, stream: bool
) -> None:
    caller = Caller(app(held_session), TEXT, {**ENDLESS, "stream": stream, "logprobs": 0})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.run)
        await submitted(held_session)
        for _ in range(3):
            settler.step()
        if stream:
            await until(lambda: caller.reply.pieces, "a piece had come")
        tasks.cancel_scope.cancel()
    error = caller.reply.events[-1]["error"] if stream else caller.reply.error
    assert (caller.reply.complete, caller.reply.status) == (True, 200 if stream else 503)
    assert error["message"] == "the server shut down before the answer was complete; retry"
    settler.release()
    await assert_all_ends_free(held_session)


async def start_client(session: Session, caller: Caller, tasks: TaskGroup) -> Handle:
    """Start a client, and return its request: the engine is paused, or the request could end between two looks."""
    await session.pause()
    tasks.start_soon(caller.run)
    (handle,) = await submitted(session)
    session.resume()
    return handle


async def test_a_client_that_does_not_read_is_cancelled_and_told(held_session: Session, settler: FakeSettler) -> None:
    server = app(held_session, limits=Limits(unread=8))
    caller = Caller(server, TEXT, {**ENDLESS, "stream": True, "logprobs": 0}, stops_at=lambda reply: True)
    async with anyio.create_task_group() as tasks:
        handle = await start_client(held_session, caller, tasks)
        for _ in range(100):  # and no more, or it might end
            settler.step()
        await until(lambda: handle.done, "the slow reader's request had ended")
        assert repr(handle.record.error) == "RequestCancelled('the request was cancelled')"
        assert not caller.reply.complete
        caller.read_on.set()
    assert caller.reply.events[-1]["error"]["type"] == "slow_reader_error"
    assert 8 <= len(caller.reply.events) - 1 <= 100
    assert caller.reply.complete
    settler.release()
    await assert_all_ends_free(held_session)


class Paced:
    """A request with one piece at a time, each once all other tasks are blocked."""

    def __init__(self, pieces: int):
        self._remaining = pieces
        self.record, self.last = self, anyio.Event()

    def __aiter__(self) -> "Paced":
        return self

    async def __anext__(self) -> None:
        await anyio.wait_all_tasks_blocked()
        if not self._remaining:
            raise StopAsyncIteration
        self._remaining -= 1
        if not self._remaining:
            self.last.set()

    def result(self) -> None:
        """Return no generation."""

    def cancel(self) -> None:
        """Do nothing: nothing runs."""


class OneByOne:
    """Writes a chunk for each piece of an answer, and nothing at its end."""

    content_type = "text/plain"

    def piece(self, *_: object) -> list[bytes]:
        return [b"chunk "]

    def end(self, *_: object) -> list[bytes]:
        return []

    last = end

    def error_event(self, why: ApiError) -> bytes:
        return why.kind.encode()


@pytest.mark.parametrize(("pieces", "end"), [(5, b""), (6, b"slow_reader_error")])
async def test_as_many_chunks_may_be_unread_as_the_bound_says_beside_the_one_that_is_sent(
    pieces: int, end: bytes
) -> None:
    read_on, bodies = anyio.Event(), [b""]

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message["body"])
            await read_on.wait()

    handle: Any = Paced(pieces)
    stream: Any = EventStream([handle], cast(Any, OneByOne()), {}, Limits(unread=4), do_nothing)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream, {}, anyio.sleep_forever, send)
        await handle.last.wait()
        await anyio.wait_all_tasks_blocked()
        read_on.set()
    assert b"".join(bodies) == b"chunk " * 5 + end


async def do_nothing(_: object) -> None:
    """Do nothing at the end of a stream."""


class Ready:
    """A request with all pieces ready."""

    def __init__(self, pieces: int):
        self.record, self._remaining = self, pieces

    def __aiter__(self) -> "Ready":
        return self

    async def __anext__(self) -> None:
        if not self._remaining:
            raise StopAsyncIteration
        self._remaining -= 1

    def result(self) -> None:
        """Return no generation."""

    def cancel(self) -> None:
        """Do nothing: nothing runs."""


class Numbers:
    """Writer of numbered chunks, in their order."""

    content_type = "text/plain"

    def __init__(self) -> None:
        self._count = 0

    def piece(self, *_: object) -> list[bytes]:
        self._count += 1
        return [b"%d " % self._count]

    end = last = piece

    def error_event(self, why: ApiError) -> bytes:
        return why.kind.encode()


@pytest.mark.parametrize("unread", [3, 64])
async def test_chunks_are_sent_in_the_order_in_which_they_are_written(unread: int) -> None:
    """Expect the same of the last chunk of a choice: its usage counts the chunks of the others so far."""
    handles = [Ready(pieces) for pieces in (0, 1, 2, 5, 9)]
    stream = EventStream(cast("Any", handles), cast("Any", Numbers()), {}, Limits(unread=unread), do_nothing)
    reply = await ask(stream, TEXT, {})
    numbers = [int(each) for each in reply.body.split() if each.isdigit()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) == 23 or unread == 3


def test_a_large_chunk_is_sent_without_a_copy() -> None:
    writer, reader = anyio.create_memory_object_stream[bytes](9)
    with writer, reader:
        for chunk in (b"a", b"b" * 99, b"c"):
            writer.send_nowait(chunk)
        assert _take_available(reader, 0) == []
        assert _take_available(reader, 50) == [b"a", b"b" * 99]
        assert _take_available(reader, 50) == [b"c"]


async def test_a_failure_at_the_end_of_a_stream_is_its_last_event() -> None:
    async def fail(_: object) -> None:
        raise OSError("the disk is away")

    chunks = cast("Any", Numbers())
    stream = EventStream(cast("Any", [Ready(2)]), chunks, {}, Limits(), fail)
    reply = await ask(stream, TEXT, {})
    assert (reply.body, reply.complete) == (b"1 2 3 internal_server_error", True)


async def test_a_client_that_never_reads_is_given_up(session: Session) -> None:
    server = app(session, limits=Limits(unread_seconds=0.01))
    for length in (9, 4000):  # a request may have ended, and its last chunks wait for the client all the same
        body = {**ENDLESS, "max_tokens": length, "stream": True, "logprobs": 0}
        caller = Caller(server, TEXT, body, stops_at=lambda reply: bool(reply.pieces))
        await caller.run()
        assert len(caller.reply.pieces) == 1
        assert not caller.reply.complete
        await assert_all_ends_free(session)


async def test_a_slow_reader_holds_up_nobody_else(session: Session) -> None:
    server = app(session)
    slow = Caller(server, TEXT, {**ENDLESS, "max_tokens": 500, "stream": True, "logprobs": 0}, stops_at=lambda _: True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.run)
        await until(lambda: slow.reply.status, "the answer to the slow reader had begun")
        reply = await ask(server, TEXT, {**ENDLESS, "max_tokens": 500, "stream": True, "logprobs": 0})
        assert len(reply.events) == 501
        assert not slow.reply.complete
        slow.read_on.set()
    assert [tokens(event) for event in slow.reply.events] == [tokens(event) for event in reply.events]


def tokens(event: Any) -> list[str]:
    texts: list[str] = (event["choices"][0]["logprobs"] or {"tokens": []})["tokens"]
    return texts


async def test_many_tokens_at_once_do_not_make_a_reader_slow() -> None:
    with fake_session(max_context=4096) as session:
        server = app(session, limits=Limits(unread=4))
        caller = Caller(server, TEXT, {**ENDLESS, "max_tokens": 300, "stream": True, "logprobs": 0})
        async with anyio.create_task_group() as tasks:
            handle = await start_client(session, caller, tasks)
            handle.record.pieces.wait_blocking(299)  # which blocks this loop until the last token is there
        assert len(caller.reply.events) == 301


async def test_what_is_at_hand_is_sent_together(session: Session) -> None:
    caller = Caller(app(session), TEXT, {**ENDLESS, "max_tokens": 200, "stream": True, "logprobs": 0}, stops_at=_first)
    async with anyio.create_task_group() as tasks:
        handle = await start_client(session, caller, tasks)
        await handle
        await anyio.wait_all_tasks_blocked()
        caller.read_on.set()
    assert len(caller.reply.events) == 201
    assert len(caller.reply.pieces) < 10


def _first(reply: Reply) -> bool:
    return len(reply.pieces) == 1


async def test_an_error_in_the_middle_of_a_stream_is_its_last_event(
    held_session: Session, settler: FakeSettler
) -> None:
    caller = Caller(app(held_session), TEXT, {**ENDLESS, "stream": True, "logprobs": 0})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.run)
        await until(lambda: caller.reply.pieces, "a piece had come", step=settler.step)
        for handle in held_session.requests.values():
            handle.cancel()
        settler.release()
    assert caller.reply.status == 200
    assert caller.reply.events[-1]["error"]["type"] == "service_unavailable_error"
    assert caller.reply.complete
