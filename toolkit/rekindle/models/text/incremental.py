"""Tokens to text one at a time, never showing half a character.

The pieces of one decoder, joined, equal `Tokenizer.decode` of all its tokens. Every push costs the same, however
long the text has grown.
"""

from __future__ import annotations

import codecs
import json
import re
from functools import cache
from typing import Protocol

from rekindle.models.text.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class IncrementalDecoder:
    """The decoder of one request. Special tokens are skipped."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._special = tokenizer.special_ids
        self._way: _Way = _ByteLevel(tokenizer) if _is_byte_level(tokenizer) else _Windows(tokenizer)

    def push(self, token_id: int) -> str:
        """Take the next token.

        Returns:
            the text that it completes: often one word, and empty while a character is incomplete.
        """
        return "" if token_id in self._special else self._way.push(token_id)

    def finish(self) -> str:
        """What was held back, with U+FFFD for an incomplete character. Call it once, after the last token."""
        return self._way.finish()


class _Way(Protocol):
    def push(self, token_id: int) -> str: ...
    def finish(self) -> str: ...


class _ByteLevel:
    """For byte-level BPE, where every token is a string of bytes, and the text is all the bytes read as UTF-8."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._id_to_token = tokenizer.backend.id_to_token
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        token = self._id_to_token(token_id)
        return "" if token is None else self._utf8.decode(_token_bytes(token))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _Windows:
    """For every other decoder: decode the new tokens behind the last ones that gave text, and take what they add.

    The tokens in front keep the new ones from being treated as the start of a text, where decoders drop a space.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []
        self._window: list[int] = []

    def push(self, token_id: int) -> str:
        token = self._tokenizer.backend.id_to_token(token_id)
        if token is None:
            return ""
        self._window.append(token_id)
        # One byte more can make a whole run of byte tokens invalid, which decoders then show as U+FFFD throughout.
        if _BYTE_TOKEN.fullmatch(token):
            return ""
        return self._take(final=False)

    def finish(self) -> str:
        return self._take(final=True)

    def _take(self, final: bool) -> str:
        known = len(self._tokenizer.decode(self._before))
        piece = self._tokenizer.decode(self._before + self._window)[known:]
        if not final and (not piece or piece.endswith("\ufffd")):
            return ""
        self._before, self._window = self._window, []
        return piece


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    decoder = tokenizer.backend.decoder
    return decoder is not None and bool(json.loads(decoder.__getstate__())["type"] == "ByteLevel")


@cache
def _alphabet() -> dict[str, int]:
    """The printable character that stands for each byte: itself where printable, else one from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _token_bytes(token: str) -> bytes:
    """A token that is not wholly of the alphabet, such as an added one, stands for its own text."""
    alphabet = _alphabet()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()
