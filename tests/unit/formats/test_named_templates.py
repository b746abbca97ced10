"""Chat templates by name: the prompts of the formats' public descriptions, and the nearest one of a vocabulary."""

from typing import Any

import pytest
from tokenizers import AddedToken

from rekindle.core.errors import ConfigError, InvalidRequest
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.rendering.chat import render
from rekindle.formats.rendering.named_templates import TEMPLATES, source_of
from rekindle.session.opening import open as open_model
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Who?"},
]
PROMPTS = {
    "alpaca": "Be brief.\n\n### Instruction:\nHi\n\n### Response:\nHello.</s>\n\n"
    "### Instruction:\nWho?\n\n### Response:\n",
    "chatml": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello."
    "<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n",
    "command-r": "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hello.<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Who?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    "deepseek": "<s>Be brief.<｜User｜>Hi<｜Assistant｜>Hello.</s><｜User｜>Who?<｜Assistant｜>",
    "gemma": "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
    "<start_of_turn>user\nWho?<end_of_turn>\n<start_of_turn>model\n",
    "granite": "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n"
    "<|start_of_role|>user<|end_of_role|>Hi<|end_of_text|>\n"
    "<|start_of_role|>assistant<|end_of_role|>Hello.<|end_of_text|>\n"
    "<|start_of_role|>user<|end_of_role|>Who?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    "llama2": "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] Who? [/INST]",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello."
    "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "<s>[INST] Hi[/INST] Hello.</s>[INST] Be brief.\n\nWho?[/INST]",
    "phi3": "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello.<|end|>\n<|user|>\nWho?<|end|>\n"
    "<|assistant|>\n",
    "vicuna": "<s>Be brief.\n\nUSER: Hi\nASSISTANT: Hello.</s>\nUSER: Who?\nASSISTANT:",
    "zephyr": "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello.</s>\n<|user|>\nWho?</s>\n"
    "<|assistant|>\n",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_the_format_of_its_name(name: str) -> None:
    assert render(TALK, source_of(name.title()), "<s>", "</s>") == PROMPTS[name]
    without_system = render(TALK[1:], TEMPLATES[name], "<s>", "</s>")
    assert "Be brief." not in without_system
    assert without_system.count("Who?") == without_system.count("Hi") == 1


def tokenizer_with(tokenizer: Tokenizer, *marks: str) -> Tokenizer:
    backend: Any = tokenizer.backend.from_str(tokenizer.backend.to_str())
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    return Tokenizer(backend)


@pytest.mark.parametrize(
    ("marks", "remedy"),
    [
        (("<start_of_turn>", "<end_of_turn>"), 'chat_template="gemma", whose marks'),
        (("<|im_start|>", "<|im_end|>"), 'chat_template="chatml", whose marks'),
        (("<|start_header_id|>",), 'chat_template="llama3", whose marks'),
        (("[INST]",), 'chat_template="mistral", whose marks'),
        ((), 'as in chat_template="chatml"; known are alpaca, chatml, '),
    ],
)
def test_a_chat_without_a_template_names_the_nearest(byte_tokenizer: Tokenizer, marks: Any, remedy: str) -> None:
    tokenizer = tokenizer_with(byte_tokenizer, *marks)
    with (
        fake_session(fake_loaded_engine(fake_limits(), tokenizer=tokenizer)) as session,
        pytest.raises(InvalidRequest) as raised,
    ):
        session.generate_sync(TALK)
    assert remedy in str(raised.value)
    assert "pass the prompt as str" in str(raised.value)


def test_open_takes_a_name_or_a_source() -> None:
    with pytest.raises(ConfigError, match=r"the name of a chat template \(alpaca, chatml, .*got 'gema'"):
        open_model(chat_template="gema")
    open_model(chat_template="Gemma")
