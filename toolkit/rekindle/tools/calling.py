"""Calls of the functions of tools, as steps of an operation."""

import asyncio
import dataclasses
import json
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.mailbox import turning
from rekindle.core.concurrency.waits import Wait, Waits, awaited, blocked


@dataclass(frozen=True, slots=True)
class Called:
    """A function to call: a step whose result is that of the function, or the error that it raised."""

    function: Callable[..., Any]
    arguments: dict[str, Any]

    async def awaited(self) -> Any:
        """Call the function; an async one runs in the caller's loop.

        Another function may block, so it has a thread of its own, with the caller's context: the cell stays alive, and
        an interrupt ends the wait even if the function never returns. The thread cannot be ended; it goes on for
        nobody, and no process waits for it.
        """
        try:
            if iscoroutinefunction(self.function) or iscoroutinefunction(type(self.function).__call__):
                return await _turning(self._now())
            result = await awaited(_in_a_thread(self._now, copy_context()))
            return await _turning(result) if isawaitable(result) else result
        except Exception as error:
            return error

    def blocked(self) -> Any:
        """Call the function on this thread.

        An async one runs in an asyncio loop of its own, on a thread of its own, because a loop may run here.
        """
        try:
            result = self._now()
            if not isawaitable(result):
                return result
            # In the caller's context, it would seem to run in the loop that this thread may have.
            return blocked(_in_a_thread(partial(asyncio.run, _result(result)), Context()))
        except Exception as error:
            return error

    def _now(self) -> Any:
        """Call the function, and return its result, which may be awaitable."""
        return self.function(**self.arguments)


def in_words(value: Any) -> str:
    """Return a result as the model is told it: a text as it is, all else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Exception):
        return f"error: {type(value).__name__}: {value}"
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """Return what JSON can hold of a value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    for method in ("model_dump", "tolist"):  # of pydantic and of arrays
        if callable(plain := getattr(value, method, None)):
            return plain()
    return list(value) if isinstance(value, set | frozenset) else str(value)


async def _turning(result: Awaitable[Any]) -> Any:
    """Await a result so that an interrupt of the cell is heard meanwhile."""
    with turning():
        return await result


async def _result(result: Awaitable[Any]) -> Any:
    return await result


def _in_a_thread(work: Callable[[], Any], context: Context) -> Waits[Any]:
    """Do work in a daemon thread and in a context, and return what it returns; raises what it raises."""
    done: Feed[tuple[Any, BaseException | None]] = Feed()

    def run() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:
            done.put((None, error))
        done.close()

    threading.Thread(target=context.run, args=(run,), name="rekindle-tool", daemon=True).start()
    yield Wait(done)
    result, error = done.items[0]
    if error is not None:
        raise error
    return result
