"""A caller may leave its request in every way and state, and the waiting queue keeps its bound."""

from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread

from rekindle.client.handle import Handle, Stream
from rekindle.client.submission import Submission
from rekindle.core.engine.actor import Actor
from rekindle.core.errors import InvalidRequest, QueueFull, RequestCancelled, SessionClosed
from rekindle.core.messages import Cancel, Message, Started, Submit
from rekindle.core.messages.record import MessageRecord
from rekindle.core.request.params import SamplingParams
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.unit.sessions import assert_all_is_free, ended
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

PROMPT = [3, 1, 4]
ENDLESS = 4000


# Leaving early


async def test_cancel_ends_a_request_in_every_state_and_more_than_once(
    held_session: Session, settler: FakeSettler
) -> None:
    running = held_session.submit(token_ids=PROMPT, max_tokens=ENDLESS)
    settler.step()
    stream = aiter(running)
    await anext(stream)
    waiting = [held_session.submit(token_ids=PROMPT) for _ in range(2)]
    states = [repr(handle) for handle in (running, *waiting)]
    assert states == ["<rekindle.Handle running, 1 token>", *["<rekindle.Handle waiting, 0 tokens>"] * 2]
    for handle in (*waiting, running):
        for _ in range(3):
            handle.cancel()
        with pytest.raises(RequestCancelled, match="the request was cancelled"):
            await handle
        handle.cancel()
        assert handle.done
    assert [repr(handle) for handle in waiting] == ["<rekindle.Handle cancelled, 0 tokens>"] * 2
    assert_all_is_free(held_session)


async def test_any_thread_may_cancel(held_session: Session) -> None:
    handle = held_session.submit(token_ids=PROMPT, max_tokens=ENDLESS)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(to_thread.run_sync, handle.cancel)
    with pytest.raises(RequestCancelled):
        await handle
    assert_all_is_free(held_session)


async def test_a_cancel_from_within_the_submit_itself_is_not_lost() -> None:
    """Cancel as the garbage collector may do it."""
    messages: list[Message] = []

    def post(message: Message) -> None:
        handle.cancel()
        messages.append(message)

    submission = Submission((1,), SamplingParams())
    handle = Handle(7, submission, post)
    assert handle.send()
    assert messages == [submission.message(7), Cancel(7)]
    with pytest.raises(RequestCancelled):
        await handle


@pytest.mark.parametrize("how", ["await", "stream"])
async def test_leaving_the_wait_for_a_handle_cancels_its_request(held_session: Session, how: str) -> None:
    handle = held_session.submit(token_ids=PROMPT, max_tokens=ENDLESS)
    stream = aiter(handle)  # keep it, so that leaving the wait cancels the request, and not dropping the stream

    async def wait() -> None:
        await (handle if how == "await" else anext(stream))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert "running" not in repr(handle)
    assert "waiting" not in repr(handle)
    with pytest.raises(RequestCancelled):
        await handle
    assert_all_is_free(held_session)


async def test_leaving_a_generate_cancels_all_its_requests(session: Session) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(session.generate, token_ids=[PROMPT] * 40, max_tokens=ENDLESS))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    await ended(session)
    assert_all_is_free(session)
    assert (await session.generate(token_ids=PROMPT, max_tokens=5)).token_ids == expected_tokens(PROMPT, 5)


async def test_breaking_out_of_a_stream_cancels_its_request(held_session: Session, settler: FakeSettler) -> None:
    settler.step()
    async for piece in held_session.stream(token_ids=PROMPT, max_tokens=ENDLESS):
        assert piece.token_ids == expected_tokens(PROMPT, 1)
        break
    await ended(held_session)
    settler.release()
    for _ in held_session.stream_sync(token_ids=PROMPT, max_tokens=ENDLESS):
        break
    await ended(held_session)
    assert_all_is_free(held_session)


async def test_closing_a_stream_cancels_its_request_and_ends_the_loop(
    held_session: Session, settler: FakeSettler
) -> None:
    settler.step()
    async with aclosing(held_session.stream(token_ids=PROMPT, max_tokens=ENDLESS)) as stream:
        assert (await anext(stream)).token_ids == expected_tokens(PROMPT, 1)
    assert [piece async for piece in stream] == []
    await ended(held_session)
    settler.release()
    with closing(held_session.stream_sync(token_ids=PROMPT, max_tokens=ENDLESS)) as stream:
        assert next(stream).token_ids == expected_tokens(PROMPT, 1)
    assert list(stream) == []
    stream.close()
    await stream.aclose()
    await ended(held_session)
    assert_all_is_free(held_session)


async def test_closing_a_stream_that_has_ended_changes_nothing(session: Session) -> None:
    handle = session.submit(token_ids=PROMPT, max_tokens=3)
    async with aclosing(Stream(handle)) as stream:
        assert len([piece async for piece in stream]) == 3
    assert (await handle).token_ids == expected_tokens(PROMPT, 3)


async def test_a_stream_that_is_cancelled_still_gives_what_came_before(
    held_session: Session, settler: FakeSettler
) -> None:
    handle = held_session.submit(token_ids=PROMPT, max_tokens=ENDLESS)
    stream = aiter(handle)
    settler.step()
    pieces = [await anext(stream)]
    handle.cancel()
    with pytest.raises(RequestCancelled):
        pieces.append(await anext(stream))
    assert [piece.token_ids for piece in pieces] == [expected_tokens(PROMPT, 1)]


async def test_a_timeout_of_result_leaves_the_request_running(held_session: Session, settler: FakeSettler) -> None:
    handle = held_session.submit(token_ids=PROMPT, max_tokens=5)
    with pytest.raises(TimeoutError, match="the request had not ended after 0 seconds; it continues"):
        handle.result(timeout=0)
    settler.release()
    assert handle.result().token_ids == expected_tokens(PROMPT, 5)
    assert handle.result(timeout=0) is await handle
    assert "ended: length, 5 tokens" in repr(handle)


async def test_an_interrupt_of_a_blocking_wait_cancels_the_request(
    held_session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = held_session.submit(token_ids=PROMPT, max_tokens=ENDLESS)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(handle.record.pieces, "wait_blocking", interrupted)
    with pytest.raises(KeyboardInterrupt):
        handle.result()
    with pytest.raises(RequestCancelled):
        await handle
    assert_all_is_free(held_session)


# The bound of the waiting queue


async def test_submit_is_refused_when_the_queue_is_full_and_nothing_is_left_of_it(
    held_session: Session, settler: FakeSettler
) -> None:
    running = held_session.submit(token_ids=PROMPT, max_tokens=5)
    settler.step()
    stream = aiter(running)  # dropping the handle would cancel
    await anext(stream)
    waiting = [held_session.submit(token_ids=PROMPT) for _ in range(2)]
    with pytest.raises(QueueFull, match="the waiting queue is full, max_waiting is 2; await one of its requests first"):
        held_session.submit(token_ids=PROMPT)
    waiting[0].cancel()
    with pytest.raises(RequestCancelled):
        await waiting[0]
    assert not held_session.submit(token_ids=PROMPT, max_tokens=1).done, "the place of the cancelled one is free again"
    settler.release()
    assert (await waiting[1]).token_ids == expected_tokens(PROMPT, 256)
    assert (await running).token_ids == expected_tokens(PROMPT, 5)


class Recorded:
    """An actor with a record of its messages."""

    def __init__(self, actor: Actor):
        self.messages: list[Message] = []
        self._actor = actor

    def handle(self, message: Message) -> Any:
        self.messages.append(message)
        return self._actor.handle(message)


async def test_generate_waits_for_room_and_enters_in_order(settler: FakeSettler) -> None:
    loaded_engine = fake_loaded_engine(fake_limits(max_running=1), settler=settler)
    intake = Recorded(loaded_engine.lanes[0].actors.intake)
    session = fake_session(loaded_engine.composed(lambda actors: replace(actors, intake=intake)), max_waiting=2)
    async with session, anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(partial(session.generate, token_ids=[number], max_tokens=3))
            await anyio.wait_all_tasks_blocked()
        assert len(intake.messages) <= 3
        with pytest.raises(QueueFull):
            session.submit(token_ids=PROMPT)
        settler.release()
    assert [message.prompt for message in intake.messages if isinstance(message, Submit)] == [
        (number,) for number in range(12)
    ]


async def test_an_urgent_request_is_the_next_to_run_though_a_batch_waits_for_room(settler: FakeSettler) -> None:
    loaded_engine = fake_loaded_engine(fake_limits(max_running=1), settler=settler)
    session = fake_session(loaded_engine, max_waiting=2)
    order: list[tuple[int, ...]] = []

    def see(record: MessageRecord) -> None:
        order.extend(tuple(each.prompt) for each in record.answers if isinstance(each, Started))

    async with session, anyio.create_task_group() as tasks:
        with session.watch(see):
            batch = partial(session.generate, token_ids=[[number] for number in range(9)], max_tokens=2, priority=5)
            tasks.start_soon(batch)
            await until(lambda: bool(order), "the first one runs")
            await until(lambda: session.stats.scheduler.waiting == 2, "two wait in the queue, and six before it")
            with pytest.raises(QueueFull):
                session.submit(token_ids=PROMPT, priority=5)
            urgent = [session.submit(token_ids=prompt, max_tokens=2, priority=-5) for prompt in ([77], [88])]
            urgent[0].cancel()
            with pytest.raises(RequestCancelled):
                await urgent[0]
            settler.release()
            await urgent[1]
    assert order[:2] == [(0,), (88,)]


async def fill(held_session: Session, max_tokens: int = ENDLESS) -> None:
    """Let one request run, and two wait in the queue."""
    for _ in range(3):
        await held_session.enqueue(token_ids=PROMPT, max_tokens=max_tokens)


async def test_enqueue_gives_a_handle_once_there_is_room(held_session: Session, settler: FakeSettler) -> None:
    await fill(held_session, max_tokens=2)
    handles: dict[int, Handle] = {}

    async def enqueue(token: int) -> None:
        handles[token] = await held_session.enqueue(token_ids=[token], max_tokens=2)

    async with anyio.create_task_group() as tasks:
        for token in range(4):
            tasks.start_soon(enqueue, token)
        await anyio.wait_all_tasks_blocked()
        assert not handles
        with pytest.raises(QueueFull, match="use enqueue, generate or stream"):
            held_session.submit(token_ids=PROMPT)
        settler.release()
    assert [(await handles[token]).token_ids for token in range(4)] == [expected_tokens([t], 2) for t in range(4)]
    assert held_session.enqueue_sync(token_ids=PROMPT, max_tokens=1).result().token_ids == expected_tokens(PROMPT, 1)
    with pytest.raises(InvalidRequest, match="max_tokens must be"):
        await held_session.enqueue(token_ids=PROMPT, max_tokens=-1)
    assert_all_is_free(held_session)


async def test_leaving_an_enqueue_leaves_nothing_behind(held_session: Session) -> None:
    await fill(held_session)
    for _ in range(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(held_session.enqueue, token_ids=PROMPT))
            await anyio.wait_all_tasks_blocked()
            last = [*held_session.requests.values()][-1]
            tasks.cancel_scope.cancel()
        assert repr(last) == "<rekindle.Handle cancelled, 0 tokens>"
        assert len(held_session._engine.client._handles) == 3
        assert not held_session._engine.client._gate._outside


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_who_waits_for_room_hears_that_none_will_come(held_session: Session, how: str) -> None:
    await fill(held_session)
    raised: list[Exception] = []

    async def enqueue() -> None:
        try:
            await held_session.enqueue(token_ids=PROMPT)
        except (RequestCancelled, SessionClosed) as error:
            raised.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(enqueue)
        await anyio.wait_all_tasks_blocked()
        if how == "cancel":
            [*held_session.requests.values()][-1].cancel()
        else:
            await held_session.close()
    assert [type(error) for error in raised] == [RequestCancelled if how == "cancel" else SessionClosed]


async def test_one_who_waits_outside_can_leave_and_nothing_is_kept_of_it(
    held_session: Session, settler: FakeSettler
) -> None:
    outside = [held_session.stream(token_ids=PROMPT, max_tokens=2) for _ in range(6)]
    assert [*held_session.requests.values()] == [stream._handle for stream in outside]
    for stream in outside[3:]:
        stream._handle.cancel()
        with pytest.raises(RequestCancelled, match="before it was submitted"):
            await anext(stream)
    assert [*held_session.requests.values()] == [stream._handle for stream in outside[:3]]
    assert len(held_session._engine.client._handles) == 3, (
        "nothing is kept of those that left, though no place came free"
    )
    assert len(held_session._engine.client._gate._outside) <= 1, (
        "the third waits outside unless the first has begun to run"
    )
    settler.release()
    for stream in outside[:3]:
        assert [piece.token_ids async for piece in stream]
    assert_all_is_free(held_session)
    await held_session.generate(token_ids=PROMPT, max_tokens=1)
    assert not held_session._engine.client._handles
    assert not held_session._engine.client._gate._inside


@pytest.mark.parametrize("call", ["embed", "perplexity"])
async def test_leaving_the_wait_for_a_judgement_cancels_all_of_its_requests(held_session: Session, call: str) -> None:
    async def wait() -> None:
        if call == "embed":
            await held_session.embed(token_ids=[[1] * 40, [2] * 40, [3]])
        else:
            await held_session.perplexity(token_ids=[*range(60)], window=30)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        handles = list(held_session.requests.values())
        assert len(handles) > 1
        tasks.cancel_scope.cancel()
    for handle in handles:
        with pytest.raises(RequestCancelled):
            await handle
    assert_all_is_free(held_session)
