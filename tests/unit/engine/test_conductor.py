"""A paused engine takes nothing and loses nothing, and a step takes the oldest message of all."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest

from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.core.concurrency.feed import TO_THE_END, Feed
from rekindle.core.engine.conductor import Command, Pause, Resume, TakeOne
from rekindle.core.engine.engine import Engine
from rekindle.core.engine.wiring import TO_CALLER
from rekindle.core.errors import RequestCancelled, SessionClosed
from rekindle.core.messages import Admit, Cancel, Message, Plan, Settled, Started, Submit, Text, Texts
from rekindle.core.messages.record import MessageRecord
from rekindle.core.request.params import SamplingParams
from rekindle.session.session import Session
from rekindle.testing import expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.unit.telling import Telling

pytestmark = pytest.mark.anyio

PROMPT = (3, 1, 4)
ENDLESS = 4000


# The engine runs on the loop of the test, so that a test can wait until it has nothing left to do.


@dataclass
class Running:
    """An engine beside the test.

    Attributes:
        outbox: the messages to callers.
        records: the messages to its actors, with their answers.
    """

    engine: Engine
    outbox: list[Message]
    records: list[MessageRecord] = field(default_factory=list)

    async def tell(self, command: Command) -> Command:
        """Tell the engine a command; return it once nothing more can happen."""
        self.engine.conductor.submit(command)
        await anyio.wait_all_tasks_blocked()
        return command

    async def stepped(self) -> MessageRecord | None:
        command = TakeOne()
        self.engine.conductor.submit(command)
        await command.answer.wait(TO_THE_END)
        return command.answer.items[0] if command.answer.items else None

    async def submit(self, request_id: int, max_tokens: int = 2) -> None:
        self.engine.post(Submit(request_id, PROMPT, SamplingParams(max_tokens=max_tokens)))
        await anyio.wait_all_tasks_blocked()

    def tokens(self, request_id: int) -> tuple[int, ...]:
        texts = [text for each in self.outbox if isinstance(each, Texts) for text in each.texts]
        return tuple(token for text in texts if text.request_id == request_id for token in text.token_ids)

    def waiting(self) -> list[Message]:
        return [message for messages in self.engine.pending.values() for message in messages]


@asynccontextmanager
async def running(loaded_engine: LoadedEngine | None = None) -> AsyncIterator[Running]:
    outbox: list[Message] = []
    one = Running(Engine([(loaded_engine or fake_loaded_engine(fake_limits())).lanes[0].actors], outbox.append), outbox)
    one.engine.watch(one.records.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.engine.run)
        await anyio.wait_all_tasks_blocked()
        yield one
        tasks.cancel_scope.cancel()


async def test_while_it_is_paused_nothing_is_taken_and_afterwards_all_of_it() -> None:
    async with running() as one:
        assert (await one.tell(Pause())).answer.closed
        assert one.engine.conductor.paused
        await one.submit(0)
        await one.submit(1)
        one.engine.post(Cancel(1))
        await anyio.wait_all_tasks_blocked()
        assert (one.records, one.outbox) == ([], [])
        assert [*map(type, one.waiting())] == [Submit, Submit, Cancel]
        assert [*map(type, one.engine.pending["intake"])] == [Submit, Submit, Cancel]
        assert (await one.tell(Resume())).answer.closed
        assert not one.engine.conductor.paused
        assert one.tokens(0) == expected_tokens(PROMPT, 2)
        assert Texts((Text(1, "", (), "cancelled"),)) in one.outbox
        assert one.waiting() == []


async def test_a_pause_is_answered_once_no_actor_is_busy_and_what_that_says_waits() -> None:
    settler = Telling()
    async with running(fake_loaded_engine(fake_limits(overlap=False), settler=settler)) as one:
        await one.submit(0)
        assert len(settler.took.items) == 1
        pause = await one.tell(Pause())
        assert one.engine.conductor.paused
        assert not pause.answer.closed, "the settler is busy"
        await one.submit(1)
        assert [*map(type, one.waiting())] == [Submit], "nobody takes a message meanwhile"
        settler.step()
        await anyio.wait_all_tasks_blocked()
        assert pause.answer.closed
        assert [*map(type, one.engine.pending["scheduler"])] == [Settled]
        assert len(one.waiting()) == 2
        settler.release()
        await one.tell(Resume())
        assert one.tokens(0) == one.tokens(1) == expected_tokens(PROMPT, 2)


async def test_pausing_what_is_paused_and_resuming_what_runs_change_nothing() -> None:
    async with running() as one:
        for _ in range(2):
            await one.tell(Resume())
        await one.submit(0)
        assert one.tokens(0) == expected_tokens(PROMPT, 2)
        for _ in range(2):
            await one.tell(Pause())
        await one.submit(1)
        assert one.tokens(1) == ()
        await one.tell(Resume())
        assert one.tokens(1) == expected_tokens(PROMPT, 2)


async def test_a_step_pauses_first_and_takes_nothing_where_nothing_waits() -> None:
    async with running(fake_loaded_engine(fake_limits(overlap=False))) as one:
        assert await one.stepped() is None
        assert one.engine.conductor.paused
        await one.submit(0)
        record = await one.stepped()
        assert record is not None
        assert (record.actor, type(record.message)) == ("intake", Submit)
        assert [*map(type, record.answers)] == [Admit]
        assert one.waiting() == [*record.answers]
        assert [*map(type, ((await one.stepped()) or record).answers)] == [Plan, Started]
        assert not isinstance(one.outbox[-1], Texts)


async def test_a_step_of_a_busy_engine_waits_until_it_is_idle_and_then_takes_one_message() -> None:
    settler = Telling()
    async with running(fake_loaded_engine(fake_limits(overlap=False), settler=settler)) as one:
        await one.submit(0)
        step = await one.tell(TakeOne())
        assert not step.answer.closed
        settler.step()
        await anyio.wait_all_tasks_blocked()
        (record,) = step.answer.items
        assert (record.actor, type(record.message)) == ("scheduler", Settled)
        assert {*map(type, one.waiting())} == {*map(type, record.answers)} - {*TO_CALLER}


async def test_each_step_takes_the_oldest_message_of_all() -> None:
    """Compare with one queue: every message joins at its end, and the first one is taken."""
    async with running(fake_loaded_engine(fake_limits(max_running=2, page_size=16))) as one:
        await one.tell(Pause())
        queue: list[Message] = []
        posts = {at: Submit(at, (at + 1,) * 20, SamplingParams(max_tokens=3)) for at in range(0, 30, 3)}
        cancels = {at + 2: Cancel(at) for at in range(0, 30, 6)}
        actors = []
        for at in range(1000):
            for message in (posts.get(at), cancels.get(at)):
                if message is not None:
                    one.engine.post(message)
                    queue.append(message)
            assert {*map(id, one.waiting())} == {*map(id, queue)}
            record = await one.stepped()
            if record is None:
                break
            assert record.message is queue.pop(0)
            queue += [message for message in record.answers if not isinstance(message, TO_CALLER)]
            actors.append(record.actor)
        assert queue == []
        assert {*actors} >= {"intake", "scheduler", "stepper", "settler", "detokenizer", "host_tier", "disk_tier"}
        for request_id in (3, 9, 15):
            assert one.tokens(request_id) == expected_tokens((request_id + 1,) * 20, 3)


async def test_an_error_in_a_step_comes_out_of_the_engine_as_it_does_otherwise() -> None:
    class Broken:
        def handle(self, message: Message) -> list[Message]:
            raise ZeroDivisionError("broken")

    loaded_engine = fake_loaded_engine(fake_limits())
    first, second, third = TakeOne(), TakeOne(), Pause()
    broken = loaded_engine.composed(lambda actors: replace(actors, scheduler=Broken()))
    engines: list[Engine] = []

    async def run() -> None:
        async with running(broken) as one:
            engines.append(one.engine)
            await one.tell(Pause())
            await one.submit(0)
            for command in (first, second, third):
                one.engine.conductor.submit(command)
            await anyio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.group_contains(ZeroDivisionError)
    assert isinstance(first.answer.items[0].message, Submit)
    engines[0].conductor.close()
    for unanswered in (second, third):
        assert unanswered.answer.closed
        assert not unanswered.answer.items


class Ordered(Feed[MessageRecord]):
    """A feed that adds its name to a list when it is closed."""

    def __init__(self, name: str, closed: list[str]):
        super().__init__()
        self._name, self._closed_ones = name, closed

    def close(self) -> None:
        self._closed_ones.append(self._name)
        super().close()


async def test_commands_are_done_in_the_order_in_which_they_were_told() -> None:
    settler, done = Telling(), list[str]()
    async with running(fake_loaded_engine(fake_limits(overlap=False), settler=settler)) as one:
        await one.submit(0)
        for name, kind in (
            ("pause", Pause),
            ("step", TakeOne),
            ("again", TakeOne),
            ("resume", Resume),
            ("at last", Pause),
        ):
            one.engine.conductor.submit(kind(Ordered(name, done)))
        await anyio.wait_all_tasks_blocked()
        assert done == []
        settler.release()
        await anyio.wait_all_tasks_blocked()
        assert done == ["pause", "step", "again", "resume", "at last"]


# Sessions


async def test_what_is_submitted_while_a_session_is_paused_waits(session: Session) -> None:
    await session.pause()
    assert session.paused
    handle = session.submit(token_ids=PROMPT, max_tokens=3)
    cancelled = session.submit(token_ids=PROMPT, max_tokens=3)
    cancelled.cancel()
    assert [*map(type, session.pending["intake"])] == [Submit, Submit, Cancel]
    assert {*session.requests.values()} == {handle, cancelled}
    with pytest.raises(TimeoutError):
        handle.result(timeout=0)
    session.resume()
    assert (await handle).token_ids == expected_tokens(PROMPT, 3)
    with pytest.raises(RequestCancelled):
        await cancelled
    assert session.requests == {}


async def test_it_is_paused_from_the_call_on_and_no_longer_from_the_resume_on() -> None:
    settler = Telling()
    with fake_session(fake_loaded_engine(fake_limits(), settler=settler)) as session:
        session.submit(token_ids=PROMPT, max_tokens=ENDLESS)
        await settler.took.wait(0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.pause)
            await anyio.wait_all_tasks_blocked()
            assert session.paused, "though the settler is busy"
            session.resume()
            assert not session.paused, "though the pause is not over"
            settler.release()


async def test_what_is_cached_is_written_by_a_close_right_after_a_resume() -> None:
    loaded_engine = fake_loaded_engine(fake_limits(page_size=16))
    disk: Any = loaded_engine.lanes[0].actors.disk_tier
    with fake_session(loaded_engine) as session:
        await session.pause()
        handle = session.submit(token_ids=[1] * 40, max_tokens=1)
        while not handle.done:
            await session.step()
        assert not disk.contents
        session.resume()
        await session.close()
    assert len(disk.contents) == 2


async def test_a_close_while_it_is_paused_does_not_wait_for_what_nobody_takes() -> None:
    with fake_session() as session:
        await session.generate(token_ids=[1] * 200, max_tokens=1)
        await session.pause()
        handle = session.submit(token_ids=PROMPT)
        await session.close()
        assert handle.done
        assert not session.paused
        assert [*map(type, (session._engine.thread.error,))] == [SessionClosed]
