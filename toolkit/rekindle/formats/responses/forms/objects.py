"""Forms of calls whose arguments are JSON, as fields of response templates."""

from collections.abc import Mapping
from typing import Any, Final

from rekindle.formats.end_tokens import END_TOKENS

TemplateData = Mapping[str, Any]

CALL_BY_NAME: Final[TemplateData] = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
CALL_IN_LIST: Final[TemplateData] = {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}}

HERMES: Final[TemplateData] = {
    "open": "<tool_call>",
    "close": "</tool_call>",
    "repeats": True,
    "content": "json",
    "transform": {"type": "function", "function": "{content}"},
}


MISTRAL_LIST: Final[TemplateData] = {
    "open": "[TOOL_CALLS]",
    "close": "</s>",
    "content": "json",
    "transform": CALL_IN_LIST,
    "transform_each": True,
}
MISTRAL_NAMED: Final[TemplateData] = {
    "open_pattern": r"\[TOOL_CALLS\]\s*(?P<name>[\w.-]+)(?:\[CALL_ID\][\w-]*)?\[ARGS\]",
    "close_pattern": r"(?=\[TOOL_CALLS\])|</s>",
    "repeats": True,
    "content": "json",
    "transform": CALL_BY_NAME,
}
_DEEPSEEK_CALL = r"(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>"
_DEEPSEEK_END = r"<｜tool▁call▁end｜>(?:\s*<｜tool▁calls▁end｜>)?"
DEEPSEEK_FENCED: Final[TemplateData] = {
    "open_pattern": rf"{_DEEPSEEK_CALL}function<｜tool▁sep｜>(?P<name>[^\n<]+)\n```json\n",
    "close_pattern": rf"\s*```\s*{_DEEPSEEK_END}",
    "repeats": True,
    "content": "json",
    "transform": CALL_BY_NAME,
}
DEEPSEEK: Final[TemplateData] = {
    "open_pattern": rf"{_DEEPSEEK_CALL}(?P<name>[^\n<]+)<｜tool▁sep｜>",
    "close_pattern": _DEEPSEEK_END,
    "repeats": True,
    "content": "json",
    "transform": CALL_BY_NAME,
}
LLAMA3: Final[TemplateData] = {
    # Without a delimiter, an answer is a call if it starts with a call's JSON object.
    "open_pattern": r'(?:<\|python_tag\|>|\A)\s*(?=\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*")',
    "close": ["<|eot_id|>", "<|eom_id|>"],
    "content": "json",
    "repeats": True,
    "transform": {"type": "function", "function": "{content}"},
}
GRANITE: Final[TemplateData] = {
    "open": "<|tool_call|>",
    "close": ["<|/tool_call|>", "<|end_of_text|>"],
    "content": "json",
    "transform": CALL_IN_LIST,
    "transform_each": True,
}
"""Calls of Granite and of Phi-4-mini. Only Phi-4-mini writes the closing delimiter."""
NEMOTRON: Final[TemplateData] = {
    "open": "<TOOLCALL>",
    "close": "</TOOLCALL>",
    "content": "json",
    "transform": CALL_IN_LIST,
    "transform_each": True,
}
COMMAND: Final[TemplateData] = {
    "open": "<|START_ACTION|>",
    "close": "<|END_ACTION|>",
    "content": "json",
    "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
    "transform_each": True,
}
HUNYUAN: Final[TemplateData] = {
    "open_pattern": r"(?:<tool_calls>\s*)?<tool_call>(?P<name>[^\n<]+)\n```json\n",
    "close_pattern": r"\s*```\s*</tool_call>(?:\s*</tool_calls>)?",
    "repeats": True,
    "content": "json",
    "transform": CALL_BY_NAME,
}
KIMI: Final[TemplateData] = {
    "open_pattern": (
        r"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[\w.-]+)(?::\d+)?\s*"
        r"<\|tool_call_argument_begin\|>"
    ),
    "close_pattern": r"<\|tool_call_end\|>(?:\s*<\|tool_calls_section_end\|>)?",
    "repeats": True,
    "content": "json",
    "transform": CALL_BY_NAME,
}
ACTION: Final[TemplateData] = {
    "open_pattern": r"Action:\s*```(?:json)?\s*(?=\[)",
    "close_pattern": r"\s*```",
    "content": "json",
    "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
    "transform_each": True,
}
"""Calls of Command R and R+. A call of the tool "directly-answer" is the model's decision to call none."""
FUNCTIONARY: Final[TemplateData] = {
    "open_pattern": r"<function=(?P<name>[^>\n]+)>(?=\s*\{)",
    "close": "</function>",
    "repeats": True,
    "content": "json",
    "transform": CALL_BY_NAME,
}
APERTUS: Final[TemplateData] = {
    "open": "<|tools_prefix|>",
    "close": "<|tools_suffix|>",
    "repeats": True,
    "content": "json-by-name",
    "transform": CALL_IN_LIST,
    "transform_each": True,
}
XLAM: Final[TemplateData] = {
    # Without a delimiter, an answer is a list of calls if it starts with the list.
    "open_pattern": r'\A\s*(?=\[\s*\{\s*"name"\s*:\s*")',
    "close": list(END_TOKENS),
    "content": "json",
    "transform": CALL_IN_LIST,
    "transform_each": True,
}
FUNCTOOLS: Final[TemplateData] = {
    "open_pattern": r"functools(?=\[)",
    "close": ["<|end|>", "<|endoftext|>"],
    "content": "json",
    "transform": CALL_IN_LIST,
    "transform_each": True,
}
