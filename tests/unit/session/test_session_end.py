"""When a session is closed, fails or is dropped, each caller is answered, and nothing goes on in the background."""

import gc
import selectors
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread

from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.assembly.thread import EngineThread
from rekindle.client.engine_client import EngineClient
from rekindle.client.submission import Submission
from rekindle.core.errors import EngineFailed, InvalidRequest, QueueFull, SessionClosed
from rekindle.core.messages import Message, Rejected, Text, Texts
from rekindle.core.request.params import SamplingParams
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.unit.sessions import reason, thread_of
from tests.waiting import PATIENCE, until_blocking

pytestmark = pytest.mark.anyio

PROMPT = [3, 1, 4]
ENDLESS = 4000
CALLS: list[Callable[[Session], Any]] = [
    lambda session: session.submit(token_ids=PROMPT),
    lambda session: session.stream(token_ids=PROMPT),
    lambda session: session.generate_sync(token_ids=PROMPT),
    lambda session: session.stream_sync(token_ids=PROMPT),
]


class Failing(FakeSettler):
    """A settler with a failure at its first tick after the release."""

    async def handle(self, message: Message) -> list[Message]:
        await super().handle(message)
        raise ZeroDivisionError("the device is gone")


@pytest.fixture
def freed() -> list[str]:
    return []


def machine_of(settler: FakeSettler, freed: list[str]) -> LoadedEngine:
    limits = fake_limits(max_running=1)
    return fake_loaded_engine(limits, settler=settler, free=lambda: freed.append(threading.current_thread().name))


@pytest.fixture
def held_session(freed: list[str]) -> Iterator[Session]:
    """Open a session with one slot and two places in the queue; nothing ever settles."""
    with fake_session(machine_of(FakeSettler(held=True), freed), max_waiting=2) as session:
        yield session


class Waiting:
    """Waiting callers of every kind: one runs, two are in the queue, the others outside."""

    def __init__(self, session: Session):
        self.answers: list[object] = []
        self._session = session
        self._calls: list[Callable[[], Any]] = [
            partial(session.generate, token_ids=PROMPT, max_tokens=ENDLESS),
            partial(session.generate, token_ids=[PROMPT] * 5, max_tokens=ENDLESS),
            self._stream,
            partial(to_thread.run_sync, partial(session.generate_sync, token_ids=PROMPT, max_tokens=ENDLESS)),
            partial(to_thread.run_sync, lambda: list(session.stream_sync(token_ids=PROMPT, max_tokens=ENDLESS))),
        ]

    async def _stream(self) -> None:
        async for _ in self._session.stream(token_ids=PROMPT, max_tokens=ENDLESS):
            pass

    async def _wait(self, call: Callable[[], Any]) -> None:
        try:
            self.answers.append(await call())
        except Exception as error:
            self.answers.append(error)

    async def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the callers, and return when they all wait."""
        for call in self._calls:
            tasks.start_soon(self._wait, call)
        await anyio.wait_all_tasks_blocked()


# Closed


@pytest.mark.parametrize("blocking", [False, True])
async def test_close_answers_every_caller_and_frees_the_machine_once(
    held_session: Session, freed: list[str], blocking: bool
) -> None:
    waiting = Waiting(held_session)
    async with anyio.create_task_group() as tasks:
        await waiting.start(tasks)
        await (to_thread.run_sync(held_session.close_sync) if blocking else held_session.close())
        assert freed == ["rekindle-engine"], "it is freed when close returns, by the engine's own thread"
    assert [type(reason(answer)) for answer in waiting.answers] == [SessionClosed] * 5
    await held_session.close()
    held_session.close_sync()
    assert freed == ["rekindle-engine"]


async def test_several_may_close_at_once(held_session: Session, freed: list[str]) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(held_session.close)
            tasks.start_soon(to_thread.run_sync, held_session.close_sync)
    assert freed == ["rekindle-engine"]


@pytest.mark.parametrize("call", CALLS)
async def test_use_after_close_is_an_error_at_the_call_that_says_what_to_do(
    held_session: Session, call: Callable[[Session], Any]
) -> None:
    handle = held_session.submit(token_ids=PROMPT)
    await held_session.close()
    with pytest.raises(SessionClosed, match=r"the session is closed, by .*; open another with rekindle.open\(\)"):
        call(held_session)
    with pytest.raises(SessionClosed):
        await held_session.generate(token_ids=PROMPT)
    with pytest.raises(SessionClosed):
        await handle
    handle.cancel()
    assert "the session is closed" in repr(held_session)
    assert "failed after 0 tokens: the session is closed" in repr(handle)
    assert held_session.stats.scheduler.ended == 0, "counters can still be read"


async def test_leaving_the_with_block_closes(freed: list[str]) -> None:
    async with fake_session(machine_of(FakeSettler(), freed)) as session:
        await session.generate(token_ids=PROMPT, max_tokens=2)
    assert freed == ["rekindle-engine"]
    with fake_session(machine_of(FakeSettler(), freed)) as session:
        session.generate_sync(token_ids=PROMPT, max_tokens=2)
    assert len(freed) == 2


async def test_a_closed_session_leaves_no_thread(held_session: Session) -> None:
    engine = thread_of(held_session)
    assert engine.name == "rekindle-engine"
    assert engine.daemon, "the interpreter would join it before it tells it to stop"
    await held_session.close()
    await to_thread.run_sync(engine.join)


class Abandoned(FakeSettler):
    """A settler that waits in a worker thread without interruption, as for XLA."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.ready = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.started.set()
        self.ready.wait()

    async def handle(self, message: Message) -> list[Message]:
        await to_thread.run_sync(self.wait, abandon_on_cancel=True)
        return await super().handle(message)


async def test_close_does_not_wait_for_what_cannot_be_interrupted_but_the_engines_thread_does(freed: list[str]) -> None:
    """Keep the engine's thread: the return of a worker into an ended process would abort it."""
    settler = Abandoned()
    async with fake_session(machine_of(settler, freed)) as session:
        session.submit(token_ids=PROMPT)
        await to_thread.run_sync(settler.started.wait)
        engine = thread_of(session)
    assert freed == ["rekindle-engine"]
    assert any(worker.is_alive() for worker in session._engine.thread._workers), "it knows whom to wait for"
    assert engine.is_alive()
    settler.ready.set()
    await to_thread.run_sync(engine.join)


async def test_a_session_that_is_dropped_stops_its_engine(freed: list[str]) -> None:
    session = fake_session(machine_of(FakeSettler(), freed))
    await session.generate(token_ids=PROMPT, max_tokens=2)
    host, dropped = session._engine.thread, weakref.ref(session)
    del session
    gc.collect()
    assert dropped() is None
    await host.stopped.wait(0)
    assert freed == ["rekindle-engine"]


@pytest.mark.parametrize("stepped", [False, pytest.param(True, marks=pytest.mark.wide)])
def test_a_session_that_is_dropped_after_an_error_stops_its_engine(stepped: bool) -> None:
    """Check the release of the session although an error keeps its frames, and so their session."""

    def use(session: Session) -> EngineThread:
        if stepped:
            session.pause_sync()
        handle = session.submit("the fake model has no tokenizer")
        while stepped and not handle.done:
            session.step_sync()
        try:
            handle.result(timeout=PATIENCE)
        except InvalidRequest:
            return session._engine.thread
        raise AssertionError("it is turned away")

    host = use(fake_session())

    def is_stopped() -> bool:
        gc.collect()  # again and again, as the engine's thread may still be on its way out of what it said last
        return host.stopped.wait_blocking(0, timeout=0.1)

    until_blocking(is_stopped, "the engine let go of what it said last")


async def test_one_that_comes_while_the_session_ends_is_answered_too() -> None:
    """Post a request to an open session; its queue is full, and no request leaves it any more."""
    client = EngineClient(max_waiting=1)
    posted: list[Message] = []
    inside = client.submit(Submission((1,), SamplingParams()), posted.append, wait=True)
    closed = SessionClosed("closed")
    client.fail_all(closed)
    outside = client.submit(Submission((1,), SamplingParams()), posted.append, wait=True)
    for handle in (inside, outside):
        assert handle.done
        with pytest.raises(SessionClosed) as caught:
            await handle
        assert caught.value is closed
    with pytest.raises(QueueFull):
        client.submit(Submission((1,), SamplingParams()), posted.append, wait=False)
    assert not client._handles
    client.deliver(Texts((Text(0, "late", (1,), "length"),)))
    client.deliver(Rejected(1, closed))


# Failed


@pytest.fixture
def failing(freed: list[str]) -> Iterator[tuple[Session, Failing]]:
    settler = Failing(held=True)
    with fake_session(machine_of(settler, freed), max_waiting=2) as session:
        yield session, settler


async def test_a_failure_of_the_engine_reaches_every_caller_as_one_error(
    failing: tuple[Session, Failing], freed: list[str]
) -> None:
    session, settler = failing
    waiting = Waiting(session)
    async with anyio.create_task_group() as tasks:
        await waiting.start(tasks)
        settler.step()
    (error, *others) = map(reason, waiting.answers)
    assert len(others) == 4
    assert all(other is error for other in others)
    assert isinstance(error, EngineFailed)
    assert isinstance(error.__cause__, ZeroDivisionError)
    expected = "the engine stopped because of ZeroDivisionError: the device is gone. Open another session"
    assert str(error) == expected
    assert repr(session) == f"<rekindle.Session fake: {expected}>"
    await session._engine.thread.stopped.wait(0)
    assert freed == ["rekindle-engine"]


async def test_a_failed_session_refuses_every_call_with_the_same_error_and_can_be_closed(
    failing: tuple[Session, Failing],
) -> None:
    session, settler = failing
    handle = session.submit(token_ids=PROMPT)
    settler.step()
    with pytest.raises(EngineFailed) as first:
        await handle
    for call in CALLS:
        with pytest.raises(EngineFailed) as caught:
            call(session)
        assert caught.value is first.value
    handle.cancel()
    await session.close()
    session.close_sync()
    with pytest.raises(EngineFailed):
        session.submit(token_ids=PROMPT)


async def test_the_failure_of_one_session_does_not_touch_another(failing: tuple[Session, Failing]) -> None:
    session, settler = failing
    with fake_session() as other:
        running = other.submit(token_ids=PROMPT, max_tokens=200)
        handle = session.submit(token_ids=PROMPT)
        settler.step()
        with pytest.raises(EngineFailed):
            await handle
        assert (await running).token_ids == expected_tokens(PROMPT, 200)


async def test_an_error_of_building_reaches_whoever_opens_as_it_is() -> None:
    reports: list[Exception] = []

    def build(report: object) -> LoadedEngine:
        raise ZeroDivisionError("no model")

    host = EngineThread(build, lambda message: None, reports.append)
    await host.opening.wait(0)
    await host.stopped.wait(0)
    assert isinstance(host.error, ZeroDivisionError)
    assert reports == [host.error]


async def test_a_session_closed_while_it_opens_frees_what_was_built(freed: list[str]) -> None:
    building, stopped = threading.Event(), threading.Event()

    def build(report: object) -> LoadedEngine:
        building.set()
        stopped.wait()
        return machine_of(FakeSettler(), freed)

    host = EngineThread(build, lambda message: None, lambda error: None)
    await to_thread.run_sync(building.wait)
    host.stop()
    stopped.set()
    await host.stopped.wait(0)
    assert freed == ["rekindle-engine"]
    assert isinstance(host.error, SessionClosed)


# Idle


async def test_an_idle_engine_sleeps_until_it_is_told_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the loop's wait: it has no timeout, and only a message can wake it."""
    asleep, select = threading.Event(), selectors.DefaultSelector.select
    timeouts: list[float | None] = []

    def watched(self: selectors.BaseSelector, timeout: float | None = None) -> Any:
        if threading.current_thread().name == "rekindle-engine":
            timeouts.append(timeout)
            if timeout is None:
                asleep.set()
        return select(self, timeout)  # type: ignore[arg-type]

    monkeypatch.setattr(selectors.DefaultSelector, "select", watched)
    with fake_session() as session:
        for _ in range(3):
            await session.generate(token_ids=PROMPT, max_tokens=5)
            asleep.clear()
            handle = session.submit(token_ids=PROMPT, max_tokens=5)
            await handle
            assert await to_thread.run_sync(asleep.wait, 60), "it polls"
        assert all(timeout in (None, 0) for timeout in timeouts), "it never waits for a time to pass"
        assert None in timeouts
