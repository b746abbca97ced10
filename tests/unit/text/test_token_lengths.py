"""Bounds for the number of tokens in a text, and prompts read no further than needed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models

from rekindle.assembly.preparing.prompt_reader import PromptReader
from rekindle.core.errors import PromptTooLong
from rekindle.core.messages import Conversation
from rekindle.core.request.params import SamplingParams
from rekindle.core.text.tokenizer import Tokenizer, wrap

WORDS = "Bounds of texts are found without a look at each word, which takes long. "
CAPACITY = 64


class Counted(Tokenizer):
    """A tokenizer that notes the length of each text to encode."""

    def __init__(self, like: Tokenizer, chat_template: str | None = None):
        super().__init__(like.backend, chat_template or like.chat_template)
        self.lengths: list[int] = []

    def _encode(self, text: str, add_special_tokens: bool) -> Any:
        self.lengths.append(len(text))
        return super()._encode(text, add_special_tokens)


def reader(tokenizer: Tokenizer) -> PromptReader:
    return PromptReader(tokenizer, tokenizer.vocab_size, CAPACITY)


def with_opening(smollm2_tokenizer: Tokenizer) -> Counted:
    """Return a tokenizer with a token before each prompt and each chat."""
    backend = Backend.from_str(smollm2_tokenizer.backend.to_str())
    wrap(backend, "<|im_start|>", None)
    return Counted(Tokenizer(backend), "<|im_start|>{{ messages[0].content }}")


@given(st.text(max_size=60) | st.text("a \n<|im_start|>é東", max_size=60))
def test_a_text_has_at_least_as_many_tokens_as_its_bound_and_counts_what_it_encodes(
    smollm2_tokenizer: Tokenizer, byte_tokenizer: Tokenizer, text: str
) -> None:
    for tokenizer in (smollm2_tokenizer, byte_tokenizer):
        ids = tokenizer.encode(text)
        assert tokenizer.bound is not None
        assert tokenizer.bound.fewest(text) <= len(ids) == tokenizer.count(text)


def test_bytes_without_a_token_are_not_in_the_bound(smollm2_tokenizer: Tokenizer) -> None:
    bound = smollm2_tokenizer.bound
    assert bound is not None
    assert len(bound.omitted) == 21
    left_out = bytes(byte for byte in bound.omitted if byte < 0x80).decode() * 1000
    assert left_out
    assert bound.fewest(left_out) == 0
    assert smollm2_tokenizer.encode(left_out) == []


def test_a_tokenizer_that_replaces_parts_of_texts_has_no_bound() -> None:
    assert Tokenizer(Backend(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))).bound is None


@pytest.mark.parametrize("chat", [False, True])
def test_a_text_that_surely_does_not_fit_is_not_tokenized(smollm2_tokenizer: Tokenizer, chat: bool) -> None:
    tokenizer = Counted(smollm2_tokenizer)
    text = WORDS * 1000
    with pytest.raises(PromptTooLong, match=r"has at least \d+ tokens; at most 63 fit"):
        reader(tokenizer).read(
            Conversation([{"role": "user", "content": text}], None, {}) if chat else text, SamplingParams()
        )
    assert max(tokenizer.lengths, default=0) <= CAPACITY
    with pytest.raises(PromptTooLong, match=r"has \d+ tokens"):
        reader(tokenizer).read(WORDS * 5, SamplingParams())


@pytest.mark.parametrize("most", [1, 7, 40, -1])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("chat", [False, True])
def test_a_long_text_to_cut_is_read_near_the_tokens_that_stay(
    smollm2_tokenizer: Tokenizer, most: int, side: Any, chat: bool
) -> None:
    tokenizer = with_opening(smollm2_tokenizer)
    text = "".join(f"{number}. {WORDS}" for number in range(2000))
    prompt = Conversation([{"role": "user", "content": text}], None, {}) if chat else text
    params = SamplingParams(truncate_prompt_tokens=most, truncation_side=side, max_tokens=8)
    ready = reader(tokenizer)
    ids = ready.read(prompt, params).ids
    assert max(tokenizer.lengths) < len(text)
    assert ids == ready.cut(ready.read(prompt), params).ids
    assert len(ids) == (CAPACITY - 8 if most == -1 else most)
