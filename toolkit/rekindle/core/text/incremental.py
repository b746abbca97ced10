"""Incremental decoding of tokens to text, without partial characters.

The joined pieces of one decoder equal `Tokenizer.decode` of all tokens with the same `skip_special_tokens`, except for
an incomplete last character and a leading space. The cost of a push is independent of the text's length.
"""

from __future__ import annotations

import codecs
from itertools import takewhile

from rekindle.core.text.token_bytes import BYTE_TOKEN, byte_level_bytes, is_byte_level, token_bytes
from rekindle.core.text.tokenizer import Tokenizer


class IncrementalDecoder:
    """Decoder of one request's output.

    Args:
        skip_special_tokens: whether special tokens produce no text.
        goes_on: whether the text continues another text, so its leading space is significant. SentencePiece-style
            decoders drop the leading space of a text.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, goes_on: bool = False) -> None:
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._method: _ByteLevel | _Windows = (
            _ByteLevel(tokenizer) if is_byte_level(tokenizer) else _Windows(tokenizer, skip_special_tokens, goes_on)
        )

    def skips(self, token_id: int) -> bool:
        """Return True if a token produces no text because it is special."""
        return token_id in self._skipped

    def push(self, token_id: int) -> str:
        """Consume the next token.

        Returns:
            The newly completed text: often one word, and empty while a character is incomplete.
        """
        return "" if token_id in self._skipped else self._method.push(token_id)

    def finish(self) -> tuple[str, bytes]:
        """Return the remaining text, and the bytes of an incomplete character. Call it once, after the last token."""
        return self._method.finish()


class _ByteLevel:
    """Decoding of byte-level BPE: every token is a byte string, and the bytes are decoded as UTF-8."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._whole_texts = tokenizer.whole_texts
        self._within = False  # whether the last character is incomplete

    def push(self, token_id: int) -> str:
        if not self._within and (text := self._whole_texts.get(token_id)):
            return text
        before, text = self._within, self._utf8.decode(byte_level_bytes(self._tokenizer, token_id))
        self._within = bool(self._utf8.getstate()[0])
        if not before and not self._within:
            self._whole_texts[token_id] = text
        return text

    def finish(self) -> tuple[str, bytes]:
        pending = self._utf8.getstate()[0]
        incomplete = _incomplete(pending)
        return "" if incomplete else pending.decode(errors="replace"), incomplete


class _Windows:
    """Decoding for other tokenizers: decode the previous tokens with the new ones, and return the added text.

    Earlier tokens are included because many decoders drop a space at the start of a text.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, goes_on: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._before = tokenizer.filler_ids if goes_on else []
        self._window: list[int] = []

    def push(self, token_id: int) -> str:
        token = self._tokenizer.backend.id_to_token(token_id)
        if token is None:
            return ""
        self._window.append(token_id)
        # Another byte can invalidate a whole run of byte tokens: decoders then emit U+FFFD for each byte.
        if BYTE_TOKEN.fullmatch(token):
            return ""
        return self._take(final=False)

    def finish(self) -> tuple[str, bytes]:
        last = list(takewhile(self._is_byte, reversed(self._window)))[::-1]
        utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        utf8.decode(b"".join(token_bytes(self._tokenizer, token) for token in last))
        incomplete = _incomplete(utf8.getstate()[0])
        if incomplete:  # each of its bytes is one token
            del self._window[-len(incomplete) :]
        return self._take(final=True), incomplete

    def _is_byte(self, token_id: int) -> bool:
        return BYTE_TOKEN.fullmatch(self._tokenizer.backend.id_to_token(token_id) or "") is not None

    def _take(self, final: bool) -> str:
        prefix_length = len(self._tokenizer.decode(self._before, self._skip))
        piece = self._tokenizer.decode(self._before + self._window, self._skip)[prefix_length:]
        if not final and (not piece or piece.endswith("\ufffd")):
            return ""
        self._before, self._window = self._window, []
        return piece


def _incomplete(pending: bytes) -> bytes:
    """Return the bytes held back by Python's decoder, unless they begin a surrogate: no byte completes one in UTF-8."""
    return b"" if pending[:1] == b"\xed" and pending[1:] >= b"\xa0" else pending
