"""The response templates of model families whose checkpoints have none, put together from what a chat template shows.

They are data in transformers' form; see `template`. Content is one text, whatever is written between its parts.
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
"""What an answer begins after."""

Written = Mapping[str, Any]

# A model thinks before it answers: behind the beginning of the answer, the same letters are part of it.
THINK: Final[Written] = {"open_pattern": r"\A\s*<think>", "close": "</think>"}
THOUGHT_BEFORE: Final[Written] = {"open_pattern": r"\A\s*(?:<think>|(?=</think>))", "close": "</think>"}
"""As `THINK`, where the prompt may end with a closing mark to have the model think nothing."""
THINK_RESPOND: Final[Written] = {
    "open_pattern": r"\A\s*<think>",
    "close_pattern": r"</think>(?:\s*<response>)?",
}
THINK_ANSWER: Final[Written] = {"open_pattern": r"\A\s*<think>", "close_pattern": r"</think>(?:\s*<answer>)?"}
SEED_THINK: Final[Written] = {"open_pattern": r"\A\s*<seed:think>", "close": "</seed:think>"}
COMMAND_THINK: Final[Written] = {
    "open_pattern": r"\A\s*<\|START_THINKING\|>",
    "close_pattern": r"<\|END_THINKING\|>(?:\s*<\|START_RESPONSE\|>)?",
}
BRACKETS: Final[Written] = {"open_pattern": r"\A\s*\[THINK\]", "close": "[/THINK]"}

NAMED: Final[Written] = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
LISTED: Final[Written] = {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}}

HERMES: Final[Written] = {
    "open": "<tool_call>",
    "close": "</tool_call>",
    "repeats": True,
    "content": "json",
    "transform": {"type": "function", "function": "{content}"},
}


def _parameters(mark: str) -> Written:
    """Return the field of calls whose arguments are tags, within marks of a name.

    A value ends at a closing tag that another tag or the end of the call follows; others are part of it. Values stay
    text: what they mean is known from the schema of the tool alone.
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
        "transform": NAMED,
    }


PARAMETERS: Final = _parameters("tool_call")
SEED_PARAMETERS: Final = _parameters("seed:tool_call")
MISTRAL_LIST: Final[Written] = {
    "open": "[TOOL_CALLS]",
    "close": "</s>",
    "content": "json",
    "transform": LISTED,
    "transform_each": True,
}
MISTRAL_NAMED: Final[Written] = {
    "open_pattern": r"\[TOOL_CALLS\]\s*(?P<name>[\w.-]+)(?:\[CALL_ID\][\w-]*)?\[ARGS\]",
    "close_pattern": r"(?=\[TOOL_CALLS\])|</s>",
    "repeats": True,
    "content": "json",
    "transform": NAMED,
}
_DEEPSEEK_CALL = r"(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>"
_DEEPSEEK_END = r"<｜tool▁call▁end｜>(?:\s*<｜tool▁calls▁end｜>)?"
DEEPSEEK_FENCED: Final[Written] = {
    "open_pattern": rf"{_DEEPSEEK_CALL}function<｜tool▁sep｜>(?P<name>[^\n<]+)\n```json\n",
    "close_pattern": rf"\s*```\s*{_DEEPSEEK_END}",
    "repeats": True,
    "content": "json",
    "transform": NAMED,
}
DEEPSEEK: Final[Written] = {
    "open_pattern": rf"{_DEEPSEEK_CALL}(?P<name>[^\n<]+)<｜tool▁sep｜>",
    "close_pattern": _DEEPSEEK_END,
    "repeats": True,
    "content": "json",
    "transform": NAMED,
}
LLAMA3: Final[Written] = {
    # Without a mark of its own, a call is an answer that begins as its object does.
    "open_pattern": r'(?:<\|python_tag\|>|\A)\s*(?=\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*")',
    "close": ["<|eot_id|>", "<|eom_id|>"],
    "content": "json",
    "repeats": True,
    "transform": {"type": "function", "function": "{content}"},
}
GRANITE: Final[Written] = {
    "open": "<|tool_call|>",
    "close": ["<|/tool_call|>", "<|end_of_text|>"],
    "content": "json",
    "transform": LISTED,
    "transform_each": True,
}
"""Of Granite, and of Phi-4-mini, which has a closing mark."""
NEMOTRON: Final[Written] = {
    "open": "<TOOLCALL>",
    "close": "</TOOLCALL>",
    "content": "json",
    "transform": LISTED,
    "transform_each": True,
}
COMMAND: Final[Written] = {
    "open": "<|START_ACTION|>",
    "close": "<|END_ACTION|>",
    "content": "json",
    "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
    "transform_each": True,
}
HUNYUAN: Final[Written] = {
    "open_pattern": r"(?:<tool_calls>\s*)?<tool_call>(?P<name>[^\n<]+)\n```json\n",
    "close_pattern": r"\s*```\s*</tool_call>(?:\s*</tool_calls>)?",
    "repeats": True,
    "content": "json",
    "transform": NAMED,
}

_TURN = r"(?:<\|start\|>assistant)?"
_TO = r" to=functions\.(?P<name>[\w.-]+)"
_KIND = r"[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
HARMONY: Final[Mapping[str, Written]] = {
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
        "transform": NAMED,
    },
    "content": {
        # What is said on the way to a call is on the channel of calls, and is for the user to read.
        "open_pattern": rf"{_TURN}<\|channel\|>(?:final|commentary)\s*(?:<\|constrain\|>[^<]*)?<\|message\|>",
        "close": ["<|end|>", "<|return|>"],
        "repeats": True,
        "join": "\n",
    },
}


def written_for(chat_template: str, eos_token: str | None) -> Written | None:
    """Return the response template that fits a chat template; None if answers to that are plain text.

    What a model was trained to write around its calls and its reasoning stands in its chat template, which writes the
    same for earlier turns and tells the model of it. So the marks are looked for there, the rarer before the more
    common; names of models and architectures, which fine-tunes keep and change at will, are not looked at.
    """
    if "<|channel|>" in chat_template and "<|message|>" in chat_template:
        return _answer(HARMONY)
    fields = {"thinking": _thinking(chat_template), "tool_calls": calls_for(chat_template)}
    found = {name: field for name, field in fields.items() if field is not None}
    if not found:
        return None
    ends = [end for end in (*END_TOKENS, eos_token) if end and (end in chat_template or end == eos_token)]
    for begin, end in _AROUND_CONTENT.items():
        if begin in chat_template:
            ends.append(end)
            found["begin"] = {"open_pattern": rf"\A\s*{re.escape(begin)}", "close_pattern": ""}
    content: dict[str, Any] = {"repeats": True, "join": "", "content_args": {"strip": False}}
    return _answer({**found, "content": {**content, "close": ends} if ends else content})


_AROUND_CONTENT: Final = {
    "<response>": "</response>",
    "<answer>": "</answer>",
    "<|START_RESPONSE|>": "<|END_RESPONSE|>",
}
"""What some families write before their content, and behind it."""


def marks_of_thought(chat_template: str) -> tuple[str, str] | None:
    """Return what reasoning is written between; None for a chat template that has none.

    Where an answer has channels, the second is all that leads on to another channel.
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


def _thinking(chat_template: str) -> Written | None:
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


def calls_for(chat_template: str) -> Written | None:
    """Return how calls are read that are written as in a chat template; None if it has none."""
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


def _answer(fields: Mapping[str, Written]) -> Written:
    return {"defaults": {"role": "assistant"}, "start_anchor": list(ANCHORS), "fields": fields}
