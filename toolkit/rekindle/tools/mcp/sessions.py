"""Recognition of the client sessions of the package `mcp`, without importing it."""

import sys
from typing import Any, Protocol


class ToolClient(Protocol):
    """Client of an MCP server, entered and initialized: an `mcp.ClientSession`, or an `mcp.Client`."""

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """Call a tool of the server."""


def client_of(item: Any) -> Any:
    """Return the client session of an object of the package `mcp`; None for any other object."""
    mcp: Any = sys.modules.get("mcp")
    if mcp is None:  # without it, nobody has such an object
        return None
    if isinstance(item, getattr(mcp, "Client", ())):
        return getattr(item, "session", None)
    return item if isinstance(item, mcp.ClientSession) else None
