"""Answers read as their tokens come: parts, tool calls, the first complete call."""
