"""Chat templates by name, for model files without one, written from the public descriptions of the formats."""

from collections.abc import Collection
from typing import Final

_LLAMA2 = (
    "{% set system = messages[0].content | trim if messages[0].role == 'system' else '' %}"
    "{% for m in (messages[1:] if system else messages) %}{% if m.role == 'user' %}"
    "{{ bos_token }}[INST] {% if loop.first and system %}<<SYS>>\n{{ system }}\n<</SYS>>\n\n{% endif %}"
    "{{ m.content | trim }} [/INST]{% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
TEMPLATES: Final = {
    "alpaca": (
        "{% for m in messages %}"
        "{% if m.role == 'system' %}{{ m.content }}\n\n"
        "{% elif m.role == 'user' %}### Instruction:\n{{ m.content }}\n\n"
        "{% else %}### Response:\n{{ m.content }}{{ eos_token }}\n\n{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}### Response:\n{% endif %}"
    ),
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "command-r": (
        "{{ bos_token }}{% for m in messages %}<|START_OF_TURN_TOKEN|>"
        "<|{{ {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'}[m.role] }}_TOKEN|>"
        "{{ m.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}"
        "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
    ),
    "deepseek": (
        "{{ bos_token }}{% for m in messages %}"
        "{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}<｜User｜>{{ m.content }}"
        "{% else %}<｜Assistant｜>{{ m.content }}{{ eos_token }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
    ),
    "gemma": (
        "{{ bos_token }}{% set system = messages[0].content | trim if messages[0].role == 'system' else '' %}"
        "{% for m in (messages[1:] if system else messages) %}"
        "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{% if loop.first and system %}{{ system }}\n\n{% endif %}{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    "granite": (
        "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
    ),
    "llama2": _LLAMA2,
    "llama3": (
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "mistral": (
        "{{ bos_token }}{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
        "{% for m in (messages[1:] if system else messages) %}{% if m.role == 'user' %}"
        "[INST] {% if loop.last and system %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"
        "{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
    ),
    "phi3": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
    "vicuna": (
        "{{ bos_token }}{% for m in messages %}"
        "{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}USER: {{ m.content }}\n"
        "{% else %}ASSISTANT: {{ m.content }}{{ eos_token }}\n{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    ),
    "zephyr": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
}
"""Jinja sources by name. They have neither tools nor images."""
_MARKS: Final = {
    "<start_of_turn>": "gemma",
    "<|im_start|>": "chatml",
    "<|start_header_id|>": "llama3",
    "<|START_OF_TURN_TOKEN|>": "command-r",
    "<|start_of_role|>": "granite",
    "<｜User｜>": "deepseek",
    "<|end|>": "phi3",
    "[INST]": "mistral",
}
"""Names of templates by a special token of their format."""


def source_of(template: str) -> str:
    """Return the source of a template by its name; other texts as they are."""
    return TEMPLATES.get(template.lower(), template)


def nearest(special_texts: Collection[str]) -> str | None:
    """Return the name of the template whose marks are among the special tokens of a vocabulary; None without one."""
    return next((name for mark, name in _MARKS.items() if mark in special_texts), None)


def remedy(special_texts: Collection[str]) -> str:
    """Return the remedy for a model without a chat template, as the end of a message."""
    if (name := nearest(special_texts)) is not None:
        return f'open the model with chat_template="{name}", whose marks are in its vocabulary'
    return f'open the model with the template of its family, as in chat_template="chatml"; known are {names()}'


def names() -> str:
    """Return the names of all templates, for messages."""
    return ", ".join(TEMPLATES)
