"""Chat templates in the forms of model families: how each writes a conversation with reasoning and calls.

They are short ones of our own, with the marks and the delimiters of the families.
"""

from functools import cache
from typing import Any, Final, NamedTuple

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from rekindle.core.text.tokenizer import Tokenizer


class Form(NamedTuple):
    """The form of a family.

    Attributes:
        template: a chat template.
        end: the token at the end of a turn.
        tokens: the marks with tokens of their own, by whether they are special.
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


def _chatml(reasoning: str, call: str) -> str:
    return (
        "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        f"{{% if m.reasoning_content %}}{reasoning}{{% endif %}}"
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
_PYTHON = (
    "{{ f.name }}({% for k, v in f.arguments | items %}{{ '' if loop.first else ', ' }}{{ k }}="
    '{{ v | tojson }}{% endfor %}){{ "" if loop.last else ", " }}'
)
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
    "glm 4.6": Form(
        _turns(
            "<|user|>\n",
            "<|assistant|>",
            "",
            "{% if m.reasoning_content %}\n<think>{{ m.reasoning_content }}</think>{% endif %}"
            "{% if m.content %}\n{{ m.content }}{% endif %}"
            + _CALLS
            + "\n<tool_call>{{ f.name }}\n{% for k, v in f.arguments | items %}<arg_key>{{ k }}</arg_key>\n"
            "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}"
            "<|user|>",
        ),
        "<|user|>",
        {
            **{"<|user|>": True, "<|assistant|>": True, "<think>": False, "</think>": False},
            **dict.fromkeys(("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>"), False),
            **dict.fromkeys(("<arg_value>", "</arg_value>"), False),
        },
    ),
    "glm 4.7": Form(
        _turns(
            "<|user|>",
            "<|assistant|>",
            "",
            "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
            + _CALLS
            + "<tool_call>{{ f.name }}{% for k, v in f.arguments | items %}<arg_key>{{ k }}</arg_key>"
            "<arg_value>{{ v if v is string else v | tojson }}</arg_value>{% endfor %}</tool_call>{% endfor %}<|user|>",
        ),
        "<|user|>",
        {"<|user|>": True, "<|assistant|>": True},
    ),
    "kimi k2": Form(
        _turns(
            "<|im_user|>user<|im_middle|>",
            "<|im_assistant|>assistant<|im_middle|>",
            "<|im_end|>",
            "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
            "{% if m.tool_calls %}<|tool_calls_section_begin|>"
            + _CALLS
            + "<|tool_call_begin|>functions.{{ f.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>"
            "{{ f.arguments | tojson }}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}<|im_end|>",
        ),
        "<|im_end|>",
        {
            **dict.fromkeys(("<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"), True),
            **dict.fromkeys(("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"), False),
            **dict.fromkeys(("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"), False),
        },
    ),
    "minimax m2": Form(
        _turns(
            "]~b]user\n",
            "]~b]ai\n",
            "[e~[\n",
            "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
            "{{ m.content or '' }}{% if m.tool_calls %}\n<minimax:tool_call>\n"
            + _CALLS
            + '<invoke name="{{ f.name }}">\n{% for k, v in f.arguments | items %}'
            '<parameter name="{{ k }}">{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</invoke>\n'
            "{% endfor %}</minimax:tool_call>{% endif %}[e~[\n",
        ),
        "[e~[",
        {"]~b]": True, "[e~[": True, "<minimax:tool_call>": False, "</minimax:tool_call>": False},
    ),
    "deepseek v3.2": Form(
        _turns(
            "<｜User｜>",
            "<｜Assistant｜>",
            "",
            "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
            "{% if m.tool_calls %}{{ '\n\n' }}<｜DSML｜function_calls>\n"
            + _CALLS
            + '<｜DSML｜invoke name="{{ f.name }}">\n{% for k, v in f.arguments | items %}'
            "<｜DSML｜parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">"
            "{{ v if v is string else v | tojson }}</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n"
            "{% endfor %}</｜DSML｜function_calls>{% endif %}<｜end▁of▁sentence｜>",
        ),
        "<｜end▁of▁sentence｜>",
        {"<｜User｜>": True, "<｜Assistant｜>": True, "<｜end▁of▁sentence｜>": True, "｜DSML｜": False},
    ),
    "apertus": Form(
        _turns(
            "<|user_start|>",
            "<|assistant_start|>",
            "<|user_end|>",
            "{{ m.content or '' }}{% if m.tool_calls %}<|tools_prefix|>["
            + _CALLS
            + '{"{{ f.name }}": {{ f.arguments | tojson }}}{{ "" if loop.last else ", " }}{% endfor %}]<|tools_suffix|>'
            "{% endif %}<|assistant_end|>",
        ),
        "<|assistant_end|>",
        {
            **dict.fromkeys(("<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>"), True),
            **dict.fromkeys(("<|tools_prefix|>", "<|tools_suffix|>"), True),
        },
        thinks=False,
    ),
    "command r+": Form(
        _turns(
            "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
            "{{ m.content or '' }}{% if m.tool_calls %}Action: ```json\n[\n"
            + _CALLS
            + '    {"tool_name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
            '{{ "" if loop.last else "," }}\n{% endfor %}]```{% endif %}<|END_OF_TURN_TOKEN|>',
        ),
        "<|END_OF_TURN_TOKEN|>",
        dict.fromkeys(
            ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"), True
        ),
        thinks=False,
    ),
    "xlam": Form(
        _turns(
            "<|start_header_id|>user<|end_header_id|>\n\n",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "<|eot_id|>",
            "{% if m.tool_calls %}[" + _CALLS + _LISTED + "{% endfor %}]{% else %}{{ m.content }}{% endif %}<|eot_id|>",
        ),
        "<|eot_id|>",
        {"<|start_header_id|>": True, "<|end_header_id|>": True, "<|eot_id|>": True},
        thinks=False,
        content=False,
    ),
    "functionary": Form(
        _turns(
            "<|start_header_id|>user<|end_header_id|>\n\n",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "<|eot_id|>",
            "{{ m.content or '' }}"
            + _CALLS
            + "<function={{ f.name }}>{{ f.arguments | tojson }}</function>{% endfor %}<|eot_id|>",
        ),
        "<|eot_id|>",
        {"<|start_header_id|>": True, "<|end_header_id|>": True, "<|eot_id|>": True},
        thinks=False,
    ),
    "phi-4-mini, functools": Form(
        _turns(
            "<|user|>",
            "<|assistant|>",
            "<|end|>",
            "{{ m.content or '' }}{% if m.tool_calls %}functools["
            + _CALLS
            + _LISTED
            + "{% endfor %}]{% endif %}<|end|>",
        ),
        "<|end|>",
        {"<|user|>": True, "<|assistant|>": True, "<|end|>": True},
        thinks=False,
    ),
    "llama 3.2, pythonic": Form(
        _turns(
            "<|start_header_id|>user<|end_header_id|>\n\n",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "<|eot_id|>",
            "{% if m.tool_calls %}[" + _CALLS + _PYTHON + "{% endfor %}]{% else %}{{ m.content }}{% endif %}<|eot_id|>",
        ),
        "<|eot_id|>",
        {"<|start_header_id|>": True, "<|end_header_id|>": True, "<|eot_id|>": True},
        thinks=False,
        content=False,
    ),
    "lfm2": Form(
        _chatml(
            _THINK,
            "{{ '<|tool_call_start|>[' if loop.first else ', ' }}"
            + _PYTHON.partition('{{ "" if')[0]
            + "{{ ']<|tool_call_end|>' if loop.last }}",
        ),
        "<|im_end|>",
        {**_CHATML_TOKENS, "<|tool_call_start|>": True, "<|tool_call_end|>": True},
    ),
    "gemma 4": Form(
        _turns(
            "<|turn>user\n",
            "<|turn>model\n",
            "<turn|>\n",
            "{% if m.reasoning_content %}<|channel>thought\n{{ m.reasoning_content }}<channel|>{% endif %}"
            "{{ m.content or '' }}" + _CALLS + "<|tool_call>call:{{ f.name + '{' }}"
            "{% for k, v in f.arguments | dictsort %}{{ '' if loop.first else ',' }}{{ k }}:"
            "{{ '<|\"|>' + v + '<|\"|>' if v is string else v | tojson }}{% endfor %}}<tool_call|>{% endfor %}"
            "<turn|>\n",
        ),
        "<turn|>",
        {
            **dict.fromkeys(("<|turn>", "<turn|>"), True),
            **dict.fromkeys(("<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>", '<|"|>'), True),
        },
    ),
}

MARKS: Final[tuple[Any, ...]] = (
    *("</tool_call>", "<tool_call>", "</think>", "[TOOL_CALLS]", "</function>", "</parameter>", "<|im_end|>", "</s>"),
    *("<|tool_call|>", "</TOOLCALL>", "<|END_ACTION|>", "<｜tool▁call▁end｜>", "```", '"', "\\", "]", "}", "\n"),
)
"""Texts for the inside of an argument."""


@cache
def tokenizer_of(name: str) -> Tokenizer:
    """Make a tokenizer of bytes, and of the marks with tokens of their own in a family's vocabulary."""
    form = FORMS[name]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    for mark, special in form.tokens.items():
        token = AddedToken(mark, special=special, normalized=False)
        (backend.add_special_tokens if special else backend.add_tokens)([token])
    return Tokenizer(backend, form.template, eos_token=form.end)
