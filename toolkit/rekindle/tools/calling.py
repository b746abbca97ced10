"""Execution of function calls, as steps of an operation; see `rekindle.core.concurrency.waits`."""

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
from rekindle.core.concurrency.mailbox import responsive
from rekindle.core.concurrency.waits import Wait, Waits, awaited, blocked
from rekindle.tools.content import Content, picture_part


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """Function call, as a step of an operation. Its outcome is the result of the function, or its error."""

    function: Callable[..., Any]
    arguments: dict[str, Any]

    async def awaited(self) -> Any:
        """Call the function; an async function runs in the caller's event loop.

        Other functions may block, so they run in separate threads with the caller's context. The cell stays responsive,
        and an interrupt ends the wait even if the function never returns. Its daemon thread is then abandoned, and does
        not delay the exit of the process.
        """
        try:
            if iscoroutinefunction(self.function) or iscoroutinefunction(type(self.function).__call__):
                return await _interruptible(self._now())
            result = await awaited(_in_a_thread(self._now, copy_context()))
            return await _interruptible(result) if isawaitable(result) else result
        except Exception as error:
            return error

    def blocked(self) -> Any:
        """Call the function in this thread.

        An async function runs in a new asyncio loop of another thread, because this thread may run a loop already.
        """
        try:
            result = self._now()
            if not isawaitable(result):
                return result
            # An empty context, because in the caller's context the function would appear to run in this thread's loop.
            return blocked(_in_a_thread(partial(asyncio.run, _result(result)), Context()))
        except Exception as error:
            return error

    def _now(self) -> Any:
        """Call the function; the result of an async function is awaitable."""
        return self.function(**self.arguments)


class ToolFailed(Exception):
    """Error of a tool, in words for the model."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """Result of a tool with a content of its own for the model.

    Attributes:
        content: a text, or parts with text and pictures.
        value: the result for the caller.
    """

    content: Content
    value: Any


def result_content(value: Any) -> Content:
    """Return a function's result for the model: pictures as parts, also those in a list; others as `result_text`."""
    values = value if isinstance(value, list | tuple) else [value]
    pictures = [picture_part(each) for each in values]
    if not any(pictures):
        return result_text(value)
    return [
        {"type": "text", "text": result_text(each)} if picture is None else picture
        for each, picture in zip(values, pictures, strict=True)
    ]


def result_text(value: Any) -> str:
    """Return a function's result as text for the model: a str unchanged, an error as its message, others as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, ToolFailed):
        return f"error: {value}"
    if isinstance(value, Exception):
        return f"error: {type(value).__name__}: {value}"
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """Return a JSON-compatible form of a value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    for method in ("model_dump", "tolist"):  # of pydantic and of arrays
        if callable(plain := getattr(value, method, None)):
            return plain()
    return list(value) if isinstance(value, set | frozenset) else str(value)


async def _interruptible(result: Awaitable[Any]) -> Any:
    """Await a result, responding to interrupts of the cell meanwhile."""
    with responsive():
        return await result


async def _result(result: Awaitable[Any]) -> Any:
    return await result


def _in_a_thread(work: Callable[[], Any], context: Context) -> Waits[Any]:
    """Run work in a daemon thread with a context; return its result or raise its error."""
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
