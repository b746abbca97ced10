"""Responses, OpenAI's successor of chat completions."""
