"""The longest text of one token, as a lower bound for the number of tokens in a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import tokenizers

COMPOSITION: Final = 3
"""Most bytes of a text for each byte of its canonical composition (NFC)."""
BYTES: Final = 256


def longest_token(backend: tokenizers.Tokenizer) -> int | None:
    """Return the most bytes of a text in one token, or None for a tokenizer that may leave parts of texts out."""
    state = json.loads(backend.to_str())
    factor = _growth(state.get("normalizer"))
    added = state.get("added_tokens") or []
    if factor is None or not _keeps_all(state) or any(each.get("lstrip") or each.get("rstrip") for each in added):
        return None
    texts = (*state["model"]["vocab"], *(each["content"] for each in added))
    return factor * max(len(text.encode()) for text in texts)


def _growth(normalizer: Mapping[str, Any] | None) -> int | None:
    """Return the most bytes of a text for each byte of its normal form, or None without a bound."""
    match normalizer:
        case None | {"type": "Prepend"}:
            return 1
        case {"type": "NFC"}:
            return COMPOSITION
        case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
            return 1 if len(content.encode()) >= len(pattern.encode()) else None
        case {"type": "Sequence", "normalizers": parts}:
            factors = [_growth(part) for part in parts]
            return None if None in factors else max([1, *(factor for factor in factors if factor is not None)])
    return None


def _keeps_all(state: Mapping[str, Any]) -> bool:
    """Return True if each part of a text becomes a token: there is a token for each byte, and no part is removed."""
    model, parts = state["model"], _parts(state.get("pre_tokenizer"))
    if model.get("type") != "BPE" or any(not _keeps(part) for part in parts):
        return False
    if model.get("byte_fallback"):
        return all(f"<0x{byte:02X}>" in model["vocab"] for byte in range(BYTES))
    is_byte_level = any(part["type"] == "ByteLevel" for part in parts)
    return is_byte_level and sum(len(token) == 1 for token in model["vocab"]) >= BYTES


def _parts(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if part is None:
        return []
    return list(part["pretokenizers"]) if part["type"] == "Sequence" else [part]


def _keeps(part: Mapping[str, Any]) -> bool:
    """Return True for a splitter of texts without losses."""
    return part["type"] in ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split") and (
        part.get("behavior") != "Removed"
    )
