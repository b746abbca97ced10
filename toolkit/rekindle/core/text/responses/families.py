"""Response templates of model families, for checkpoints without one. The chat template determines the family.

The templates are data in transformers' format; see `template`. All parts of the content are joined into one text.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from rekindle.core.text.ends import END_TOKENS

ANCHORS: Final = (
    *("<|im_start|>assistant\n", "<|im_start|>assistant"),  # ChatML: Qwen, Hermes, SmolLM
    "<|start_header_id|>assistant<|end_header_id|>\n\n",  # Llama 3
    *("[/INST]", "[/TOOL_RESULTS]"),  # Mistral
    *("<｜Assistant｜>", "<｜tool▁output▁end｜>", "<｜tool▁outputs▁end｜>"),  # DeepSeek
    "<|start|>assistant",  # harmony: gpt-oss
    "<|start_of_role|>assistant<|end_of_role|>",  # Granite
    *("<|assistant|>\n", "<|assistant|>"),
    *("<start_of_turn>model\n", "<|turn>model\n"),
)
"""Texts directly before an answer."""

TemplateData = Mapping[str, Any]

# The patterns match only at the start of an answer: later, these delimiters are plain text.
THINK: Final[TemplateData] = {"open_pattern": r"\A\s*<think>", "close": "</think>"}
THOUGHT_BEFORE: Final[TemplateData] = {"open_pattern": r"\A\s*(?:<think>|(?=</think>))", "close": "</think>"}
"""Like `THINK`, but an answer may begin with the closing delimiter: prompts end with it to disable reasoning."""
THINK_RESPOND: Final[TemplateData] = {
    "open_pattern": r"\A\s*<think>",
    "close_pattern": r"</think>(?:\s*<response>)?",
}
THINK_ANSWER: Final[TemplateData] = {"open_pattern": r"\A\s*<think>", "close_pattern": r"</think>(?:\s*<answer>)?"}
SEED_THINK: Final[TemplateData] = {"open_pattern": r"\A\s*<seed:think>", "close": "</seed:think>"}
COMMAND_THINK: Final[TemplateData] = {
    "open_pattern": r"\A\s*<\|START_THINKING\|>",
    "close_pattern": r"<\|END_THINKING\|>(?:\s*<\|START_RESPONSE\|>)?",
}
BRACKETS: Final[TemplateData] = {"open_pattern": r"\A\s*\[THINK\]", "close": "[/THINK]"}

CALL_BY_NAME: Final[TemplateData] = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
CALL_IN_LIST: Final[TemplateData] = {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}}

HERMES: Final[TemplateData] = {
    "open": "<tool_call>",
    "close": "</tool_call>",
    "repeats": True,
    "content": "json",
    "transform": {"type": "function", "function": "{content}"},
}


def _parameters(mark: str) -> TemplateData:
    """Return the field of calls with tagged arguments, inside delimiters of the given name.

    A value ends at a closing tag before another tag or the end of the call; other closing tags belong to the value.
    Values stay text, because only the tool's schema determines their types.
    """
    begin, end = "<parameter=[^>\n]+>", rf"</parameter>(?=\s*(?:<parameter=[^>\n]+>|</function>|</{mark}>|\Z))"
    return {
        "open_pattern": rf"(?:<{mark}>\s*)?<function=(?P<name>[^>\n]+)>",
        "close_pattern": rf"</function>(?:\s*</{mark}>)?|</{mark}>",
        "repeats": True,
        "content": "xml-inline",
        "content_args": {
            "tag_pattern": rf"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>(?:(?!\n<parameter=).)*?)\n?{end}",
            "value_begin": begin,
            "value_end": end,
            "whole_pattern": rf"\s*(?:</function>(?:\s*</{mark}>)?|</{mark}>)\s*",
        },
        "transform": CALL_BY_NAME,
    }


PARAMETERS: Final = _parameters("tool_call")
SEED_PARAMETERS: Final = _parameters("seed:tool_call")
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

_TURN = r"(?:<\|start\|>assistant)?"
_TO = r" to=functions\.(?P<name>[\w.-]+)"
_KIND = r"[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
HARMONY: Final[Mapping[str, TemplateData]] = {
    "thinking": {
        "open_pattern": rf"{_TURN}<\|channel\|>analysis<\|message\|>",
        "close": ["<|end|>", "<|return|>"],
        "repeats": True,
        "join": "\n",
    },
    "tool_calls": {
        "open_pattern": rf"{_TURN}(?:{_TO}<\|channel\|>|<\|channel\|>(?:commentary|analysis){_TO}){_KIND}",
        "close": "<|call|>",
        "repeats": True,
        "content": "json",
        "transform": CALL_BY_NAME,
    },
    "content": {
        # Messages before a call use the commentary channel, and are part of the user's answer.
        "open_pattern": rf"{_TURN}<\|channel\|>(?:final|commentary)\s*(?:<\|constrain\|>[^<]*)?<\|message\|>",
        "close": ["<|end|>", "<|return|>"],
        "repeats": True,
        "join": "\n",
    },
}


def template_for(chat_template: str, eos_token: str | None, calls: TemplateData | None = None) -> TemplateData | None:
    """Return the response template for a chat template, or None if its answers are plain text.

    Args:
        chat_template: the chat template.
        eos_token: the text of the model's end token.
        calls: the field of calls; None for `call_field_for`.

    A chat template contains the delimiters of calls and reasoning, because it renders them in earlier turns. They are
    matched from rare to common. Names of models and architectures are ignored, because fine-tunes reuse and change
    names freely.
    """
    if "<|channel|>" in chat_template and "<|message|>" in chat_template:
        return _answer(HARMONY)
    candidates = {"thinking": _thinking(chat_template), "tool_calls": calls or call_field_for(chat_template)}
    fields = {name: field for name, field in candidates.items() if field is not None}
    if not fields:
        return None
    ends = [end for end in (*END_TOKENS, eos_token) if end and (end in chat_template or end == eos_token)]
    for begin, end in _AROUND_CONTENT.items():
        if begin in chat_template:
            ends.append(end)
            fields["begin"] = {"open_pattern": rf"\A\s*{re.escape(begin)}", "close_pattern": ""}
    content: dict[str, Any] = {"repeats": True, "join": "", "content_args": {"strip": False}}
    return _answer({**fields, "content": {**content, "close": ends} if ends else content})


_AROUND_CONTENT: Final = {
    "<response>": "</response>",
    "<answer>": "</answer>",
    "<|START_RESPONSE|>": "<|END_RESPONSE|>",
}
"""Delimiters around the content, in some families."""


def reasoning_delimiters(chat_template: str) -> tuple[str, str] | None:
    """Return the delimiters of reasoning, or None for a chat template without reasoning.

    For answers with channels, the second delimiter includes the start of the next message.
    """
    if "<|channel|>" in chat_template:
        return "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"
    if "[THINK]" in chat_template:
        return "[THINK]", "[/THINK]"
    if "<seed:think>" in chat_template:
        return "<seed:think>", "</seed:think>"
    if "<|START_THINKING|>" in chat_template:
        return "<|START_THINKING|>", "<|END_THINKING|>"
    return ("<think>", "</think>") if "think>" in chat_template else None


def _thinking(chat_template: str) -> TemplateData | None:
    if "[THINK]" in chat_template:
        return BRACKETS
    if "<seed:think>" in chat_template:
        return SEED_THINK
    if "<|START_THINKING|>" in chat_template:
        return COMMAND_THINK
    if "think>" not in chat_template:  # some templates write the angle bracket elsewhere
        return None
    if "<response>" in chat_template:
        return THINK_RESPOND
    if "<answer>" in chat_template:
        return THINK_ANSWER
    if "<｜Assistant｜>" in chat_template:
        return THOUGHT_BEFORE
    return THINK


def call_field_for(chat_template: str) -> TemplateData | None:
    """Return the field that parses the calls of a chat template's format, or None if it has no calls."""
    if "<|channel|>" in chat_template and "<|message|>" in chat_template:
        return HARMONY["tool_calls"]
    if "<｜tool▁call▁begin｜>" in chat_template:
        return DEEPSEEK_FENCED if "```json" in chat_template else DEEPSEEK
    if "[TOOL_CALLS]" in chat_template:
        return MISTRAL_NAMED if "[ARGS]" in chat_template else MISTRAL_LIST
    if "<seed:tool_call>" in chat_template:
        return SEED_PARAMETERS
    if "<|START_ACTION|>" in chat_template:
        return COMMAND
    if "<TOOLCALL>" in chat_template:
        return NEMOTRON
    if "<tool_calls>" in chat_template and "```json" in chat_template:
        return HUNYUAN
    if "<tool_call>" in chat_template:
        return PARAMETERS if "<function=" in chat_template else HERMES
    if "<|tool_call|>" in chat_template:
        return GRANITE
    llama = "<|start_header_id|>" in chat_template and "tools" in chat_template
    return LLAMA3 if llama or "<|python_tag|>" in chat_template else None


def _answer(fields: Mapping[str, TemplateData]) -> TemplateData:
    return {"defaults": {"role": "assistant"}, "start_anchor": list(ANCHORS), "fields": fields}
