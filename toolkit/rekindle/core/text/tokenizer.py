"""Turning text into token ids and back, by the model's own tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rekindle.core.errors import InvalidRequest

if TYPE_CHECKING:
    import tokenizers


class Tokenizer:
    """A model's tokenizer with its chat template.

    Attributes:
        chat_template: Jinja source that turns messages into a prompt, or None.
        bos_token: the text of the token that starts a prompt, or None; for chat templates.
        eos_token: the text of the token that ends an answer, or None; for chat templates.
        response_template: the checkpoint's own description of its answers, as JSON holds it, or None.
        tool_template: Jinja source for conversations with tools, or None for the same.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        chat_template: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        response_template: Mapping[str, Any] | None = None,
        tool_template: str | None = None,
    ) -> None:
        self.backend = backend
        self.chat_template = chat_template
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.response_template = response_template
        self.tool_template = tool_template

    @property
    def answer_template(self) -> str | None:
        """The chat template that shows how answers are written, calls included."""
        return self.tool_template or self.chat_template

    def with_chat_template(self, chat_template: str) -> Tokenizer:
        """Return the same tokenizer with another chat template, whose answers need not be of the checkpoint's form."""
        return Tokenizer(self.backend, chat_template, self.bos_token, self.eos_token)

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included. The model's embedding may have more rows."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The tokens that `decode` leaves out."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token for token, entry in added.items() if entry.special)

    @cached_property
    def added_ids(self) -> frozenset[int]:
        """The tokens that were added to the vocabulary, and are found in a text before it is cut."""
        return frozenset(self.backend.get_added_tokens_decoder())

    @cached_property
    def opening_ids(self) -> tuple[int, ...]:
        """The special tokens that the tokenizer puts before every raw prompt."""
        whole, bare = self._encoded("a", True), self._encoded("a", False)
        starts = (at for at in range(len(whole)) if whole[at : at + len(bare)] == bare)
        return tuple(whole[: next(starts, 0)])

    @cached_property
    def some_text(self) -> list[int]:
        """The tokens of a letter, for what is to be decoded after any text."""
        return self._encoded("a", False)

    def encode_open(self, text: str) -> list[int]:
        """Return the token ids of the beginning of a raw prompt, without the special tokens that stand after one."""
        return [*self.opening_ids, *self.encode(text, add_special_tokens=False)]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a raw prompt, with the special tokens that the tokenizer puts around every text.

        A text that begins with those that stand before every text, as a rendered chat may, has them once.

        Raises:
            InvalidRequest: the text has a lone surrogate, which no encoding can represent.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the prompt has a lone surrogate ({text[error.start]!r}) at character {error.start}: expected text "
                "that can be written as UTF-8"
            ) from error
        ids = self._encoded(text, add_special_tokens)
        if add_special_tokens and (before := list(self.opening_ids)) and ids[: 2 * len(before)] == 2 * before:
            return self._encoded(text, False)
        return ids

    def encode_chat(self, rendered: str) -> list[int]:
        """Return the token ids of a rendered chat, in which the template has written every special token."""
        return self.encode(rendered, add_special_tokens=False)

    def _encoded(self, text: str, add_special_tokens: bool) -> list[int]:
        # Of its two ways, only that for batches lets other threads run meanwhile.
        (encoding,) = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of some tokens. Invalid UTF-8 becomes U+FFFD, and ids outside the vocabulary are ignored."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)


def wrap(backend: tokenizers.Tokenizer, before: str | None, after: str | None) -> None:
    """Make `backend` put these special tokens, and no others, around every raw prompt; None puts nothing."""
    from tokenizers.processors import TemplateProcessing

    template = [f"{token}:0" for token in (before,) if token] + ["$A:0"] + [f"{token}:0" for token in (after,) if token]
    special = [(token, backend.token_to_id(token)) for token in dict.fromkeys((before, after)) if token]
    backend.post_processor = TemplateProcessing(single=template, pair=None, special_tokens=special)
