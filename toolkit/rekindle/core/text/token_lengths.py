"""Bounds for the number of tokens in a text, known before the text is tokenized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rekindle.core.text.byte_alphabet import byte_alphabet

COMPOSITION: Final = 3
"""Most bytes of a text for each byte of the canonical composition (NFC)."""
BYTES: Final = 256
_AT_ONCE: Final = 1 << 20
"""Characters counted at a time: functions in C let no other thread run."""


@dataclass(frozen=True, slots=True)
class TokenBound:
    """A lower bound for the number of tokens in a text.

    Attributes:
        longest: the most bytes of a text in one token.
        omitted: the bytes without a token.
    """

    longest: int
    omitted: bytes = b""

    def fewest(self, text: str) -> int:
        """Return the lower bound for a text."""
        parts = (text[start : start + _AT_ONCE] for start in range(0, len(text), _AT_ONCE))
        size = sum(len(part.encode("utf-8", "surrogatepass").translate(None, self.omitted)) for part in parts)
        return -(-size // self.longest)

    def reaching(self, text: str, most: int, *, at_end: bool) -> str:
        """Return the start or the end of a text with more than `most` tokens, or the whole of a shorter text.

        The part has room for twice as many tokens, so that the cut is far from the `most` first or last ones.
        """
        length = 2 * (most + 1) * self.longest
        part = text[max(0, len(text) - length) :] if at_end else text[:length]
        return part if self.fewest(part) > most else text


def token_bound(state: Mapping[str, Any]) -> TokenBound | None:
    """Return the bound of a tokenizer by its JSON, or None for a tokenizer that may leave out parts of texts."""
    factor, omitted = _growth(state.get("normalizer")), _omitted(state)
    added = state.get("added_tokens") or []
    strips = any(each.get("lstrip") or each.get("rstrip") for each in added)
    if factor is None or omitted is None or strips or (omitted and state.get("normalizer")):
        return None
    texts = (*state["model"]["vocab"], *(each["content"] for each in added))
    return TokenBound(factor * max(len(text.encode()) for text in texts), omitted)


def _growth(normalizer: Mapping[str, Any] | None) -> int | None:
    """Return the most bytes of a text for each byte of the normal form, or None without a bound."""
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


def _omitted(state: Mapping[str, Any]) -> bytes | None:
    """Return the bytes without a token, or None for a tokenizer that may leave out other parts of texts."""
    model, parts = state["model"], _parts(state.get("pre_tokenizer"))
    if model.get("type") != "BPE" or any(not _keeps(part) for part in parts):
        return None
    if model.get("byte_fallback"):
        return b"" if all(f"<0x{byte:02X}>" in model["vocab"] for byte in range(BYTES)) else None
    if not any(part["type"] == "ByteLevel" for part in parts):
        return None
    return bytes(sorted(byte for letter, byte in byte_alphabet().items() if letter not in model["vocab"]))


def _parts(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if part is None:
        return []
    return list(part["pretokenizers"]) if part["type"] == "Sequence" else [part]


def _keeps(part: Mapping[str, Any]) -> bool:
    """Return True for a splitter of texts without losses."""
    return part["type"] in ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split") and (
        part.get("behavior") != "Removed"
    )
