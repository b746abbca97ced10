"""The bytes of a single token, which may be a part of a character."""

from __future__ import annotations

import json
import re
from functools import cache

from rekindle.core.text.tokenizer import Tokenizer

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How tokenizers with byte fallback name the token of a byte."""


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Return the UTF-8 bytes that a token stands for after another one; none for an id outside the vocabulary."""
    token = tokenizer.backend.id_to_token(token_id)
    if token is None:
        return b""
    if is_byte_level(tokenizer):
        return byte_level_bytes(tokenizer, token_id)
    if found := BYTE_TOKEN.fullmatch(token):
        return bytes([int(found[1], 16)])
    # Twice, because many decoders drop a space at the start of a text.
    once, twice = (tokenizer.decode([token_id] * times, skip_special_tokens=False) for times in (1, 2))
    return twice[len(once) :].encode()


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Tell whether the tokens of a tokenizer are strings of bytes."""
    decoder = tokenizer.backend.decoder
    if decoder is None:
        return False
    written = json.loads(decoder.__getstate__())
    parts = written["decoders"] if written["type"] == "Sequence" else [written]
    return [part["type"] for part in parts] == ["ByteLevel"]


def byte_level_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Return the bytes of a token of byte-level BPE; none for an id outside the vocabulary.

    An added token is text, and so is one with other characters than those of the bytes' alphabet.
    """
    token = tokenizer.backend.id_to_token(token_id)
    if token is None:
        return b""
    if token_id in tokenizer.added_ids:
        return token.encode()
    alphabet = _alphabet()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()


@cache
def _alphabet() -> dict[str, int]:
    """Return the byte for each character of byte-level BPE: printable bytes are themselves, others from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
