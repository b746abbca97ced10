"""Bodies of requests without generation: embeddings, tokenization and detokenization."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rekindle.core.text.response import MessageForm
from rekindle.server.reading.call import MAX_TOKEN_ID
from rekindle.server.reading.chat import message, template_in, tools_in
from rekindle.server.reading.completion import Text, texts
from rekindle.server.reading.fields import Fields


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A request for embeddings.

    Attributes:
        texts: the texts to embed.
        dimensions: the length of each vector; None for all dimensions.
        encoding: "float" for lists of numbers, "base64" for the base64 of their bytes.
        cache_salt: as in `SamplingParams`.
    """

    texts: Sequence[Text]
    dimensions: int | None
    encoding: Literal["float", "base64"]
    cache_salt: str


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A text or a conversation to tokenize.

    Attributes:
        text: the text; None for a conversation.
        messages: the conversation; None for a text.
        options: the keywords of `session.render`.
        special: whether to add the tokenizer's special tokens around the prompt.
        with_texts: whether the answer has the text of each token.
    """

    text: str | None
    messages: Sequence[Mapping[str, Any]] | None
    options: Mapping[str, Any]
    special: bool
    with_texts: bool


def read_embedding(body: Fields, most: int) -> EmbeddingRequest:
    """Return the request for embeddings in a body of at most `most` texts; raise ApiError if the body is invalid."""
    inputs = texts(body, "input", most, mixed=True)
    dimensions, encoding = body.take("dimensions", int), body.take("encoding_format", str) or "float"
    if encoding not in ("float", "base64"):
        body.refuse("encoding_format", f"must be float or base64, got {encoding!r:.80}")
    salt = body.take("cache_salt", str) or ""
    body.finish({"add_special_tokens": (True,)})
    return EmbeddingRequest(inputs, dimensions, "base64" if encoding == "base64" else "float", salt)


def read_tokenize(body: Fields, form: MessageForm) -> TokenizeRequest:
    """Return the request for tokenization in a body; raise ApiError if the body is invalid."""
    with_texts = body.flag("return_token_strs")
    text, messages = body.take("prompt", str), body.items("messages", dict)
    if (text is None) == (messages is None):
        body.refuse("prompt", "or messages must be given, and not both")
    special = body.flag("add_special_tokens", text is not None)
    if messages is None:
        body.finish({})
        return TokenizeRequest(text, None, {}, special, with_texts)
    tools = {name: value for name, value in tools_in(body).items() if name == "tools"}
    options = {**template_in(body), **tools}
    body.finish({})
    return TokenizeRequest(None, [message(each, form) for each in messages], options, special, with_texts)


def tokens_of(body: Fields) -> list[int]:
    """Return the token ids to decode; raise ApiError if the field is missing or invalid."""
    tokens = body.take("tokens", list)
    if tokens is None:
        body.refuse_missing("tokens")
    if not all(type(each) is int and 0 <= each <= MAX_TOKEN_ID for each in tokens):
        body.refuse("tokens", "must be a list of token ids")
    body.finish({})
    return tokens
