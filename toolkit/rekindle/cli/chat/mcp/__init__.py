"""MCP servers of a chat in the terminal: their file, their start, and the permission for calls."""
