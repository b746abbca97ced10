"""Forms of tool calls in answers, as data."""
