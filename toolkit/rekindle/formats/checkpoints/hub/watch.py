"""A watch over calls of the hub's library, which may wait for bytes without an end."""

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
STALL: Final = 60.0
"""Seconds without a byte after which a transfer is given up."""
_LOOK_SECONDS: Final = 0.5
_END_SECONDS: Final = 5.0
"""Time for a transfer to end after it was aborted."""


class Stalled(Exception):
    """No byte came for too long.

    Attributes:
        goes_on: whether the transfer could not be ended, and still holds its locks in the cache.
    """

    def __init__(self, goes_on: bool = False):
        super().__init__(f"no byte came for {STALL:.0f} s")
        self.goes_on = goes_on


def watched(work: Callable[[], _T], sign: Callable[[], Any], look: Callable[[], None]) -> _T:
    """Return the result of a call on a thread of its own, as long as it shows signs of life.

    Args:
        work: the call. Its thread is left behind if it cannot be ended.
        sign: returns a value that changes while bytes come; None if no watch is needed now.
        look: called now and then; an error of it ends the wait.

    Raises:
        Stalled: the sign was the same for `STALL` seconds.
        Others: errors of `work` and `look`.
    """
    result: Future[_T] = Future()
    thread = Thread(target=copy_context().run, args=(_run, work, result), name="rekindle-download", daemon=True)
    thread.start()
    last, since = sign(), time.monotonic()
    try:
        while not wait([result], min(_LOOK_SECONDS, STALL / 4)).done:
            look()
            if (now := sign()) != last or now is None:
                last, since = now, time.monotonic()
            elif time.monotonic() - since >= STALL:
                raise Stalled
    except BaseException as error:
        _abort()
        if isinstance(error, Stalled):
            thread.join(_END_SECONDS)
            raise Stalled(thread.is_alive()) from None
        raise
    return result.result()


def _run(work: Callable[[], _T], result: "Future[_T]") -> None:
    try:
        result.set_result(work())
    except BaseException as error:
        result.set_exception(error)


def _abort() -> None:
    """End the transfers by xet in this process, with the library's own means against an interrupt."""
    with suppress(ImportError):  # versions before 1.20 have none
        from huggingface_hub.utils._xet import abort_xet_session

        abort_xet_session()  # type: ignore[no-untyped-call]
