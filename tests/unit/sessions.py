"""Check the engine at the end of tests of sessions."""

import threading

import anyio

from rekindle.chats.chat import Chat
from rekindle.client.handle import Handle
from rekindle.core.concurrency.threads import Work
from rekindle.core.errors import BatchFailed
from rekindle.session.session import Session
from tests.waiting import until, until_blocking


def thread_of(session: Session) -> threading.Thread:
    """Return the thread of a session's engine; threads of closed sessions may just be on their way out."""
    works = [thread for thread in threading.enumerate() if isinstance(thread, Work)]
    (engine,) = [work for work in works if work.stop == session._engine.thread.stop]
    return engine


def reason(answer: object) -> object:
    """Return the reason of a batch's failure, and any other answer unchanged."""
    return answer.__cause__ if isinstance(answer, BatchFailed) else answer


async def ended(session: Session) -> None:
    """Wait until the engine has freed the resources of the last request."""
    await until(lambda: _is_idle(session), "the engine had freed what the last request had")


def ended_blocking(session: Session) -> None:
    """Wait as `ended`, and block this thread meanwhile."""
    until_blocking(lambda: _is_idle(session), "the engine had freed what the last request had")


async def assert_all_ends_free(session: Session) -> None:
    """Wait until the engine has freed the resources of the last request, and check that every page is free."""
    await ended(session)
    assert_all_is_free(session)


async def interrupt(session: Session, chat: Chat, pieces: int) -> None:
    """Begin a turn with "Hi", and leave its wait once the answer has more than so many pieces."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chat.say, "Hi")
            await until(
                lambda: any(len(each.record.pieces.items) > pieces for each in session.requests.values()), "text came"
            )
            scope.cancel()


async def submitted(session: Session, count: int = 1) -> list[Handle]:
    """Wait until the session has a number of requests, and return their handles."""
    await until(lambda: len(session.requests) >= count, f"{count} requests were submitted")
    return list(session.requests.values())


def _is_idle(session: Session) -> bool:
    stats = session.stats.scheduler
    return not stats.running and not stats.waiting


def assert_all_is_free(session: Session) -> None:
    """Check the counters of the scheduler: no request runs or waits, and every page is free."""
    stats = session.stats.scheduler
    assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)
