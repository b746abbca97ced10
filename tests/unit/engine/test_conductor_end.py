"""A caller that pauses or steps a session may leave, and is answered however the session ends."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread

from rekindle.assembly.thread import EngineThread
from rekindle.core.concurrency.feed import Feed
from rekindle.core.engine.conductor import Command, Conductor, Pause, Resume, TakeOne
from rekindle.core.errors import EngineFailed, QueueFull, SessionClosed
from rekindle.core.messages.record import MessageRecord
from rekindle.session.session import Session
from rekindle.testing import expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.unit.telling import Telling, run_to_the_end
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

PROMPT = (3, 1, 4)
ENDLESS = 4000


# Leaving early

COMMANDS: list[Callable[[Session], Any]] = [lambda session: session.pause(), lambda session: session.step()]


@pytest.mark.parametrize("call", COMMANDS, ids=["pause", "step"])
async def test_leaving_a_command_early_leaves_the_engine_usable(call: Callable[[Session], Any]) -> None:
    settler = Telling()
    with fake_session(fake_loaded_engine(fake_limits(), settler=settler)) as session:
        handle = session.submit(token_ids=PROMPT, max_tokens=4)
        await settler.took.wait(0)

        async def leave() -> None:
            await call(session)
            raise AssertionError("the settler is busy")

        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(leave)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
        assert session.paused
        settler.release()
        await session.pause()
        assert await session.step() is not None
        session.resume()
        assert (await handle).token_ids == expected_tokens(PROMPT, 4)
        assert (await session.generate(token_ids=PROMPT, max_tokens=4)).token_ids == expected_tokens(PROMPT, 4)


# The end

WAITERS: list[Callable[[Session], Any]] = [
    lambda session: session.pause(),
    lambda session: session.step(),
    lambda session: to_thread.run_sync(session.pause_sync),
    lambda session: to_thread.run_sync(session.step_sync),
]


@dataclass
class Outcomes:
    """The results and errors of calls, in the order of their ends."""

    got: list[object] = field(default_factory=list)

    async def call(self, call: Callable[[], Any]) -> None:
        try:
            self.got.append(await call())
        except Exception as error:
            self.got.append(error)


async def with_waiters(session: Session, settler: Telling, outcomes: Outcomes, end: Callable[[], Any]) -> None:
    """Let a caller wait in each way for a busy settler, and then end the session."""
    handle = session.submit(token_ids=PROMPT, max_tokens=ENDLESS)
    await settler.took.wait(0)
    async with anyio.create_task_group() as tasks:
        for waiter in WAITERS:
            tasks.start_soon(outcomes.call, partial(waiter, session))
        tasks.start_soon(outcomes.call, lambda: handle)
        await anyio.wait_all_tasks_blocked()
        assert outcomes.got == []
        await end()


async def test_a_close_ends_all_who_wait_with_the_sessions_error() -> None:
    settler, outcomes = Telling(), Outcomes()
    with fake_session(fake_loaded_engine(fake_limits(), settler=settler)) as session:
        await with_waiters(session, settler, outcomes, session.close)
        assert [type(error) for error in outcomes.got] == [SessionClosed] * (len(WAITERS) + 1)
        assert {*map(id, outcomes.got)} == {id(session._engine.thread.error)}


async def test_a_failure_ends_all_who_wait_with_the_sessions_error() -> None:
    settler, outcomes = Telling(fails=True), Outcomes()

    async def fail() -> None:
        settler.step()

    with fake_session(fake_loaded_engine(fake_limits(), settler=settler)) as session:
        await with_waiters(session, settler, outcomes, fail)
        assert [type(error) for error in outcomes.got] == [EngineFailed] * (len(WAITERS) + 1)
        assert {*map(id, outcomes.got)} == {id(session._engine.thread.error)}
        assert not session.paused


async def test_an_error_in_a_step_is_that_of_the_session_for_all() -> None:
    settler, outcomes = Telling(fails=True), Outcomes()
    settler.release()
    with fake_session(fake_loaded_engine(fake_limits(), settler=settler)) as session:
        await session.pause()
        handle = session.submit(token_ids=PROMPT)
        with pytest.raises(EngineFailed, match="ZeroDivisionError: the device is gone") as caught:
            await run_to_the_end(session)
        for waiter in WAITERS:
            await outcomes.call(partial(waiter, session))
        await outcomes.call(lambda: handle)
        assert {*map(id, outcomes.got)} == {id(caught.value)} == {id(session._engine.thread.error)}
        with pytest.raises(EngineFailed):
            session.resume()
        with pytest.raises(EngineFailed):
            session.pending  # noqa: B018


@pytest.mark.parametrize("waiter", WAITERS)
async def test_a_closed_session_can_be_neither_paused_nor_stepped(
    session: Session, waiter: Callable[[Session], Any]
) -> None:
    await session.pause()
    await session.close()
    with pytest.raises(SessionClosed):
        await waiter(session)
    with pytest.raises(SessionClosed):
        session.resume()


class Witness(Feed[MessageRecord]):
    """A feed with a record of its engine thread's error at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.host: EngineThread | None = None
        self.error: Exception | None = None

    def close(self) -> None:
        assert self.host is not None
        self.error = self.host.error
        super().close()


@pytest.mark.parametrize("kind", [Pause, TakeOne])
@pytest.mark.parametrize("fails", [True, False])
async def test_who_waits_is_let_go_only_once_the_error_is_known(kind: type[Command], fails: bool) -> None:
    """Check this because an undone command would otherwise look done."""
    settler, witnesses = Telling(fails=fails), [Witness(), Witness()]
    with fake_session(fake_loaded_engine(fake_limits(), settler=settler)) as session:
        session.submit(token_ids=PROMPT)
        await settler.took.wait(0)
        for witness in witnesses:  # one command is being done, one is still to be done
            witness.host = session._engine.thread
            session._engine.thread.command(kind(witness))
        session.resume()  # otherwise a close would save, and wait for messages that nobody takes
        if fails:
            settler.step()
        else:
            session._engine.thread.stop()
        for witness in witnesses:
            await witness.wait(0)
            assert isinstance(witness.error, EngineFailed if fails else SessionClosed)


async def test_a_command_that_comes_just_as_the_engine_stops_is_answered_too(session: Session) -> None:
    engine = session._engine.thread._engine
    assert engine is not None
    await session.close()
    for command in (Pause(), TakeOne(), Resume()):
        engine.conductor.submit(command)
        assert command.answer.closed
        assert not command.answer.items


def test_a_command_to_an_engine_that_never_ran_is_answered_at_its_end() -> None:
    conductor, commands = Conductor(()), [Pause(), TakeOne()]
    for command in commands:
        conductor.submit(command)
    conductor.close()
    conductor.close()
    assert all(command.answer.closed for command in commands)


async def test_threads_that_pause_and_step_while_others_close_all_come_to_an_end() -> None:
    for _ in range(10):
        records: Feed[MessageRecord] = Feed()
        with fake_session() as session, session.watch(records.put):
            outcomes: list[object] = []
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(partial(to_thread.run_sync, use, session, outcomes))
                    await records.wait(20)
                    await session.close()
            assert [type(error) for error in outcomes] == [SessionClosed] * 3


def use(session: Session, outcomes: list[object]) -> None:
    """Submit, pause, step and resume until an error."""
    try:
        while True:
            with suppress(QueueFull):
                session.submit(token_ids=PROMPT, max_tokens=2)
            session.pause_sync()
            session.step_sync()
            session.resume()
    except Exception as error:
        outcomes.append(error)
