"""Event loop of an MCP client, and calls of the client from any thread."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from rekindle.core.concurrency.mailbox import in_trio, responsive
from rekindle.core.concurrency.waits import Waits, awaited, blocked, in_a_thread
from rekindle.core.errors import InvalidRequest


class Home:
    """Event loop of a client: the one that entered it, and the only one to call it in.

    Args:
        loop: the loop of asyncio, or a token of trio.
    """

    def __init__(self, loop: Any):
        self._loop = loop

    @classmethod
    def here(cls, place: str) -> "Home":
        """Return the running loop of this thread.

        Args:
            place: the client in the error, such as "tools[0]".

        Raises:
            InvalidRequest: no loop runs.
        """
        loop = _running()
        if loop is None:
            raise InvalidRequest(
                f"{place} is a client of an MCP server, which lives in an event loop, and none runs in this thread: "
                "pass it in the async function or the cell that has entered it"
            )
        return cls(loop)

    @property
    def is_here(self) -> bool:
        """True if this thread runs the loop."""
        return _running() is self._loop

    def elsewhere(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Waits[Any]:
        """Run work in the loop from another thread, and return its result; leaving the wait cancels the work.

        Raises:
            RuntimeError: the loop has ended, or is trio's.
        """
        if not isinstance(self._loop, asyncio.AbstractEventLoop):
            raise RuntimeError("an MCP client under trio can be called by tasks of its own trio.run alone")
        if not self._loop.is_running():
            raise RuntimeError("the event loop of the MCP client has ended")
        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        return (yield from in_a_thread(future.result, "mcp", stop=lambda: _cancel(future)))


@dataclass(frozen=True, slots=True)
class ClientCall:
    """Call of a client, as a step. Its outcome is the result, or the error."""

    home: Home
    work: Callable[[], Coroutine[Any, Any, Any]]

    async def awaited(self) -> Any:
        """Call the client in its loop; leaving the wait cancels the call."""
        try:
            if self.home.is_here:
                with responsive():
                    return await self.work()
            return await awaited(self.home.elsewhere(self.work))
        except Exception as error:
            return error

    def blocked(self) -> Any:
        """Call the client from a thread without its loop.

        Raises:
            InvalidRequest: this thread runs the loop, and would block it.
        """
        if self.home.is_here:
            raise InvalidRequest(
                "a blocking call stops the event loop of its thread, and with it the MCP client: await the call "
                "instead, as in await session.run_tools(...)"
            )
        try:
            return blocked(self.home.elsewhere(self.work))
        except Exception as error:
            return error


def _running() -> Any:
    """Return the running loop of this thread, for trio its token; None without a loop."""
    if in_trio():
        import trio

        return trio.lowlevel.current_trio_token()
    return asyncio._get_running_loop()


def _cancel(future: Any) -> None:
    future.cancel()
