"""Chat templates in the forms of model families: how each writes a conversation with reasoning and calls.

They are short ones of our own. Their marks, and what stands around calls and thoughts, are those of the families.
"""

from typing import Any, Final, NamedTuple


class Form(NamedTuple):
    """The form of a family.

    Attributes:
        template: a chat template.
        end: the token that ends a turn.
        tokens: the marks that are tokens of its vocabulary, by whether they are special.
        thinks: whether the template writes reasoning beside calls.
        content: whether it writes content beside calls.
        several: whether an answer has more than one call.
    """

    template: str
    end: str
    tokens: dict[str, bool]
    thinks: bool = True
    content: bool = True
    several: bool = True


def _chatml(thought: str, call: str) -> str:
    return (
        "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        f"{{% if m.reasoning_content %}}{thought}{{% endif %}}"
        "{{ m.content or '' }}"
        f"{{% for call in m.tool_calls or [] %}}{{% set f = call.function %}}{call}{{% endfor %}}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def _turns(user: str, assistant: str, end: str, body: str) -> str:
    return (
        "{% if tools %}tools: {{ tools | tojson }}{% endif %}{% for m in messages %}"
        f"{{% if m.role == 'assistant' %}}{assistant}{body}{{% else %}}{user}{{{{ m.content }}}}{end}{{% endif %}}"
        f"{{% endfor %}}{{% if add_generation_prompt %}}{assistant}{{% endif %}}"
    )


_CALLS = "{% for call in m.tool_calls or [] %}{% set f = call.function %}"
_TAGS = (
    "<function={{ f.name }}>\n{% for k, v in f.arguments | items %}<parameter={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n"
)
_THINK = "<think>\n{{ m.reasoning_content }}\n</think>\n\n"
_CHATML_TOKENS = {"<|im_start|>": True, "<|im_end|>": True}
_LISTED = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}{{ "" if loop.last else ", " }}'

FORMS: Final[dict[str, Form]] = {
    "hermes, as text": Form(
        _chatml(_THINK, "\n<tool_call>\n{{ f | tojson }}\n</tool_call>"), "<|im_end|>", _CHATML_TOKENS
    ),
    "qwen3, as tokens": Form(
        _chatml(_THINK, "\n<tool_call>\n{{ f | tojson }}\n</tool_call>"),
        "<|im_end|>",
        {**_CHATML_TOKENS, "<think>": False, "</think>": False, "<tool_call>": False, "</tool_call>": False},
    ),
    "qwen3-coder": Form(
        _chatml(_THINK, f"\n<tool_call>\n{_TAGS}</tool_call>"),
        "<|im_end|>",
        {**_CHATML_TOKENS, "<tool_call>": False, "</tool_call>": False},
    ),
    "seed-oss": Form(
        _turns(
            "<seed:bos>user\n",
            "<seed:bos>assistant\n",
            "<seed:eos>",
            "{% if m.reasoning_content %}<seed:think>{{ m.reasoning_content }}</seed:think>{% endif %}"
            "{{ m.content or '' }}" + _CALLS + "\n<seed:tool_call>\n<function={{ f.name }}>\n"
            "{% for k, v in f.arguments | items %}<parameter={{ k }}>{{ v if v is string else v | tojson }}"
            "</parameter>\n"
            "{% endfor %}</function>\n</seed:tool_call>{% endfor %}<seed:eos>",
        ),
        "<seed:eos>",
        {
            "<seed:bos>": True,
            "<seed:eos>": True,
            "<seed:think>": False,
            "</seed:think>": False,
            "<seed:tool_call>": False,
            "</seed:tool_call>": False,
        },
    ),
    "llama 3": Form(
        _turns(
            "<|start_header_id|>user<|end_header_id|>\n\n",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "<|eot_id|>",
            "{% if m.tool_calls %}" + _CALLS + '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
            "{% endfor %}{% else %}{{ m.content }}{% endif %}<|eot_id|>",
        ),
        "<|eot_id|>",
        {"<|start_header_id|>": True, "<|end_header_id|>": True, "<|eot_id|>": True, "<|python_tag|>": True},
        thinks=False,
        content=False,
        several=False,
    ),
    "mistral, lists": Form(
        _turns(
            "[INST] ",
            "[/INST]",
            "",
            "{% if m.tool_calls %}[TOOL_CALLS][" + _CALLS + _LISTED + "{% endfor %}]{% else %}{{ m.content }}"
            "{% endif %}</s>",
        ),
        "</s>",
        {"[INST]": True, "[/INST]": True, "[TOOL_CALLS]": True, "</s>": True},
        thinks=False,
        content=False,
    ),
    "mistral, names": Form(
        _turns(
            "[INST]",
            "[/INST]",
            "",
            "{% if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]{% endif %}{{ m.content or '' }}"
            + _CALLS
            + "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}{% endfor %}</s>",
        ),
        "</s>",
        {
            **{"[INST]": True, "[/INST]": True, "[TOOL_CALLS]": True, "[ARGS]": True, "</s>": True},
            **{"[THINK]": True, "[/THINK]": True},
        },
    ),
    "deepseek v3.1": Form(
        _turns(
            "<｜User｜>",
            "<｜Assistant｜>",
            "",
            "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
            "{% if m.tool_calls %}<｜tool▁calls▁begin｜>" + _CALLS + "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>"
            "{{ f.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>{% endif %}"
            "<｜end▁of▁sentence｜>",
        ),
        "<｜end▁of▁sentence｜>",
        {
            **{"<｜User｜>": True, "<｜Assistant｜>": True, "<｜end▁of▁sentence｜>": True},
            **{"<｜tool▁calls▁begin｜>": True, "<｜tool▁calls▁end｜>": True, "<｜tool▁call▁begin｜>": True},
            **{"<｜tool▁call▁end｜>": True, "<｜tool▁sep｜>": True, "<think>": False, "</think>": False},
        },
    ),
    "granite 3.3": Form(
        _turns(
            "<|start_of_role|>user<|end_of_role|>",
            "<|start_of_role|>assistant<|end_of_role|>",
            "<|end_of_text|>\n",
            "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think><response>{% endif %}"
            "{{ m.content or '' }}{% if m.reasoning_content %}</response>{% endif %}"
            "{% if m.tool_calls %}<|tool_call|>[" + _CALLS + _LISTED + "{% endfor %}]{% endif %}<|end_of_text|>\n",
        ),
        "<|end_of_text|>",
        {"<|start_of_role|>": True, "<|end_of_role|>": True, "<|end_of_text|>": True, "<|tool_call|>": True},
    ),
    "phi-4-mini": Form(
        _turns(
            "<|user|>",
            "<|assistant|>",
            "<|end|>",
            "{{ m.content or '' }}{% if m.tool_calls %}<|tool_call|>["
            + _CALLS
            + _LISTED
            + "{% endfor %}]<|/tool_call|>{% endif %}<|end|>",
        ),
        "<|end|>",
        {"<|user|>": True, "<|assistant|>": True, "<|end|>": True, "<|tool_call|>": False, "<|/tool_call|>": False},
        thinks=False,
    ),
    "command r7b": Form(
        _turns(
            "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
            "{% if m.tool_calls %}<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|><|START_ACTION|>[\n"
            + _CALLS
            + '    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", "parameters": '
            '{{ f.arguments | tojson }}}{{ "" if loop.last else "," }}\n{% endfor %}]<|END_ACTION|>'
            "{% else %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif %}<|END_OF_TURN_TOKEN|>",
        ),
        "<|END_OF_TURN_TOKEN|>",
        {
            **{"<|START_OF_TURN_TOKEN|>": True, "<|END_OF_TURN_TOKEN|>": True, "<|USER_TOKEN|>": True},
            **{"<|CHATBOT_TOKEN|>": True, "<|START_THINKING|>": False, "<|END_THINKING|>": False},
            **{"<|START_ACTION|>": False, "<|END_ACTION|>": False},
            **{"<|START_RESPONSE|>": False, "<|END_RESPONSE|>": False},
        },
        content=False,
    ),
    "hunyuan": Form(
        _turns(
            "<｜hy_User｜>",
            "<｜hy_Assistant｜>",
            "",
            "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}"
            "{% if m.content %}<answer>\n{{ m.content }}\n</answer>{% endif %}{% if m.tool_calls %}<tool_calls>\n"
            + _CALLS
            + "<tool_call>{{ f.name }}\n```json\n{{ f.arguments | tojson }}\n```</tool_call>\n{% endfor %}</tool_calls>"
            "{% endif %}<｜hy_place▁holder▁no▁2｜>",
        ),
        "<｜hy_place▁holder▁no▁2｜>",
        {"<｜hy_User｜>": True, "<｜hy_Assistant｜>": True, "<｜hy_place▁holder▁no▁2｜>": True},
    ),
    "llama-nemotron": Form(
        _turns(
            "<|start_header_id|>user<|end_header_id|>\n\n",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "<|eot_id|>",
            "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}</think>\n\n{% endif %}{{ m.content or '' }}"
            "{% if m.tool_calls %}<TOOLCALL>[" + _CALLS + _LISTED + "{% endfor %}]</TOOLCALL>{% endif %}<|eot_id|>",
        ),
        "<|eot_id|>",
        {"<|start_header_id|>": True, "<|end_header_id|>": True, "<|eot_id|>": True},
    ),
    "gpt-oss": Form(
        _turns(
            "<|start|>user<|message|>",
            "<|start|>assistant",
            "<|end|>",
            "{% if m.reasoning_content %}<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>"
            "<|start|>assistant{% endif %}{% if m.tool_calls %}"
            + _CALLS
            + "<|channel|>commentary to=functions.{{ f.name }} "
            "<|constrain|>json<|message|>{{ f.arguments | tojson }}<|call|>{% endfor %}{% else %}"
            "<|channel|>final<|message|>{{ m.content }}<|return|>{% endif %}",
        ),
        "<|return|>",
        {
            **{"<|start|>": True, "<|end|>": True, "<|message|>": True, "<|channel|>": True, "<|call|>": True},
            **{"<|constrain|>": True, "<|return|>": True},
        },
        content=False,
        several=False,
    ),
}

MARKS: Final[tuple[Any, ...]] = (
    *("</tool_call>", "<tool_call>", "</think>", "[TOOL_CALLS]", "</function>", "</parameter>", "<|im_end|>", "</s>"),
    *("<|tool_call|>", "</TOOLCALL>", "<|END_ACTION|>", "<｜tool▁call▁end｜>", "```", '"', "\\", "]", "}", "\n"),
)
"""What an argument may have in it."""
