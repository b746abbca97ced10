"""Tools of MCP servers, by clients of the package `mcp`."""
