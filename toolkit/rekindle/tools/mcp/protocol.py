"""Requests of the MCP protocol beyond the package `mcp`, too strict for some servers."""

from collections.abc import Mapping
from typing import Any, Final

import anyio

from rekindle.tools.calling import ToolFailed

CLOSED: Final = "Connection closed"
"""The words of the package for a closed connection. Servers use the code beside them for own errors."""
PING_SECONDS: Final = 5.0
"""Longest time for a server to show that it lives."""


async def page_of(client: Any, cursor: str | None) -> Mapping[str, Any]:
    """Return a page of a server's list of tools, malformed ones too, in the words of the protocol.

    Args:
        client: the client session.
        cursor: the place of the page; None for the first one.

    Raises:
        ToolFailed: the page has no list of tools.
    """
    from mcp.types import PaginatedRequestParams
    from pydantic import ValidationError

    params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
    try:
        page_of_tools = await client.list_tools(params=params)
    except ValidationError as error:
        page = await _raw_page(client, params)
        if not isinstance(page.get("tools"), list):
            raise ToolFailed(f"the page has no list of tools: {error}") from error
        _note_outputs(client, page["tools"])
        return page
    whole: Mapping[str, Any] = page_of_tools.model_dump(by_alias=True, exclude_none=True)
    return whole


async def is_closed(client: Any, error: Exception) -> bool:
    """Return True if an error of a client's call means a closed connection."""
    from mcp.types import CONNECTION_CLOSED

    of_protocol = getattr(error, "error", None)
    if getattr(of_protocol, "code", None) != CONNECTION_CLOSED:
        return isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError | anyio.EndOfStream)
    return str(getattr(of_protocol, "message", "")) == CLOSED and not await _lives(client)


async def _lives(client: Any) -> bool:
    """Return True if a server answers a ping, if only by an error."""
    from mcp.types import CONNECTION_CLOSED

    try:
        with anyio.fail_after(PING_SECONDS):
            await client.send_ping()
    except Exception as error:
        code = getattr(getattr(error, "error", None), "code", CONNECTION_CLOSED)
        return bool(code != CONNECTION_CLOSED)
    return True


async def _raw_page(client: Any, params: Any) -> Mapping[str, Any]:
    """Return a page of the list of tools without a check of its tools."""
    from mcp import types
    from pydantic import BaseModel

    class Page(BaseModel, extra="allow"):
        tools: Any = None

    request = types.ListToolsRequest(params=params)
    if not hasattr(client, "_dispatcher"):  # mcp 1
        page = await client.send_request(types.ClientRequest(request), Page)
        content: Mapping[str, Any] = page.model_dump()
        return content
    data, options = request.model_dump(by_alias=True, mode="json", exclude_none=True), dict[str, Any]()
    client._stamp(data, options)
    raw: Mapping[str, Any] = await client._dispatcher.send_raw_request(data["method"], data.get("params"), options)
    return raw


def _note_outputs(client: Any, tools: list[Any]) -> None:
    """Tell the client the schemas of the tools' outputs, as its own list would do: it lists again for others."""
    for tool in tools:
        if isinstance(tool, Mapping) and isinstance(name := tool.get("name"), str):
            schema = tool.get("outputSchema")
            client._tool_output_schemas.setdefault(name, schema if isinstance(schema, Mapping) else None)
