"""Conversion between text and token ids by the model's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.cures import cured
from rekindle.core.errors import InvalidRequest, panics_as
from rekindle.core.text.token_lengths import TokenBound, token_bound

if TYPE_CHECKING:
    import tokenizers


LONG = 4096
"""Tokens from which on their decoding takes more than a millisecond."""
LONGEST_NAME = 64
"""Most characters of a special token's text."""
FARTHEST = 2**20
"""Most ids without a token in a vocabulary: some have gaps, and ids for the rows of padding."""
LEAST_BYTES = 4
"""Bytes of the longest token of any vocabulary, at least. Shorter texts need no look at the vocabulary."""


_CURES: Final = {
    ("apply_chat_template",): "session.render(messages) gives the text of a conversation",
    ("tokenize", "encode_plus", "batch_encode_plus", "__call__"): "tokenizer.encode(text) gives token ids",
    ("batch_decode", "detokenize", "convert_ids_to_tokens"): "tokenizer.decode(token_ids) gives a text",
    ("eos_token_id", "bos_token_id"): "tokenizer.backend.token_to_id(tokenizer.eos_token) gives an id",
    ("get_vocab", "vocab", "convert_tokens_to_ids", "save_pretrained"): (
        "tokenizer.backend is the tokenizer of the library tokenizers"
    ),
}
"""Attributes of tokenizers in transformers."""


@cured(_CURES, call="tokenizer.encode(text) gives token ids")
class Tokenizer:
    """A model's tokenizer with its chat template.

    Attributes:
        chat_template: Jinja source that renders messages to a prompt, or None.
        bos_token: text of the token before a prompt, or None; for chat templates.
        eos_token: text of the token after an answer, or None; for chat templates.
        response_template: the checkpoint's description of its answer format, as a JSON object, or None.
        tool_template: Jinja source for conversations with tools, or None to use `chat_template`.
        longest: the most tokens of a text of an encoder, with its special tokens; the end of a longer one is cut.
            None for a model without such a cut.
        types_pairs: whether the tokens of the two texts of a pair have types of their own.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        chat_template: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        response_template: Mapping[str, Any] | None = None,
        tool_template: str | None = None,
        longest: int | None = None,
        types_pairs: bool = False,
    ) -> None:
        self.backend = backend
        self.chat_template = chat_template
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.response_template = response_template
        self.tool_template = tool_template
        self.longest, self.types_pairs = longest, types_pairs
        if longest is not None:
            backend.enable_truncation(longest)

    @property
    def template_with_tools(self) -> str | None:
        """The chat template for conversations with tools. It also shows the format of tool calls in answers."""
        return self.tool_template or self.chat_template

    def with_chat_template(self, chat_template: str) -> Tokenizer:
        """Return a copy with another chat template. Its answers need not follow the checkpoint's response template."""
        return Tokenizer(
            self.backend,
            chat_template,
            self.bos_token,
            self.eos_token,
            longest=self.longest,
            types_pairs=self.types_pairs,
        )

    def for_encoder(self, longest: int, *, types_pairs: bool) -> Tokenizer:
        """Return a copy for an encoder; see the attributes."""
        return Tokenizer(
            self.backend,
            self.chat_template,
            self.bos_token,
            self.eos_token,
            longest=longest,
            types_pairs=types_pairs,
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including special tokens. The model's embedding may have more rows."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def special_texts(self) -> frozenset[str]:
        """Texts of the special tokens."""
        return frozenset(entry.content for entry in self.backend.get_added_tokens_decoder().values() if entry.special)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Special tokens, skipped by `decode`."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token for token, entry in added.items() if entry.special)

    @cached_property
    def whole_texts(self) -> dict[int, str]:
        """Texts of tokens of whole characters, collected by decoders of byte-level BPE."""
        return {}

    @cached_property
    def added_ids(self) -> frozenset[int]:
        """Tokens added to the vocabulary. They are matched in a text before it is split."""
        return frozenset(self.backend.get_added_tokens_decoder())

    @cached_property
    def opening_ids(self) -> tuple[int, ...]:
        """Special tokens before every raw prompt."""
        whole, bare = self._encode("a", True).ids, self._encode("a", False).ids
        starts = (index for index in range(len(whole)) if whole[index : index + len(bare)] == bare)
        return tuple(whole[: next(starts, 0)])

    @cached_property
    def filler_ids(self) -> list[int]:
        """Tokens of one letter. Tokens decoded after them keep a leading space."""
        return self._encode("a", False).ids

    @cached_property
    def bound(self) -> TokenBound | None:
        """A lower bound for the number of tokens in a text; None if parts of texts may become no token."""
        return token_bound(json.loads(self.to_json()))

    def encode_open(self, text: str) -> list[int]:
        """Return the token ids of a raw prompt to be extended: with special tokens before it, and none after it."""
        return [*self.opening_ids, *self.encode(text, add_special_tokens=False)]

    def encode(
        self, text: str, add_special_tokens: bool = True, check: Callable[[int], None] | None = None
    ) -> list[int]:
        """Return the token ids of a raw prompt, with the tokenizer's special tokens around it.

        The special tokens before a text are not repeated if it already begins with them, as a rendered chat may.

        Args:
            text: the prompt.
            add_special_tokens: whether special tokens are added.
            check: a check of the number of tokens, before a list of millions is made.

        Raises:
            InvalidRequest: the text has a lone surrogate, which no encoding can represent; or the tokenizer breaks
                down at the text.
        """
        encoding = self._encoding(text, add_special_tokens)
        if check is not None:
            check(len(encoding))
        return encoding.ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int], bool]:
        """Return the token ids of two texts, with the tokenizer's special tokens around them, and their types.

        A pair of more than `longest` tokens loses ends, of the longer text first; the last value tells whether it does.

        Raises:
            InvalidRequest: as `encode`.
        """
        for text in (first, second):
            _check_surrogates(text)
        with panics_as(_broken):
            (encoding,) = self.backend.encode_batch_fast([(first, second)], add_special_tokens=True)
        types = encoding.type_ids if self.types_pairs else [0] * len(encoding)
        return encoding.ids, types, bool(encoding.overflowing)

    @property
    def unknown_id(self) -> int | None:
        """The token of parts of a text that the vocabulary lacks; None if it has none."""
        return self.backend.token_to_id(getattr(self.backend.model, "unk_token", None) or "<unk>")

    def places(self, text: str) -> list[tuple[int, int] | None]:
        """Return the place of each token in a text, in characters; None for the special tokens around the text.

        Raises:
            InvalidRequest: as `encode`.
        """
        _check_surrogates(text)
        with panics_as(_broken):
            (encoding,) = self.backend.encode_batch([text], add_special_tokens=True)
        pairs = zip(encoding.special_tokens_mask, encoding.offsets, strict=True)
        return [None if special else place for special, place in pairs]

    def is_cut(self, text: str) -> bool:
        """Return True if `encode` leaves out the end of a text."""
        return self.longest is not None and bool(self._encode(text, True).overflowing)

    def encode_chat(self, rendered: str) -> list[int]:
        """Return the token ids of a rendered chat. The template has written all special tokens already."""
        return self.encode(rendered, add_special_tokens=False)

    def count(self, text: str, add_special_tokens: bool = True) -> int:
        """Return the number of tokens that `encode` returns."""
        return len(self._encoding(text, add_special_tokens))

    def fewest(self, text: str, enough: int) -> int:
        """Return a lower bound for the number of tokens of a text; 0 for a text that may have fewer than `enough`."""
        if len(text) <= LEAST_BYTES * enough or self.longest is not None or self.bound is None:
            return 0
        return self.bound.fewest(text)

    def near(self, text: str, most: int, *, at_end: bool) -> str:
        """Return the start or the end of a text of more than `most` tokens, or the whole of a shorter text.

        The cut is far from the `most` tokens. Special tokens at the start of the text are put before the end.
        """
        if len(text) <= LEAST_BYTES * most or self.bound is None:
            return text
        part = self.bound.reaching(text, most, at_end=at_end)
        opening = self.decode(self.opening_ids, skip_special_tokens=False)
        if not at_end or len(part) + len(opening) > len(text):
            return part
        return opening + part if text.startswith(opening) else part

    def to_json(self) -> str:
        """Return the backend as JSON, the content of tokenizer.json.

        Raises:
            InvalidRequest: a token's id is far beyond the vocabulary; the library would visit each number up to it.
        """
        last, count = max(self.backend.get_vocab().values(), default=0), self.vocab_size
        if last > FARTHEST + 2 * count:
            raise InvalidRequest(
                f"the model's tokenizer is damaged: it has {count} tokens, and one of them is {last}. Fetch the "
                "tokenizer again"
            )
        return self.backend.to_str()

    def _encoding(self, text: str, add_special_tokens: bool) -> tokenizers.Encoding:
        _check_surrogates(text)
        # An encoder's texts are texts alone: no template writes special tokens before them.
        return self._encode(text, add_special_tokens and (self.longest is not None or not self._has_opening(text)))

    def _has_opening(self, text: str) -> bool:
        """Return True for a text with the special tokens of raw prompts at its start."""
        before = list(self.opening_ids)
        head = text[: LONGEST_NAME * len(before)]
        return bool(before) and self._encode(head, False).ids[: len(before)] == before

    def _encode(self, text: str, add_special_tokens: bool) -> tokenizers.Encoding:
        # Only the batch method releases the GIL for other threads.
        with panics_as(_broken):
            (encoding,) = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids. Invalid UTF-8 becomes U+FFFD, and ids outside the vocabulary are ignored.

        Raises:
            InvalidRequest: the decoder of the model's tokenizer breaks down.
        """
        tokens = list(ids)
        with panics_as(_broken):
            if len(tokens) < LONG:
                return self.backend.decode(tokens, skip_special_tokens=skip_special_tokens)
            (text,) = self.backend.decode_batch([tokens], skip_special_tokens=skip_special_tokens)  # releases the GIL
        return str(text)


def _check_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the prompt has a lone surrogate ({text[error.start]!r}) at character {error.start}: expected text "
            "that can be written as UTF-8"
        ) from error


def _broken(reason: str) -> InvalidRequest:
    return InvalidRequest.of(
        "prompt", f"the model's tokenizer cannot take this text or these tokens: {reason}. Other ones may be served"
    )


def wrap(backend: tokenizers.Tokenizer, bos: str | None, eos: str | None) -> None:
    """Set the special tokens around every raw prompt in `backend`; None adds no token on that side."""
    from tokenizers.processors import TemplateProcessing

    template = [f"{token}:0" for token in (bos,) if token] + ["$A:0"] + [f"{token}:0" for token in (eos,) if token]
    special = [(token, backend.token_to_id(token)) for token in dict.fromkeys((bos, eos)) if token]
    backend.post_processor = TemplateProcessing(single=template, pair=None, special_tokens=special)
