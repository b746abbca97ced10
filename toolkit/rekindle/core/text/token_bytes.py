"""Bytes of a single token, possibly part of a character."""

from __future__ import annotations

import json
import re

from rekindle.core.text.byte_alphabet import byte_alphabet
from rekindle.core.text.tokenizer import Tokenizer

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""Format of byte tokens in tokenizers with byte fallback."""


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Return the UTF-8 bytes of a token in the middle of a text; empty for an id outside the vocabulary."""
    token = tokenizer.backend.id_to_token(token_id)
    if token is None:
        return b""
    if is_byte_level(tokenizer):
        return byte_level_bytes(tokenizer, token_id)
    if match := BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    # Decode the token twice and take the second text, because many decoders drop a space at the start.
    once, twice = (tokenizer.decode([token_id] * times, skip_special_tokens=False) for times in (1, 2))
    return twice[len(once) :].encode()


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Return True if a tokenizer's tokens are byte strings."""
    decoder = tokenizer.backend.decoder
    if decoder is None:
        return False
    state = json.loads(decoder.__getstate__())
    parts = state["decoders"] if state["type"] == "Sequence" else [state]
    return [part["type"] for part in parts] == ["ByteLevel"]


def byte_level_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Return the bytes of a byte-level BPE token; empty for an id outside the vocabulary.

    Added tokens are plain text, and so are tokens with characters outside the byte alphabet.
    """
    token = tokenizer.backend.id_to_token(token_id)
    if token is None:
        return b""
    if token_id in tokenizer.added_ids:
        return token.encode()
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()
