"""The watchdog: a tick stuck on the device fails its waiting requests, and the session lives."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from anyio import to_thread

from rekindle.core.engine.watchdog import ACCELERATOR_SECONDS, CPU_SECONDS, Watchdog, timeout_of
from rekindle.core.errors import ConfigError, EngineFailed, SessionClosed, StepTimeout
from rekindle.core.messages import (
    Admit,
    Chunk,
    Dispatched,
    Message,
    Outputs,
    Overdue,
    Plan,
    Rejected,
    Row,
    Settled,
    UseWeights,
)
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.scheduler.scheduler import Scheduler
from rekindle.session.operations import engine as engine_operations
from rekindle.session.session import Session
from rekindle.settings.engine import Settings
from rekindle.testing.by_hand import fake_limits
from rekindle.testing.device import FakeSettler, FakeStepper
from rekindle.testing.session import fake_loaded_engine, fake_session
from tests.waiting import PATIENCE, until_blocking

SHORT = 0.05
"""A timeout, in seconds; a fake device with held ticks is sure to miss it."""


class Clock:
    """A clock set by hand, and the time of a program's arrival."""

    def __init__(self) -> None:
        self.now, self.waited = 0.0, -math.inf


def watched(clock: Clock, timeout: float = 10.0) -> tuple[Watchdog, list[Overdue]]:
    """Return a watchdog without its thread, and its reports."""
    reports: list[Overdue] = []
    dog = Watchdog(timeout, reports.append, lambda: clock.waited, lambda: clock.now)
    dog._thread = threading.current_thread()  # type: ignore[assignment]
    return dog, reports


def plan(tick: int) -> Plan:
    return Plan(tick, (Chunk(3, 0, 0, (1,) * 20, (1, 1), (1,), None),), (Row(5, 1, 2), Row(7, 2, 3)))


def dispatched(tick: int) -> Dispatched:
    return Dispatched(tick, (), (), None)


# The pure part, with a clock that is set by hand


def test_a_tick_is_overdue_once_its_timeout_is_over_and_again_after_each_further_one() -> None:
    clock = Clock()
    dog, reports = watched(clock)
    assert dog.look() is None, "nothing to time"
    dog.begin(plan(1))
    clock.now = 4
    assert dog.look() == 6
    dog.end(plan(1))
    assert dog.look() is None, "the device has it, and nobody waits for it yet"
    dog.begin(dispatched(1))
    clock.now = 13.5
    assert dog.look() == 0.5
    assert reports == []
    clock.now = 14
    assert dog.look() == 10
    stuck = dog.stuck
    assert stuck == "stuck in tick 1 for 10.00 s"
    clock.now = 24
    dog.look()
    dog.look()
    assert [report.tick for report in reports] == [1, 1]
    dog.end(dispatched(1))
    assert (dog.stuck, dog.look()) == (None, None)


def test_the_error_says_what_was_dispatched_and_what_every_thread_does() -> None:
    clock = Clock()
    dog, reports = watched(clock)
    dog.begin(plan(4))
    clock.now = 12
    dog.look()
    error = reports[0].error
    assert isinstance(error, StepTimeout)
    assert (error.tick, error.prompt_tokens, error.rows, error.requests, error.seconds) == (4, 20, 2, (3, 5, 7), 12)
    assert "MainThread" in error.stacks
    assert "test_the_error_says_what_was_dispatched" in error.stacks
    assert "watchdog_timeout, 10.00 s" in str(error)


def test_waits_for_a_program_do_not_count() -> None:
    clock = Clock()
    dog, reports = watched(clock)
    dog.begin(plan(1))
    clock.now, clock.waited = 50, math.inf  # being compiled
    assert dog.look() == 10
    clock.now, clock.waited = 70, 65
    assert dog.look() == 5
    assert reports == []
    clock.now = 75
    dog.look()
    assert len(reports) == 1


def test_the_tick_that_has_taken_longest_is_the_one_that_is_stuck() -> None:
    clock = Clock()
    dog, reports = watched(clock)
    dog.begin(dispatched(1))
    clock.now = 3
    dog.begin(plan(2))
    clock.now = 14
    dog.look()
    assert [report.tick for report in reports] == [1], "the other waits for it"
    dog.end(dispatched(1))
    dog.look()
    assert [report.tick for report in reports] == [1, 2]
    assert dog.stuck == "stuck in tick 2 for 11.00 s"


def test_the_time_for_which_the_process_was_stopped_does_not_count() -> None:
    clock = Clock()
    dog, reports = watched(clock)
    dog.begin(plan(1))
    clock.now = 3605
    dog.discount(3600)
    assert dog.look() == 5
    assert reports == []


def test_without_a_limit_nothing_is_timed() -> None:
    dog = Watchdog(math.inf, lambda overdue: None)
    dog.begin(plan(1))
    assert (dog.look(), dog._thread) == (None, None)


def test_the_default_is_by_platform() -> None:
    assert timeout_of(None, "cpu") == CPU_SECONDS
    assert timeout_of(None, "gpu") == timeout_of(None, "tpu") == ACCELERATOR_SECONDS
    assert timeout_of(2.5, "tpu") == 2.5


@pytest.mark.parametrize("seconds", [0, -1, math.nan, True, "60"])
def test_what_is_no_time_is_refused(seconds: object) -> None:
    with pytest.raises(ConfigError, match=r"watchdog_timeout must be a positive number of seconds, or math\.inf"):
        Settings(watchdog_timeout=seconds)  # type: ignore[arg-type]


def test_other_work_of_the_device_is_timed_as_ticks_are() -> None:
    clock = Clock()
    dog, reports = watched(clock)
    dog.begin(UseWeights(1, [], 1))
    dog.begin(UseWeights(2, [], 1))  # at another actor
    dog.end(UseWeights(2, [], 1))
    clock.now, clock.waited = 12, 5
    assert dog.look() == 3, "the wait for a program does not count"
    clock.now = 15
    dog.look()
    assert [report.tick for report in reports] == [None]
    assert dog.stuck == "stuck in an exchange of weights for 10.00 s"
    assert "has not finished an exchange of weights within" in str(dog.error)
    dog.end(UseWeights(1, [], 1))
    assert dog.look() is None
    assert not dog.stuck


# The scheduler


def watchdogs() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rekindle-watchdog"]


def request(number: int) -> Request:
    return Request(number, (1, 2, 3), SamplingParams(max_tokens=4), frozenset(), 32)


def rejected(messages: list[Message]) -> list[int]:
    return [each.request_id for each in messages if isinstance(each, Rejected)]


def test_who_runs_fails_at_once_and_who_waits_after_as_long_again() -> None:
    scheduler = Scheduler(fake_limits(max_running=1, overlap=False))
    assert any(isinstance(each, Plan) for each in scheduler.handle(Admit(request(1))))
    scheduler.handle(Admit(request(2)))
    error = StepTimeout("it hangs")
    messages = scheduler.handle(Overdue(1, error))
    assert rejected(messages) == [1]
    assert not any(isinstance(each, Plan) for each in messages), "nothing is planned behind it"
    scheduler.handle(Admit(request(3)))
    assert rejected(scheduler.handle(Overdue(1, error))) == [2], "the third has not waited so long"
    messages = scheduler.handle(Settled(1, ((1, 7),)))
    assert not any(isinstance(each, Outputs) for each in messages), "the token is of a request that has failed"
    assert [each.chunks[0].request_id for each in messages if isinstance(each, Plan)] == [3], "it serves on"
    scheduler.check()


def test_requests_behind_other_work_fail_and_later_ones_are_planned() -> None:
    scheduler, error = Scheduler(fake_limits()), StepTimeout("it hangs")
    assert rejected(scheduler.handle(Overdue(None, error))) == []
    assert any(isinstance(each, Plan) for each in scheduler.handle(Admit(request(1)))), "nothing is in flight"
    assert rejected(scheduler.handle(Overdue(None, error))) == [1]
    assert not any(isinstance(each, Plan) for each in scheduler.handle(Admit(request(2)))), "a tick waits behind it"
    messages = scheduler.handle(Settled(1, ((1, 7),)))
    assert [each.chunks[0].request_id for each in messages if isinstance(each, Plan)] == [2]
    scheduler.check()


def test_a_tick_that_settles_meanwhile_fails_nobody() -> None:
    scheduler = Scheduler(fake_limits())
    scheduler.handle(Admit(request(1)))
    scheduler.handle(Settled(1, ((1, 7),)))
    assert rejected(scheduler.handle(Overdue(1, StepTimeout("it hung")))) == []
    assert scheduler.stats.running == 1


# A session


def stuck_session(settler: FakeSettler, free: Callable[[], None] = lambda: None, *, timeout: float = SHORT) -> Session:
    loaded_engine = fake_loaded_engine(fake_limits(), settler=settler, free=free)
    loaded_engine = replace(loaded_engine, settings=replace(loaded_engine.settings, watchdog_timeout=timeout))
    return fake_session(loaded_engine)


def watchdog_of(session: Session) -> Watchdog:
    (watchdog,) = session._engine.thread._serving()._watchdogs
    return watchdog


def tokens_of(session: Session, most: int) -> Sequence[int]:
    """Return generated tokens, however often a busy machine is taken for a stuck device before."""
    answers: list[Sequence[int]] = []

    def answered() -> bool:
        with suppress(StepTimeout):
            answers.append(session.generate_sync(token_ids=[4, 5, 6], max_tokens=most).token_ids)
        return bool(answers)

    until_blocking(answered, "an answer")
    return answers[0]


def test_a_device_that_never_settles_fails_the_requests_and_is_closed() -> None:
    with stuck_session(FakeSettler(held=True)) as session:
        with pytest.raises(StepTimeout, match="the device has not finished tick 1") as raised:
            session.generate_sync(token_ids=[1, 2, 3], max_tokens=3)
        assert raised.value.seconds >= SHORT
        assert "rekindle-engine" in raised.value.stacks
        assert session.error is None
        assert "stuck in tick 1 for" in repr(session)
        assert "stuck in tick 1 for" in str(session.dashboard())
        with pytest.raises(StepTimeout):  # one that comes later waits no longer than twice the timeout
            session.generate_sync(token_ids=[4, 5, 6], max_tokens=3)
    until_blocking(lambda: not watchdogs(), "it has ended")


def test_a_device_that_settles_late_serves_on() -> None:
    settler = FakeSettler(held=True)
    with fake_session() as sound:
        expected = sound.generate_sync(token_ids=[4, 5, 6], max_tokens=5).token_ids
    with stuck_session(settler) as session:
        with pytest.raises(StepTimeout):
            session.generate_sync(token_ids=[1, 2, 3], max_tokens=3)
        settler.release()
        until_blocking(lambda: session.stuck is None, "the tick has settled")
        watchdog_of(session)._timeout = PATIENCE  # on a busy machine, a tick in time may be longer than SHORT
        assert tokens_of(session, 5) == expected
        assert "stuck" not in repr(session)


def test_a_device_that_raises_ends_the_engine_as_ever() -> None:
    class Broken:
        def handle(self, message: Message) -> list[Message]:
            raise RuntimeError("the device is gone")

    loaded_engine = fake_loaded_engine(fake_limits())
    loaded_engine = replace(
        loaded_engine.composed(lambda actors: replace(actors, settler=Broken())),
        settings=replace(loaded_engine.settings, watchdog_timeout=PATIENCE),
    )
    with fake_session(loaded_engine) as session, pytest.raises(EngineFailed, match="the device is gone"):
        session.generate_sync(token_ids=[1, 2, 3], max_tokens=3)
    until_blocking(lambda: not watchdogs(), "it has ended")


def test_its_thread_sleeps_while_the_engine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float | None] = []
    look = Watchdog.look

    def count_look(dog: Watchdog) -> float | None:
        looks.append(look(dog))
        return looks[-1]

    monkeypatch.setattr(Watchdog, "look", count_look)
    with stuck_session(FakeSettler(), timeout=PATIENCE) as session:
        assert not watchdogs(), "no tick yet"
        session.generate_sync(token_ids=[1, 2, 3], max_tokens=3)
        dog = watchdog_of(session)

        def is_asleep() -> bool:
            with dog._changed:
                if not dog._sleeping:
                    dog._changed.notify()  # instead of at the end of the timeout of a tick that has ended
                return dog._sleeping

        until_blocking(is_asleep, "it sleeps until there is a tick")
        before = len(looks)
        assert looks[-1] is None, "its sleep has no end of its own"
        assert dog._thread is not None
        session.generate_sync(token_ids=[1, 2, 3], max_tokens=3)
        until_blocking(lambda: len(looks) > before, "a tick wakes it")
    dog._thread.join(PATIENCE)
    assert not dog._thread.is_alive()


# A device that hangs for good


class Hanging(FakeSettler):
    """A settler with an endless wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = threading.Event()

    async def handle(self, message: Message) -> list[Message]:
        await to_thread.run_sync(self.ready.wait)
        return await super().handle(message)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    monkeypatch.setattr(engine_operations, "STUCK_SECONDS", SHORT)
    monkeypatch.setattr(engine_operations, "EXIT_SECONDS", SHORT)
    settler = Hanging()
    yield settler
    settler.ready.set()


def hang(session: Session) -> None:
    with pytest.raises(StepTimeout):
        session.generate_sync(token_ids=[1, 2, 3], max_tokens=3)


STUCK = r"it is stuck in tick 1 for"


@contextmanager
def left_behind(session: Session, obstacle: str = STUCK) -> Iterator[Session]:
    """Close a session with a stuck device at the end of a block; check the warning."""
    try:
        yield session
    finally:
        with pytest.warns(RuntimeWarning, match=f"its engine has not stopped: {obstacle}.*restart the kernel"):
            session.close_sync()


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_a_block_is_left_with_the_error_though_the_device_hangs_for_good(hanging: Hanging) -> None:
    async def block() -> None:
        async with stuck_session(hanging) as session:
            sessions.append(session)
            await session.generate(token_ids=[1, 2, 3], max_tokens=3)

    sessions: list[Session] = []
    with pytest.warns(RuntimeWarning, match=STUCK), pytest.raises(StepTimeout):
        await block()
    with pytest.raises(SessionClosed, match="its engine was left behind, stuck in tick 1"):
        await sessions[0].generate(token_ids=[1])
    await sessions[0].close()  # at once, and without another warning


def test_the_memory_of_an_engine_left_behind_is_freed_once_its_device_returns(hanging: Hanging) -> None:
    freed = threading.Event()
    with left_behind(stuck_session(hanging, freed.set)) as session:
        hang(session)
    assert not freed.is_set()
    hanging.ready.set()
    assert freed.wait(PATIENCE)
    assert isinstance(session.error, SessionClosed)


def test_a_close_before_the_watchdog_reports_ends_too(hanging: Hanging) -> None:
    session = fake_session(fake_loaded_engine(fake_limits(), settler=hanging))
    with left_behind(session, "it is in a call that does not return"):
        handle = session.submit(token_ids=[1, 2, 3])
        until_blocking(lambda: session.stats.scheduler.running == 1, "a tick is in flight")
    with pytest.raises(SessionClosed):
        handle.result()


def test_a_server_of_the_session_ends_with_it(hanging: Hanging) -> None:
    with left_behind(stuck_session(hanging)) as session:
        server = session.serve_sync(port=0, grace=0.0)
        hang(session)
    assert server.closed.closed


def test_an_exchange_of_weights_that_hangs_lets_all_callers_go(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = FakeStepper.handle

    async def hang_at_weights(self: FakeStepper, message: Message) -> list[Message]:
        if isinstance(message, UseWeights):
            await to_thread.run_sync(hanging.ready.wait)
        return handle(self, message)

    monkeypatch.setattr(FakeStepper, "handle", hang_at_weights)
    with left_behind(stuck_session(FakeSettler()), "it is stuck in an exchange of weights for") as session:
        with pytest.raises(StepTimeout, match="has not finished an exchange of weights"):
            session.sleep_sync()
        with pytest.raises(StepTimeout, match="has not finished an exchange of weights"):
            session.generate_sync(token_ids=[1, 2, 3], max_tokens=3)


def test_close_waits_for_a_compiler_that_is_slow(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_operations, "compiling", True)
    with stuck_session(hanging) as session:
        hang(session)
        threading.Timer(20 * SHORT, hanging.ready.set).start()


def test_a_closing_session_saves_nothing_behind_a_stuck_tick(hanging: Hanging) -> None:
    with left_behind(stuck_session(hanging)) as session:
        hang(session)
    assert not session._engine.client._answers


def step_twice(session: Session) -> None:
    """Step twice: the first step may find a message without need of the device."""
    session.step_sync()
    session.step_sync()


OPERATIONS: dict[str, Callable[[Session], object]] = {
    "sleep": Session.sleep_sync,
    "pause": Session.pause_sync,
    "step": step_twice,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_waits_for_a_stuck_tick_ends(name: str, hanging: Hanging) -> None:
    with stuck_session(hanging) as session:
        hang(session)
        with pytest.raises(StepTimeout, match="the device has not finished tick 1"):
            OPERATIONS[name](session)
        hanging.ready.set()
        session.resume()
        until_blocking(lambda: session.stuck is None, "the device returns")
        assert len(tokens_of(session, 3)) == 3
        assert not session.asleep
