"""An MCP server of the SDK, for a process: tools to answer, fail, wait, draw, and end the process."""

import os
import sys
from typing import Literal

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

server = MCPServer("weather")


class Place(BaseModel):
    """A place, to which the schema refers."""

    city: str
    country: Literal["Italy", "Norway"] = "Italy"


@server.tool()
def weather(place: Place, days: int = 1) -> str:
    """Return the weather of a place."""
    return f"sunny in {place.city}, {place.country}, for {days} days"


@server.tool()
def figures(city: str) -> dict[str, int]:
    """Return figures of the weather."""
    return {city: 3}


@server.tool()
def fails(city: str) -> str:
    """Fail."""
    raise ToolError(f"no weather in {city}")


@server.tool()
async def slow(path: str) -> str:
    """Write the beginning of the call and its cancellation to a file."""
    await anyio.Path(path).write_text("begun")
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.Path(path).write_text("cancelled")
    return "never"


@server.tool()
def picture() -> list[str | Image]:
    """Return a picture with a text."""
    return ["the sky", Image(data=bytes(1500), format="png")]


@server.tool()
async def grow(context: Context) -> str:
    """Add a tool."""

    def added() -> str:
        """Answer."""
        return "added"

    server.add_tool(added)
    await context.session.send_tool_list_changed()
    return "grown"


@server.tool()
def dies() -> str:
    """End the process."""
    os._exit(3)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["http", port]:
            server.run("streamable-http", port=int(port))
        case ["broken"]:
            sys.exit("the server has no key")
        case _:
            server.run()
