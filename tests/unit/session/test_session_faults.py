"""Whatever goes wrong around a session, callers are answered, errors say where they arose, and nothing stays."""

import asyncio
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import anyio
import pytest
from anyio import to_thread

import rekindle
from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.core.engine.actor import Actor
from rekindle.core.errors import EngineFailed, ModelError, RequestCancelled, SessionClosed
from rekindle.core.messages import Message
from rekindle.core.messages.record import MessageRecord
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, fake_limits, fake_loaded_engine, fake_session
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

PROMPT = [3, 1, 4]
ENDLESS = 4000


def held_session(free: Callable[[], None] = lambda: None) -> Session:
    """Open a session in which nothing ever settles."""
    return fake_session(fake_loaded_engine(fake_limits(), settler=FakeSettler(held=True), free=free))


async def test_a_session_that_is_left_by_a_timeout_stops_though_nothing_can_be_awaited_any_more() -> None:
    freed = threading.Event()
    with anyio.move_on_after(PATIENCE) as scope:
        async with held_session(freed.set) as session, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(session.generate, token_ids=PROMPT, max_tokens=ENDLESS))
            await anyio.wait_all_tasks_blocked()
            scope.deadline = anyio.current_time()
    assert scope.cancelled_caught
    assert await to_thread.run_sync(freed.wait, PATIENCE)
    await session.close()


def test_a_device_that_cannot_be_freed_does_not_keep_close_waiting() -> None:
    def free() -> None:
        raise OSError("the device is gone")

    failed: list[BaseException | None] = []
    hook = threading.excepthook
    threading.excepthook = lambda failure: failed.append(failure.exc_value)
    try:
        fake_session(fake_loaded_engine(fake_limits(), free=free)).close_sync()
        engine = [thread for thread in threading.enumerate() if thread.name == "rekindle-engine"]
        for thread in engine:
            thread.join(PATIENCE)
    finally:
        threading.excepthook = hook
    assert [str(error) for error in failed] == ["the device is gone"]


def test_an_open_that_fails_after_the_engine_began_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = threading.Event()
    loaded_engine = replace(fake_loaded_engine(fake_limits(), free=freed.set), unserved=("num_beams",))

    def build(*_: object, **__: object) -> LoadedEngine:
        return loaded_engine

    monkeypatch.setattr("rekindle.session.opening.build", build)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="num_beams"):
            rekindle.open_sync("anything", progress=False)
    assert freed.wait(PATIENCE)


def test_an_error_that_is_raised_again_carries_no_frames_of_those_who_got_it_before() -> None:
    session = fake_session()
    cancelled = session.submit(token_ids=PROMPT, max_tokens=ENDLESS)
    cancelled.cancel()
    with pytest.raises(RequestCancelled):  # or the end of the session could come before it
        cancelled.result()
    session.close_sync()

    def frames(call: Callable[[], object], error: type[Exception]) -> int:
        with pytest.raises(error) as caught:
            call()
        return len(traceback.extract_tb(caught.value.__traceback__))

    for call, error in (
        (partial(session.generate_sync, token_ids=PROMPT), SessionClosed),
        (session.step_sync, SessionClosed),
        (lambda: session.pending, SessionClosed),
        (cancelled.result, RequestCancelled),
    ):
        assert frames(call, error) == frames(call, error)


async def test_weights_that_are_left_at_the_moment_of_a_close_are_left_quietly() -> None:
    session = held_session()
    request = session.submit(token_ids=PROMPT)
    # Weights would be used at once if nothing had started.
    await until(lambda: request.record.standing.state != "waiting", "the request had started")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.update_weights, {})
        await until(lambda: session._engine.client._answers, "the engine was asked to use them")
        tasks.cancel_scope.cancel()
        session.close_sync()


def test_a_signal_handlers_own_exception_cancels_the_request_that_is_waited_for() -> None:
    class Alarm(BaseException):
        pass

    with held_session() as session:
        handle = session.submit(token_ids=PROMPT, max_tokens=ENDLESS)

        def ring(*_: object) -> bool:
            raise Alarm

        handle.record.pieces.wait_blocking = ring  # type: ignore[method-assign, assignment]
        with pytest.raises(Alarm):
            handle.result()
        assert handle.record.standing.state in ("cancelling", "cancelled")


@pytest.mark.parametrize("ending", [(True,), (False, True)], ids=["begun before", "begins just now"])
def test_a_model_that_is_opened_while_the_process_ends_cannot_be_which_is_said(
    ending: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    _begin_to_end(monkeypatch, ending)
    with pytest.raises(ModelError, match=r"^some-model: weights can no longer be read, .* its main thread is done"):
        rekindle.open_sync("some-model", progress=False)


def test_any_other_reason_why_no_thread_begins_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    _begin_to_end(monkeypatch, (False, False))
    with pytest.raises(RuntimeError, match="no thread"):
        rekindle.open_sync("some-model", progress=False)


def _begin_to_end(monkeypatch: pytest.MonkeyPatch, ending: tuple[bool, ...]) -> None:
    """Let no thread start, and answer the question for the end of the process from `ending`."""
    answers = iter(ending)

    def refuse(*_: object) -> None:
        raise RuntimeError("no thread")

    monkeypatch.setattr("rekindle.session.opening.ending", lambda: next(answers))
    monkeypatch.setattr("rekindle.session.opening.EngineThread", refuse)


# Messages for the author of an actor


@dataclass(frozen=True)
class Note:
    """An object of another kind than a message."""

    text: str


class Saying:
    """An actor with one fixed answer."""

    def __init__(self, answer: object):
        self._answer = answer

    def handle(self, message: Message) -> Iterable[Message]:
        return cast("Iterable[Message]", self._answer)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, r"handle\(\) of .*Saying.* must return a list of messages or be a generator, got None"),
        (Note("hello"), r"must return a list of messages or be a generator, got Note\(text='hello'\)"),
        (
            [Note("hello")],
            r"an actor must send messages of rekindle\.core\.messages; no actor takes Note\(text='hello'\)",
        ),
    ],
)
def test_an_actor_that_says_something_else_than_messages_is_named(answer: object, expected: str) -> None:
    loaded_engine = fake_loaded_engine(fake_limits())
    speaking = cast(Actor, Saying(answer))
    with fake_session(loaded_engine.composed(lambda actors: replace(actors, detokenizer=speaking))) as session:
        with pytest.raises(EngineFailed, match=expected) as failed:
            session.generate_sync(token_ids=PROMPT, max_tokens=2)
        cause = failed.value.__cause__
    note = "The actor 'detokenizer' " + ("sent it." if "no actor takes" in expected else "raised it at Outputs.")
    assert getattr(cause, "__notes__", []) == [note]


# Messages for watchers


def test_a_watcher_is_told_nothing_once_its_with_statement_was_left() -> None:
    inside, go, records = threading.Event(), threading.Event(), list[MessageRecord]()

    def wait(_: MessageRecord) -> None:
        inside.set()
        assert go.wait(PATIENCE)

    with fake_session() as session, session.watch(wait):
        with session.watch(records.append):
            handle = session.submit(token_ids=PROMPT, max_tokens=1)
            assert inside.wait(PATIENCE)
        go.set()
        handle.result(PATIENCE)
    assert records == []


def test_a_watch_can_be_entered_again_after_its_function_has_raised() -> None:
    fails = True

    def see(_: MessageRecord) -> None:
        if fails:
            raise ZeroDivisionError

    with fake_session() as session:
        watching = session.watch(see)
        ask: Callable[[], Any] = partial(session.generate_sync, token_ids=PROMPT, max_tokens=1)
        with pytest.raises(ZeroDivisionError), watching:
            ask()
        fails = False
        with watching:
            ask()


def test_a_prefix_that_is_held_counts_as_no_first_token() -> None:
    with fake_session() as session:
        session.prefix_sync(token_ids=PROMPT * 20).release()
        session.generate_sync(token_ids=PROMPT, max_tokens=2)
        assert len(session._engine.client.first_tokens) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are of POSIX")
@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_process_is_told_that_the_engine_is_not_in_it() -> None:
    with fake_session() as session:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(60)  # this ends the process if it hangs
            try:
                session.generate_sync(token_ids=PROMPT, max_tokens=2)
            except SessionClosed as error:
                os.write(writer, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            assert f"the engine is in process {os.getpid()}" in pipe.read()
        assert session.generate_sync(token_ids=PROMPT, max_tokens=2).token_ids


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are of POSIX")
@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("wait", ["pause", "save", "close", "aclose"])
def test_nothing_waits_in_a_forked_process_for_the_engine_of_its_parent(wait: str) -> None:
    session = held_session()
    handle = session.submit(token_ids=PROMPT, max_tokens=2)
    waits: dict[str, Callable[[], object]] = {
        "pause": session.pause_sync,
        "save": session.save_sync,
        "close": session.close_sync,
        "aclose": lambda: asyncio.run(session.close()),
    }
    child = os.fork()
    if not child:
        signal.alarm(60)
        outcome = 1
        try:
            waits[wait]()
            outcome = 2
        except SessionClosed as error:
            outcome = 3 if "which this one was forked from" in str(error) else 1
        finally:
            os._exit(outcome)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (2 if "close" in wait else 3)
    assert not handle.done, "the parent goes on"
    session.close_sync()
