"""Whose call this is."""

import asyncio
import threading
from contextlib import suppress

from rekindle.core.concurrency.mailbox import in_trio


def current_caller() -> int:
    """Return a number that tells the task or thread that calls this from all others that run now.

    It may be that of a task which has ended; then the two are taken for one.
    """
    if in_trio():
        import trio

        return id(trio.lowlevel.current_task())
    with suppress(RuntimeError):  # this thread runs no loop
        return id(asyncio.current_task() or asyncio.get_running_loop())
    return threading.get_ident()
