"""Forms of calls in other notations than JSON and tags, as fields of response templates."""

from typing import Final

from rekindle.formats.end_tokens import END_TOKENS
from rekindle.formats.responses.forms.objects import CALL_BY_NAME, CALL_IN_LIST, TemplateData

PYTHONIC: Final[TemplateData] = {
    # Without a delimiter, an answer is a list of calls if it starts with the list.
    "open_pattern": r"\A\s*(?:<\|python_start\|>|<\|python_tag\|>)?\s*(?=\[\s*[A-Za-z_][\w.-]*\()",
    "close": [*END_TOKENS, "<|python_end|>"],
    "content": "python-calls",
    "transform": CALL_IN_LIST,
    "transform_each": True,
}
"""A list of calls as in Python: Llama 3.2 and 4, ToolACE."""
LFM2: Final[TemplateData] = {
    "open": "<|tool_call_start|>",
    "close": "<|tool_call_end|>",
    "repeats": True,
    "content": "python-calls",
    "transform": CALL_IN_LIST,
    "transform_each": True,
}
GEMMA4: Final[TemplateData] = {
    "open_pattern": r"<\|tool_call>call:(?P<name>[\w.-]+)(?=\{)",
    "close": "<tool_call|>",
    "repeats": True,
    "content": "json",
    "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
    "transform": CALL_BY_NAME,
}
