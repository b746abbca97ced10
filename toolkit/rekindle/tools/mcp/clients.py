"""Tools of MCP servers, listed and called by clients."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio

from rekindle.core.concurrency.waits import Waits
from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.formats.rendering.chat import check_tools
from rekindle.tools.calling import ToolFailed, ToolOutput
from rekindle.tools.mcp.home import ClientCall, Home
from rekindle.tools.mcp.protocol import is_closed, page_of
from rekindle.tools.mcp.results import output_of
from rekindle.tools.references import without_references
from rekindle.tools.sources import ToolSource
from rekindle.tools.tool import Tool

LIST_SECONDS: Final = 60.0
"""Longest time for the list of a server's tools."""
MOST_PAGES: Final = 1000
"""Most pages of a list."""
MOST_TOOLS: Final = 10_000
"""Most tools of a list."""


class ClientTools(ToolSource):
    """Tools of an MCP server, which is asked for them once.

    Args:
        client: the client session.
        home: the event loop of the client.
        name: the name of the server for errors; the default is its own.
        limit: the longest time of a call in seconds; None leaves it to the client. A list takes `LIST_SECONDS` at most.
        changed: returns whether the list has changed since the last call.
    """

    def __init__(
        self,
        client: Any,
        home: Home,
        name: str = "",
        limit: float | None = None,
        changed: Callable[[], bool] = lambda: False,
    ):
        self.name = f"the MCP server {name or _own_name(client)}".rstrip()
        self.tools: Sequence[Tool] | None = None
        self._client, self._home, self._limit, self._changed = client, home, limit, changed

    def wait_listed(self) -> Waits[Sequence[Tool]]:
        """Return the tools, and ask for them at the first call and after a change of the list.

        Raises:
            InvalidRequest: the server does not answer.
        """
        if self._changed() or self.tools is None:
            outcome = yield ClientCall(self._home, self._list)
            if isinstance(outcome, Exception):
                raise InvalidRequest(f"{self.name} does not list its tools: {_words(outcome)}") from outcome
            tools = dict[str, Tool]()
            for each in outcome:
                if (tool := self._tool(each)) is not None and tools.setdefault(tool.name, tool) is not tool:
                    warn(f"{self.name} lists two tools with the name {tool.name!r:.80}: the second one is left out")
            self.tools = list(tools.values())
        return self.tools

    def _tool(self, description: Any) -> Tool | None:
        """Return a tool of the list; None, after a warning, for a malformed one."""
        try:
            name, parameters = description["name"], description["inputSchema"]
            words = description.get("description") or description.get("title") or ""
            if not isinstance(name, str) or not isinstance(words, str) or not isinstance(parameters, Mapping):
                raise TypeError("its name and description must be texts, and its inputSchema an object")
            function = {"name": name, "description": words, "parameters": without_references(parameters)}
            schema = {"type": "function", "function": function}
            check_tools([schema])
        except (InvalidRequest, LookupError, TypeError, AttributeError) as error:
            warn(f"a tool of {self.name} is left out: {preview(description, 80)} ({type(error).__name__}: {error})")
            return None
        return Tool(name, schema, partial(self._begin, name), self.name)

    def _begin(self, name: str, arguments: Mapping[str, Any]) -> ClientCall:
        return ClientCall(self._home, partial(self._call, name, dict(arguments)))

    async def _list(self) -> list[Any]:
        """Return the descriptions of all tools, from all pages, in the words of the protocol.

        Raises:
            TimeoutError: the server does not answer in time.
            ToolFailed: its list has no end.
        """
        tools: list[Any] = []
        cursor, cursors = None, set[str]()
        with anyio.fail_after(LIST_SECONDS if self._limit is None else min(self._limit, LIST_SECONDS)):
            while True:
                page = await page_of(self._client, cursor)
                tools += page["tools"]
                cursor = page.get("nextCursor")
                if not cursor:
                    return tools
                if cursor in cursors or len(cursors) >= MOST_PAGES or len(tools) > MOST_TOOLS:
                    raise ToolFailed(
                        f"its list has no end: {len(tools)} tools on {len(cursors) + 1} pages so far, and a next one "
                        f"(nextCursor {preview(cursor, 40)})"
                    )
                cursors.add(cursor)

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolOutput:
        """Call a tool.

        Raises:
            ToolFailed: the tool reports an error, takes too long, or its server is gone.
        """
        try:
            with anyio.fail_after(self._limit):
                result = await self._client.call_tool(name, arguments)
        except TimeoutError as error:
            raise ToolFailed(f"{name} took longer than {self._limit:g} seconds, and was cancelled") from error
        except Exception as error:
            if await is_closed(self._client, error):
                raise ToolFailed(f"{self.name} cannot be reached any more, so {name} has no result") from error
            raise ToolFailed(_words(error)) from error
        return output_of(result.model_dump(by_alias=True, mode="json", exclude_none=True))


def _words(error: Exception) -> str:
    """Return the message of an error, also of one of the protocol."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    message = getattr(getattr(error, "error", None), "message", None)
    return str(message or error) or type(error).__name__


def _own_name(client: Any) -> str:
    return str(getattr(getattr(client, "server_info", None), "name", ""))
