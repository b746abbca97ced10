"""Identity of the calling task or thread."""

import asyncio
import threading
from contextlib import suppress

from rekindle.core.concurrency.mailbox import in_trio


def current_caller() -> int:
    """Return a number that identifies the calling task or thread among all running ones.

    The number of an ended task may be reused; both tasks then count as one caller.
    """
    if in_trio():
        import trio

        return id(trio.lowlevel.current_task())
    with suppress(RuntimeError):  # this thread runs no loop
        return id(asyncio.current_task() or asyncio.get_running_loop())
    return threading.get_ident()
