"""Waiting in tests: for an expected event, with an end and a reason, and with one patience for child processes."""

import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import Final, ParamSpec, TypeVar

import anyio

PATIENCE: Final = float(os.environ.get("REKINDLE_TEST_PATIENCE", "240"))
"""The seconds of a test's wait for an expected event, like the end of a child process; below pytest's own timeout."""
_LOOK_SECONDS: Final = 0.001

P = ParamSpec("P")
T = TypeVar("T")


async def until(condition: Callable[[], object], why: str, *, step: Callable[[], object] | None = None) -> None:
    """Return when `condition` holds, and let the loop's other tasks run meanwhile.

    Args:
        condition: looked at about once a millisecond.
        why: the end of the sentence "waited 240 s in vain until ...".
        step: called before each further look, for instance to settle one more tick.

    Raises:
        AssertionError: the condition did not hold within PATIENCE seconds.
    """
    with suppress(TimeoutError), anyio.fail_after(PATIENCE):
        while not condition():
            if step is not None:
                step()
            await anyio.sleep(_LOOK_SECONDS)
        return
    raise AssertionError(f"waited {PATIENCE:g} s in vain until {why}")


def bounded(test: Callable[P, Awaitable[T]], seconds: float) -> Callable[P, Awaitable[T]]:
    """Return the async function with a bound: it is cancelled after so many seconds, and raises TimeoutError."""

    @wraps(test)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with anyio.fail_after(seconds):
            return await test(*args, **kwargs)

    return run


def until_blocking(condition: Callable[[], object], why: str) -> None:
    """Return when `condition` holds, and block this thread meanwhile; otherwise as `until`."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {PATIENCE:g} s in vain until {why}")
        time.sleep(_LOOK_SECONDS)
