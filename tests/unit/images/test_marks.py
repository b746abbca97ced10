"""The tokens around true images are those of the chat template, whatever the words of a conversation have."""

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from rekindle.assembly.preparing.prompt_reader import PromptReader
from rekindle.client.calls.prompts import one_chat
from rekindle.formats.checkpoints.huggingface.directory import open_directory
from rekindle.formats.images.prompts import ImagePrompts
from rekindle.formats.images.sources import image_source
from tests.unit.images.vision_goldens import VISION

FAMILIES = sorted(path.name for path in VISION.iterdir() if path.name not in ("pixels", "goldens"))
WITH_VIDEOS = ("qwen2-vl", "qwen2_5-vl", "qwen3-vl", "qwen3_5")
PICTURE = image_source(np.random.default_rng(0).integers(0, 255, (40, 48, 3), np.uint8))
TOOL: dict[str, Any] = {"name": "see", "description": "{}", "parameters": {"type": "object", "properties": {}}}


@cache
def reader_of(family: str) -> tuple[PromptReader, tuple[str, ...]]:
    """Return the reader of prompts of a tiny model, and the texts of its special tokens of images."""
    model = open_directory(VISION / family)
    assert model.images is not None
    assert model.tokenizer is not None
    prompts = ImagePrompts(model.images, model.tokenizer)
    return PromptReader(model.tokenizer, model.config.vocab_size, 1 << 16, prompts, 1 << 16), model.images.words.texts


def conversation(part: dict[str, Any], place: str, words: str) -> Any:
    """Return a conversation with a picture, and some words in one of its places."""
    typed = {place: words}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": f"Be kind. {typed.get('system', '')}"},
        {"role": "user", "content": [part, {"type": "text", "text": f"What is it? {typed.get('user', '')}"}]},
        {"role": "assistant", "content": f"A cat. {typed.get('assistant', '')}"},
    ]
    if place in ("call", "result"):
        function = {"name": "see", "arguments": {f"a{typed.get('call', '')}": typed.get("call", "")}}
        calls = [{"id": "call00001", "type": "function", "function": function}]
        messages[-1] |= {"tool_calls": calls}
        messages += [
            {"role": "tool", "tool_call_id": "call00001", "name": "see", "content": f"It {typed.get('result')}"}
        ]
    else:
        messages += [{"role": "user", "content": "And now?"}]
    tools = [{"type": "function", "function": {**TOOL, "description": words}}] if place == "tool" else None
    return one_chat(messages, {"tools": tools} if tools else {})


def counts(family: str, part: dict[str, Any], place: str, words: str) -> Counter[str]:
    """Return the numbers of the special tokens of images in a prompt."""
    reader, texts = reader_of(family)
    assert reader.tokenizer is not None
    ids = Counter(reader.read(conversation(part, place, words)).ids)
    numbers = {text: reader.tokenizer.backend.token_to_id(text) for text in texts}
    return Counter({text: ids[number] for text, number in numbers.items() if number is not None})


@pytest.mark.parametrize("place", ["user", "assistant", "system", "result", "call", "tool"])
@pytest.mark.parametrize("family", FAMILIES)
def test_typed_texts_of_tokens_change_no_mark_of_an_image(family: str, place: str) -> None:
    part = {"type": "image", "image": PICTURE}
    _, texts = reader_of(family)
    plain = counts(family, part, place, "words")
    assert sum(plain.values()) > 0
    assert counts(family, part, place, f"words {' '.join(texts[:40])}") == plain


@pytest.mark.parametrize("place", ["user", "assistant", "result", "call"])
@pytest.mark.parametrize("family", WITH_VIDEOS)
def test_typed_texts_of_tokens_change_no_mark_of_a_video(family: str, place: str) -> None:
    part = {"type": "video", "video": [PICTURE] * 4, "fps": 2}
    _, texts = reader_of(family)
    plain = counts(family, part, place, "words")
    assert plain["<|vision_start|>"] > 0
    assert counts(family, part, place, f"words {' '.join(texts)}") == plain
