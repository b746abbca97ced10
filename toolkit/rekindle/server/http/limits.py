"""Bounds on request bodies and on buffers for clients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

T = TypeVar("T")

AT_ONCE: Final = 4
"""Large requests read or written at once. Threads for other work stay free."""
_LIMITER: RunVar[CapacityLimiter] = RunVar("rekindle-large-requests")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a server.

    Attributes:
        body_bytes: the largest request body, in bytes.
        body_seconds: the longest time to receive a body, in seconds; also that until there is room for it.
        bodies_bytes: the most bytes of the large bodies of all requests in service; one client has half of them.
        prompts: the most prompts in one body; also bounds the prompts times `n`, and the texts to embed.
        unread: the most chunks of a stream buffered for a slow client. One more cancels its request.
        unread_seconds: the longest time, in seconds, a stream waits for a client to read.
        first_seconds: the time, in seconds, until a stream begins without an event.
        quiet_seconds: the time, in seconds, until a silent stream has a ping.
    """

    body_bytes: int = 32 << 20
    body_seconds: float = 60.0
    bodies_bytes: int = 512 << 20
    prompts: int = 2048
    unread: int = 1024
    unread_seconds: float = 60.0
    first_seconds: float = 2.0
    quiet_seconds: float = 15.0


async def on_thread(work: Callable[[], T], *, may_leave: bool = False) -> T:
    """Return the result of work on a thread. The work waits while `AT_ONCE` others run.

    Args:
        work: the work.
        may_leave: whether a cancelled wait ends before the work.
    """
    try:
        limiter = _LIMITER.get()
    except LookupError:
        limiter = CapacityLimiter(AT_ONCE)
        _LIMITER.set(limiter)
    return await run_sync(work, limiter=limiter, abandon_on_cancel=may_leave)
