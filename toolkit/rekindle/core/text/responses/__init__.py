"""Answers taken apart into reasoning, content and tool calls, by response templates."""
