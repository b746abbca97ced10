"""Answers of model families, as their models write each, with the marks of the chat template for its parsing."""

from typing import Any, NamedTuple

QWEN = "<|im_start|> <|im_end|> <think> <tool_call>"
CODER = "<|im_start|> <|im_end|> <tool_call> <function="
LLAMA = "<|start_header_id|> tools <|eot_id|> <|eom_id|>"
MISTRAL = "[INST] [TOOL_CALLS] </s>"
NEWER_MISTRAL = "[INST] [TOOL_CALLS] [ARGS] [THINK] </s>"
R1 = "<｜Assistant｜> <think> ```json <｜tool▁call▁begin｜> <｜end▁of▁sentence｜>"
V31 = "<｜Assistant｜> <think> <｜tool▁call▁begin｜> <｜end▁of▁sentence｜>"
HARMONY = "<|channel|> <|message|>"
GRANITE = "<|start_of_role|> <think> <response> <|tool_call|> <|end_of_text|>"


class Case(NamedTuple):
    """An answer.

    Attributes:
        marks: the marks of the chat template.
        text: the answer with its special tokens.
        prompt: the end of the prompt.
        own: the checkpoint's own response template, which replaces the marks.
    """

    marks: str
    text: str
    prompt: str = ""
    own: dict[str, Any] | None = None


WEATHER = '{"name": "weather", "arguments": {"city": "Paris", "days": 2}}'

CASES = {
    "qwen answers": Case(QWEN, "Paris.<|im_end|>", "<|im_start|>assistant\n"),
    "qwen thinks": Case(QWEN, "<think>\nFrance has\n\none.\n</think>\n\nParis.<|im_end|>", "<|im_start|>assistant\n"),
    "qwen was told to think": Case(QWEN, "One.\n</think>\n\nParis.<|im_end|>", "<|im_start|>assistant\n<think>\n"),
    "qwen was told not to think": Case(
        QWEN, "Paris.<|im_end|>", "<think>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ),
    "qwen is cut while it thinks": Case(QWEN, "<think>\nFrance", "<|im_start|>assistant\n"),
    "qwen calls": Case(
        QWEN,
        f"<think>\nAsk.\n</think>\n\nLet me see.\n<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{WEATHER}\n"
        "</tool_call><|im_end|>",
        "<|im_start|>assistant\n",
    ),
    "qwen almost calls": Case(QWEN, "a < b, <tool and </think <|im_end|>", "<|im_start|>assistant\n"),
    "coder calls": Case(
        CODER,
        "I look.\n<tool_call>\n<function=find>\n<parameter=path>\n/a b\n</parameter>\n<parameter=lines>\n3\n"
        "</parameter>\n</function>\n</tool_call><|im_end|>",
        "<|im_start|>assistant\n",
    ),
    "llama answers": Case(LLAMA, "Paris.<|eot_id|>"),
    "llama calls": Case(LLAMA, '{"name": "weather", "parameters": {"city": "Paris"}}<|eot_id|>'),
    "llama calls with a tag": Case(
        LLAMA, '<|python_tag|>{"type": "function", "name": "weather", "parameters": {}}<|eom_id|>'
    ),
    "llama answers an object": Case(LLAMA, '{"capital": "Paris"}<|eot_id|>'),
    "mistral answers": Case(MISTRAL, "Paris.</s>", "[INST]Capital?[/INST]"),
    "mistral calls": Case(MISTRAL, f"[TOOL_CALLS] [{WEATHER}, {WEATHER}]</s>", "[INST]Weather?[/INST]"),
    "newer mistral calls": Case(
        NEWER_MISTRAL,
        '[THINK]Ask.[/THINK][TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]time[CALL_ID]a1b2c3d4e[ARGS]{}</s>',
        "[INST]Weather?[/INST]",
    ),
    "r1 thinks": Case(R1, "One.\n</think>\n\nParis.<｜end▁of▁sentence｜>", "<｜Assistant｜><think>\n"),
    "r1 calls": Case(
        R1,
        "Ask.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
        "<｜Assistant｜><think>\n",
    ),
    "v3.1 answers": Case(V31, "Paris.<｜end▁of▁sentence｜>", "<｜Assistant｜></think>"),
    "v3.1 calls": Case(
        V31,
        'I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
        "<｜Assistant｜></think>",
    ),
    "gpt-oss answers": Case(
        HARMONY,
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Paris.<|return|>",
        "<|start|>assistant",
    ),
    "gpt-oss calls": Case(
        HARMONY,
        "<|channel|>analysis<|message|>Ask.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        '{"city": "Paris"}<|call|>',
        "<|start|>assistant",
    ),
    "gpt-oss calls first": Case(
        HARMONY,
        ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Paris"}<|call|>',
        "<|start|>assistant",
    ),
    "granite thinks": Case(
        GRANITE,
        "<think>One.</think>\n<response>Paris.</response><|end_of_text|>",
        "<|start_of_role|>assistant<|end_of_role|>",
    ),
    "granite calls": Case(GRANITE, f"<|tool_call|>[{WEATHER}]<|end_of_text|>"),
    "own, with bare keys": Case(
        "",
        '<|channel>thought\nAsk.<channel|><|tool_call>call:weather{city:<|"|>Paris<|"|>,days:2}<tool_call|><turn|>',
        "<|turn>model\n",
        {
            "defaults": {"role": "assistant"},
            "start_anchor": ["<|turn>model\n", "<tool_response|>"],
            "fields": {
                "thinking": {"open": "<|channel>thought\n", "close": "<channel|>"},
                "tool_calls": {
                    "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                    "close": "<tool_call|>",
                    "repeats": True,
                    "content": "json",
                    "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
                    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
                },
                "content": {"close": ["<turn|>", "<eos>"]},
            },
        },
    ),
    "own, with numbers and lines": Case(
        "",
        "<score> 0.5 </score><n>3</n><ok>True</ok><kv>a: 1\nb: x\n</kv>rest",
        "A:",
        {
            "defaults": {"role": "assistant", "extra": []},
            "start_anchor_pattern": "A:",
            "fields": {
                "score": {"open": "<score>", "close": "</score>", "content": "float"},
                "n": {"open": "<n>", "close": "</n>", "content": "int"},
                "ok": {"open": "<ok>", "close": "</ok>", "content": "bool"},
                "facts": {
                    "open": "<kv>",
                    "close": "</kv>",
                    "content": "kv-lines",
                    "content_args": {"value_parser": {"name": "json", "args": {"allow_non_json": True}}},
                },
                "content": {},
            },
        },
    ),
    "own, that begins to think at once": Case(
        "",
        "Let me see.\n</think>\n\n<response>\nParis.\n</response>\n",
        "",
        {
            "start_anchor": "Assistant:",
            "fields": {
                "thinking": {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
                "content": {"open": "<response>\n", "close_pattern": r"\n?</response>"},
            },
        },
    ),
}
