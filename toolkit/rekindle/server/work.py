"""Work on large requests, on threads: the event loop serves other requests meanwhile."""

from collections.abc import Callable
from typing import Final, TypeVar

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

T = TypeVar("T")

AT_ONCE: Final = 4
"""Large requests read or written at once. Threads for other work stay free."""
_LIMITER: RunVar[CapacityLimiter] = RunVar("rekindle-large-requests")


async def on_thread(work: Callable[[], T]) -> T:
    """Return the result of work on a thread. The work waits while `AT_ONCE` others run."""
    try:
        limiter = _LIMITER.get()
    except LookupError:
        limiter = CapacityLimiter(AT_ONCE)
        _LIMITER.set(limiter)
    return await run_sync(work, limiter=limiter)
