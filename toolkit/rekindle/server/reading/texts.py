"""The bodies of what is computed of texts without generating: embeddings, and tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rekindle.core.text.response import MessageForm
from rekindle.server.reading.chat import message, template_in, tools_in
from rekindle.server.reading.completion import Text, texts
from rekindle.server.reading.fields import Fields

BIGGEST_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """Embeddings that are asked for.

    Attributes:
        texts: whose they are.
        dimensions: how many numbers each has; None for all.
        written: "float" for lists of numbers, "base64" for their bytes.
        cache_salt: as in `SamplingParams`.
    """

    texts: Sequence[Text]
    dimensions: int | None
    written: Literal["float", "base64"]
    cache_salt: str


@dataclass(frozen=True, slots=True)
class TokenizeCall:
    """A text or a conversation that is to be tokenized.

    Attributes:
        text: the text; None for a conversation.
        messages: the conversation; None for a text.
        options: keywords of `session.render`.
        special: whether the special tokens that the tokenizer puts around a whole prompt are added.
        shown: whether the text of each token is given too.
    """

    text: str | None
    messages: Sequence[Mapping[str, Any]] | None
    options: Mapping[str, Any]
    special: bool
    shown: bool


def embedding_call(body: Fields, most: int) -> EmbeddingCall:
    """Return what a body asks for; raise Refused if it cannot be served."""
    given = texts(body, "input", most, mixed=True)
    dimensions, written = body.take("dimensions", int), body.take("encoding_format", str) or "float"
    if written not in ("float", "base64"):
        body.refuse("encoding_format", f"must be float or base64, got {written!r:.80}")
    salt = body.take("cache_salt", str) or ""
    body.finish({"add_special_tokens": (True,)})
    return EmbeddingCall(given, dimensions, "base64" if written == "base64" else "float", salt)


def tokenize_call(body: Fields, form: MessageForm) -> TokenizeCall:
    """Return what a body asks for; raise Refused if it cannot be served."""
    shown = body.flag("return_token_strs")
    text, messages = body.take("prompt", str), body.items("messages", dict)
    if (text is None) == (messages is None):
        body.refuse("prompt", "or messages must be given, and not both")
    special = body.flag("add_special_tokens", text is not None)
    if messages is None:
        body.finish({})
        return TokenizeCall(text, None, {}, special, shown)
    tools = {name: value for name, value in tools_in(body).items() if name == "tools"}
    options = {**template_in(body), **tools}
    body.finish({})
    return TokenizeCall(None, [message(each, form) for each in messages], options, special, shown)


def tokens_of(body: Fields) -> list[int]:
    """Return the token ids whose text a body asks for; raise Refused if they are none."""
    tokens = body.take("tokens", list)
    if tokens is None:
        body.needed("tokens")
    if not all(type(each) is int and 0 <= each <= BIGGEST_ID for each in tokens):
        body.refuse("tokens", "must be a list of token ids")
    body.finish({})
    return tokens
