"""Text about the tools of a chat."""

from collections.abc import Sequence
from typing import Final

from rekindle.cli.chat.mcp.visible import visible
from rekindle.core.words import one_line
from rekindle.tools.sources import ToolSource
from rekindle.tools.tool import Tool

LONGEST: Final = 1000
"""The most characters of a tool on its line."""


def tools_text(sources: Sequence[ToolSource]) -> str:
    """Return the tools of each source, one per line, with their arguments and the first line of their description."""
    if not sources:
        return "this chat has no tools; rekindle chat --mcp FILE starts MCP servers"
    lines = []
    for source in sources:
        lines += [source.name, *(f"  {_line(tool)}" for tool in source.tools or ())]
    return "\n".join(map(visible, lines))


def _line(tool: Tool) -> str:
    function = tool.schema["function"]
    names = ", ".join(function["parameters"].get("properties", {}))
    summary = function["description"].strip().partition("\n")[0]
    return one_line(f"{tool.name}({names})  {summary}".rstrip(), LONGEST)
