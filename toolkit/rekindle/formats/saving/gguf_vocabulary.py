"""Metadata of a tokenizer for a GGUF file, tested by the tokens of texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import UnsupportedModel
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.gguf.bpe import PRE_TOKENIZERS, split_as
from rekindle.formats.checkpoints.gguf.tokenizer import BYTE_LEVEL, SENTENCEPIECE

if TYPE_CHECKING:
    import tokenizers

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens."""
_KEYS: Final = "tokenizer.ggml."
PROBES: Final = (
    "Hello, world! It's 7:45 o'clock; we'll meet at 12345 Main St. (don't be late)",
    "  two spaces,\ttabs\t\tand\n\nnew lines \n \n\r\n at the end  \n",
    "CamelCase and UPPERCASE, snake_case_names, x+=1; if (a<=b) { return a->b[0]; } // 100%",
    "I'M SURE THEY'VE said: 'twas 3.14159 or 1,234,567.89 €, 50°C",
    "Übergröße naïve Ångström français ¿qué? ελληνικά кириллица עברית العربية हिन्दी",
    "中文字符和日本語のテキスト、한국어 텍스트。\uff11\uff12",
    "emoji 👩‍👩‍👧 🎉🎉 and signs ™ © ≠ ∑ → ﬁ e\u0301",
    "a\u00a0b\u200bc\u3000d ... !!! ??? --- ### $$$ @user #tag http://example.org/a?b=c&d=e",
    "1 22 333 4444 55555 a1b2c3 2024-01-31T23:59:59Z",
)
"""Texts with the differences between tokenizers: digits, capitals, spaces, signs and scripts."""


def vocabulary_of(tokenizer: Tokenizer | None, eos_ids: frozenset[int], size: int, source: str) -> dict[str, Any]:
    """Return the metadata of a tokenizer by key.

    Args:
        tokenizer: the tokenizer; None for a model served by token ids alone.
        eos_ids: the tokens that end an answer.
        size: the number of rows of the embedding. Rows without a token get an unused one.
        source: path of the model, for messages.

    Raises:
        UnsupportedModel: llama.cpp has no tokenizer of this kind.
    """
    if tokenizer is None:
        return {f"{_KEYS}model": "none"} | _ends({}, eos_ids)
    backend = tokenizer.backend
    model = json.loads(tokenizer.to_json())["model"]
    if model["type"] != "BPE":
        raise _unsupported(f"its tokenizer is of the kind {model['type']}", source)
    is_byte_level = not model.get("byte_fallback")
    keys: dict[str, Any] = _tokens(backend, size, model)
    if is_byte_level:
        keys |= {
            "model": BYTE_LEVEL,
            "pre": _pre_tokenizer(backend, source),
            "merges": list(map(_joined, model["merges"])),
        }
    else:
        keys |= {"model": SENTENCEPIECE, "pre": "default", "scores": _scores(keys["tokens"], model["merges"])}
        keys["add_space_prefix"] = backend.encode("a", add_special_tokens=False).tokens[0].startswith("\u2581")
        if model.get("unk_token") is not None:
            keys["unknown_token_id"] = backend.token_to_id(model["unk_token"])
    opening = list(tokenizer.opening_ids)
    bos = backend.token_to_id(tokenizer.bos_token) if tokenizer.bos_token else None
    keys |= {"add_bos_token": bool(opening), "add_eos_token": _adds_eos(tokenizer)}
    if opening or bos is not None:
        keys["bos_token_id"] = opening[0] if opening else bos
    declared = backend.token_to_id(tokenizer.eos_token) if tokenizer.eos_token else None
    result = {f"{_KEYS}{key}": value for key, value in keys.items()} | _ends({"eos": declared}, eos_ids)
    if tokenizer.chat_template is not None:
        result["tokenizer.chat_template"] = tokenizer.chat_template
    if tokenizer.tool_template is not None:
        result["tokenizer.chat_template.tool_use"] = tokenizer.tool_template
    return result


def check_tokens(tokenizer: Tokenizer | None, stored: Tokenizer | None, source: str) -> None:
    """Compare a tokenizer with the tokenizer of a new file, by the tokens of texts.

    Raises:
        UnsupportedModel: a text has other tokens.
    """
    if tokenizer is None or stored is None:
        return
    special = " ".join(sorted(tokenizer.special_texts))
    for text in (*PROBES, *tokenizer.special_texts, f"a {special} b"):
        if tokenizer.encode(text) != stored.encode(text):
            raise _unsupported(f"llama.cpp has no tokenizer with its tokens of {text[:40]!r}", source)


def _tokens(backend: tokenizers.Tokenizer, size: int, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts and the types of all tokens."""
    texts = [f"[PAD{index}]" for index in range(size)]
    types = [_UNUSED] * size
    for text, index in backend.get_vocab(with_added_tokens=True).items():
        if index < size:
            texts[index], types[index] = text, _NORMAL
    if model.get("byte_fallback"):
        places = (backend.token_to_id(f"<0x{value:02X}>") for value in range(256))
        for index in (place for place in places if place is not None and place < size):
            types[index] = _BYTE
    for index, added in backend.get_added_tokens_decoder().items():
        if index < size:
            types[index] = _CONTROL if added.special else _USER_DEFINED
    unknown = None if model.get("unk_token") is None else backend.token_to_id(model["unk_token"])
    if unknown is not None and unknown < size:
        types[unknown] = _UNKNOWN
    return {"tokens": texts, "token_type": types}


def _pre_tokenizer(backend: tokenizers.Tokenizer, source: str) -> str:
    """Return llama.cpp's name for the pre-tokenizer: the first name with the same tokens for all texts."""
    from tokenizers import Tokenizer as Backend

    expected = [backend.encode(text, add_special_tokens=False).ids for text in PROBES]
    copy = Backend.from_str(backend.to_str())
    for name, pre_tokenizer in PRE_TOKENIZERS.items():
        split_as(copy, pre_tokenizer)
        if [copy.encode(text, add_special_tokens=False).ids for text in PROBES] == expected:
            return name
    raise _unsupported("llama.cpp has no pre-tokenizer that splits texts as its own", source)


def _scores(tokens: list[str], merges: list[Any]) -> list[float]:
    """Return a score for each token: the negative place of the first merge into this token."""
    places: dict[str, int] = {}
    for place, merge in enumerate(merges):
        places.setdefault("".join(merge if isinstance(merge, list) else merge.split(" ", 1)), place)
    return [-float(places.get(token, len(places))) for token in tokens]


def _joined(merge: Any) -> str:
    return merge if isinstance(merge, str) else " ".join(merge)


def _adds_eos(tokenizer: Tokenizer) -> bool:
    if not tokenizer.eos_token:
        return False
    ids = tokenizer.backend.encode("a").ids
    return bool(ids[-1] == tokenizer.backend.token_to_id(tokenizer.eos_token) != ids[0])


def _ends(declared: Mapping[str, int | None], eos_ids: frozenset[int]) -> dict[str, Any]:
    """Return the end tokens: the tokenizer's as `eos`, another token as `eot`, and a list of all."""
    first = declared.get("eos")
    others = sorted(eos_ids - {first})
    if first is None and others:
        first = others.pop(0)
    ends: dict[str, Any] = {} if first is None else {f"{_KEYS}eos_token_id": first}
    if others:
        ends[f"{_KEYS}eot_token_id"] = others[0]
    if len(others) > 1:
        ends[f"{_KEYS}eos_token_ids"] = sorted(eos_ids)
    return ends


def _unsupported(reason: str, source: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{source}: {reason}, so it is not written as GGUF: write safetensors instead, to a path without .gguf "
        "(--format safetensors)"
    )
