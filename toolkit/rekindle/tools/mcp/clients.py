"""Tools of MCP servers, listed and called by clients."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio

from rekindle.core.concurrency.waits import Waits
from rekindle.core.errors import InvalidRequest
from rekindle.tools.calling import ToolFailed, ToolOutput
from rekindle.tools.mcp.home import ClientCall, Home
from rekindle.tools.mcp.results import output_of
from rekindle.tools.records import without_references
from rekindle.tools.sources import ToolSource
from rekindle.tools.tool import Tool


class ClientTools(ToolSource):
    """Tools of an MCP server, which is asked for them once.

    Args:
        client: the client session.
        home: the event loop of the client.
        name: the name of the server for errors; the default is its own.
        limit: the longest time of a call in seconds; None leaves it to the client.
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
            self.tools = [self._tool(each) for each in outcome]
        return self.tools

    def _tool(self, description: Mapping[str, Any]) -> Tool:
        name = str(description["name"])
        function = {
            "name": name,
            "description": description.get("description") or description.get("title") or "",
            "parameters": without_references(description["inputSchema"]),
        }
        return Tool(name, {"type": "function", "function": function}, partial(self._begin, name), self.name)

    def _begin(self, name: str, arguments: Mapping[str, Any]) -> ClientCall:
        return ClientCall(self._home, partial(self._call, name, dict(arguments)))

    async def _list(self) -> list[Mapping[str, Any]]:
        """Return the descriptions of all tools, from all pages, in the words of the protocol."""
        from mcp.types import PaginatedRequestParams

        tools: list[Mapping[str, Any]] = []
        params = None
        with anyio.fail_after(self._limit):
            while True:
                page = (await self._client.list_tools(params=params)).model_dump(by_alias=True, exclude_none=True)
                tools += page["tools"]
                if not page.get("nextCursor"):
                    return tools
                params = PaginatedRequestParams(cursor=page["nextCursor"])

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
            if _is_closed(error):
                raise ToolFailed(f"{self.name} cannot be reached any more, so {name} has no result") from error
            raise ToolFailed(_words(error)) from error
        return output_of(result.model_dump(by_alias=True, mode="json", exclude_none=True))


def _is_closed(error: Exception) -> bool:
    """Return True if an error means a closed connection."""
    from mcp.types import CONNECTION_CLOSED

    if getattr(getattr(error, "error", None), "code", None) == CONNECTION_CLOSED:
        return True
    return isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError | anyio.EndOfStream)


def _words(error: Exception) -> str:
    """Return the message of an error, also of one of the protocol."""
    message = getattr(getattr(error, "error", None), "message", None)
    return str(message or error) or type(error).__name__


def _own_name(client: Any) -> str:
    return str(getattr(getattr(client, "server_info", None), "name", ""))
