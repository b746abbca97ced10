"""Tools of a conversation: functions, schemas, and the tools of sources."""

from collections.abc import Callable
from typing import Any

from rekindle.core.concurrency.waits import Waits
from rekindle.core.errors import InvalidRequest
from rekindle.tools.mcp.clients import ClientTools
from rekindle.tools.mcp.home import Home
from rekindle.tools.mcp.sessions import ToolClient, client_of
from rekindle.tools.sources import ToolSource
from rekindle.tools.tool import AnyTool, Tool, check_list, check_names, tool_of

CallableTool = Callable[..., Any] | ToolClient | ToolSource
"""Tool for `run_tools`: an annotated function, or the client of an MCP server with all its tools."""
ChatTool = AnyTool | ToolClient | ToolSource
"""Tool of a chat: one for `run_tools`, or a JSON schema."""


class Toolset:
    """Tools of a conversation.

    Args:
        items: functions, JSON schemas, clients of MCP servers and sources.

    Attributes:
        parts: the tools and sources, in the order of the items.

    Raises:
        InvalidRequest: an item is none of these, or as in `tools_of`.
    """

    def __init__(self, items: Any = None):
        if items is not None:
            check_list(items)
        self.parts = tuple(_part(f"tools[{place}]", each) for place, each in enumerate(items or ()))
        check_names([part for part in self.parts if isinstance(part, Tool)])

    def wait_listed(self) -> Waits[tuple[Tool, ...]]:
        """Return all tools, after asking the sources.

        Raises:
            InvalidRequest: a source does not answer, or two tools have the same name.
        """
        for part in self.parts:
            if isinstance(part, ToolSource):
                yield from part.wait_listed()
        tools = self.tools
        check_names(tools)
        return tools

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All tools.

        Raises:
            InvalidRequest: a source was not asked yet.
        """
        tools: list[Tool] = []
        for part in self.parts:
            if isinstance(part, Tool):
                tools.append(part)
            elif part.tools is None:
                raise InvalidRequest(
                    f"the tools of {part.name} are not listed yet, and a stream does not wait for them: use say() or "
                    "show(), which call them too"
                )
            else:
                tools += part.tools
        return tuple(tools)


def _part(place: str, item: Any) -> Tool | ToolSource:
    if isinstance(item, ToolSource):
        return item
    client = client_of(item)
    if client is None:
        return tool_of(place, item)
    return ClientTools(client, Home.here(place))
