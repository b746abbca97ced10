"""Response templates of model families, for checkpoints without one. The chat template determines the family.

The templates are data in transformers' format; see `template`. All parts of the content are joined into one text.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from rekindle.formats.end_tokens import END_TOKENS
from rekindle.formats.responses.forms.code import GEMMA4, LFM2, PYTHONIC
from rekindle.formats.responses.forms.objects import (
    ACTION,
    APERTUS,
    CALL_BY_NAME,
    COMMAND,
    DEEPSEEK,
    DEEPSEEK_FENCED,
    FUNCTIONARY,
    FUNCTOOLS,
    GRANITE,
    HERMES,
    HUNYUAN,
    KIMI,
    LLAMA3,
    MISTRAL_LIST,
    MISTRAL_NAMED,
    NEMOTRON,
    XLAM,
    TemplateData,
)
from rekindle.formats.responses.forms.tags import DSML, GLM, GLM_DENSE, MINIMAX, PARAMETERS, SEED_PARAMETERS

ANCHORS: Final = (
    *("<|im_start|>assistant\n", "<|im_start|>assistant"),  # ChatML: Qwen, Hermes, SmolLM
    "<|start_header_id|>assistant<|end_header_id|>\n\n",  # Llama 3
    *("[/INST]", "[/TOOL_RESULTS]"),  # Mistral
    *("<｜Assistant｜>", "<｜tool▁output▁end｜>", "<｜tool▁outputs▁end｜>"),  # DeepSeek
    "<|start|>assistant",  # harmony: gpt-oss
    "<|start_of_role|>assistant<|end_of_role|>",  # Granite
    *("<|assistant|>\n", "<|assistant|>"),
    *("<start_of_turn>model\n", "<|turn>model\n"),
    *("<|im_assistant|>assistant<|im_middle|>", "]~b]ai\n"),  # Kimi, MiniMax
    *("<|assistant_start|>", "<|CHATBOT_TOKEN|>", "<seed:bos>assistant\n"),  # Apertus, Command R, Seed-OSS
)
"""Texts directly before an answer."""

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
CHANNEL: Final[TemplateData] = {"open_pattern": r"\A\s*<\|channel>thought\n?", "close": "<channel|>"}
BRACKETS: Final[TemplateData] = {"open_pattern": r"\A\s*\[THINK\]", "close": "[/THINK]"}

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


def template_for(chat_template: str, eos_token: str | None) -> TemplateData | None:
    """Return the response template with the form of calls suggested by a chat template's delimiters."""
    return answer_template(chat_template, eos_token, call_field_for(chat_template))


def answer_template(chat_template: str, eos_token: str | None, calls: TemplateData | None) -> TemplateData | None:
    """Return the response template for a chat template, or None if its answers are plain text.

    A chat template contains the delimiters of reasoning, because it renders them in earlier turns. They are matched
    from rare to common. Names of models and architectures are ignored, because fine-tunes reuse and change names
    freely.

    Args:
        chat_template: the chat template.
        eos_token: the text of the model's end token.
        calls: the field of calls; None for an unknown form, whose calls are content.
    """
    if "<|channel|>" in chat_template and "<|message|>" in chat_template:
        return _answer(HARMONY)
    candidates = {"thinking": _thinking(chat_template), "tool_calls": calls}
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
    if "<|channel>" in chat_template:
        return "<|channel>thought\n", "<channel|>"
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
    if "<|channel>" in chat_template:
        return CHANNEL
    if "think>" not in chat_template:  # some templates write the angle bracket elsewhere
        return None
    if "<response>" in chat_template:
        return THINK_RESPOND
    if "<answer>" in chat_template:
        return THINK_ANSWER
    if "<｜Assistant｜>" in chat_template:
        return THOUGHT_BEFORE
    return THINK


CALL_FIELDS: Final[Mapping[str, TemplateData]] = {
    "gpt-oss": HARMONY["tool_calls"],
    "Kimi K2": KIMI,
    "MiniMax M2": MINIMAX,
    "DeepSeek V3.2": DSML,
    "DeepSeek R1": DEEPSEEK_FENCED,
    "DeepSeek V3.1": DEEPSEEK,
    "Mistral, by name": MISTRAL_NAMED,
    "Mistral, as a list": MISTRAL_LIST,
    "Seed-OSS": SEED_PARAMETERS,
    "Command R7B": COMMAND,
    "Command R+": ACTION,
    "Nemotron": NEMOTRON,
    "Hunyuan": HUNYUAN,
    "Apertus": APERTUS,
    "Gemma 4": GEMMA4,
    "LFM2": LFM2,
    "GLM-4.7": GLM_DENSE,
    "GLM": GLM,
    "Qwen3-Coder": PARAMETERS,
    "Hermes": HERMES,
    "Granite": GRANITE,
    "Phi-4-mini": FUNCTOOLS,
    "functionary": FUNCTIONARY,
    "Llama 3": LLAMA3,
    "xLAM": XLAM,
    "Python": PYTHONIC,
}
"""The forms of calls by name, from rare to common delimiters."""
_MARKS: Final[tuple[tuple[tuple[str, ...], TemplateData], ...]] = (
    (("<|channel|>", "<|message|>"), HARMONY["tool_calls"]),
    (("<|tool_call_argument_begin|>",), KIMI),
    (("minimax:tool_call", "invoke name="), MINIMAX),
    (("｜DSML｜",), DSML),
    (("<｜tool▁call▁begin｜>", "```json"), DEEPSEEK_FENCED),
    (("<｜tool▁call▁begin｜>",), DEEPSEEK),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL_NAMED),
    (("[TOOL_CALLS]",), MISTRAL_LIST),
    (("<seed:tool_call>",), SEED_PARAMETERS),
    (("<|START_ACTION|>",), COMMAND),
    (("<TOOLCALL>",), NEMOTRON),
    (("<tool_calls>", "```json"), HUNYUAN),
    (("<|tools_prefix|>",), APERTUS),
    (("<|tool_call>call:",), GEMMA4),
    (("<|tool_call_start|>",), LFM2),
    (("<tool_call>", "</arg_key><arg_value>"), GLM_DENSE),
    (("<tool_call>", "<arg_key>"), GLM),
    (("<tool_call>", "<function="), PARAMETERS),
    (("<tool_call>",), HERMES),
    (("<|tool_call|>",), GRANITE),
    (("functools[",), FUNCTOOLS),
    (("Action:", "tool_name"), ACTION),
    (("<function=", "tools"), FUNCTIONARY),
    (("<|start_header_id|>", "tools"), LLAMA3),
    (("<|python_tag|>",), LLAMA3),
)
"""The texts in the chat templates of each form, from rare to common."""


def call_field_for(chat_template: str) -> TemplateData | None:
    """Return the field that parses calls of the form with its texts in a chat template, or None without any."""
    forms = (field for texts, field in _MARKS if all(text in chat_template for text in texts))
    return next(forms, None)


def _answer(fields: Mapping[str, TemplateData]) -> TemplateData:
    return {"defaults": {"role": "assistant"}, "start_anchor": list(ANCHORS), "fields": fields}
