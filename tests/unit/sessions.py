"""Check the engine at the end of tests of sessions."""

import threading

from anyio.lowlevel import checkpoint

from rekindle.concurrency.threads import Work
from rekindle.errors import BatchFailed
from rekindle.session.session import Session


def thread_of(session: Session) -> threading.Thread:
    """Return the thread of a session's engine; those of sessions that were closed may just be on their way out."""
    works = [thread for thread in threading.enumerate() if isinstance(thread, Work)]
    (engine,) = [work for work in works if work.stop == session._engine.stop]
    return engine


def reason(answer: object) -> object:
    """Return why a batch failed, and every other answer as it is."""
    return answer.__cause__ if isinstance(answer, BatchFailed) else answer


async def ended(session: Session) -> None:
    """Wait until the engine has freed what the last request had."""
    while session.stats.scheduler.running or session.stats.scheduler.waiting:
        await checkpoint()


def assert_all_is_free(session: Session) -> None:
    """Check that no request runs or waits, and that every page is free."""
    stats = session.stats.scheduler
    assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)
