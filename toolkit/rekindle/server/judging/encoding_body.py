"""Bodies of requests without generation: embeddings, tokenization and detokenization."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rekindle.core.request.checks import preview
from rekindle.formats.images.parts import images_in
from rekindle.formats.response import MessageForm
from rekindle.formats.responses.formats import PLAIN
from rekindle.server.common.fields import Fields
from rekindle.server.common.messages import messages_in, template_in, tools_in
from rekindle.server.common.pictures import refuse_images
from rekindle.server.common.prompts import texts

MAX_TOKEN_ID = 2**31 - 1
MOST_TOKENS = 2**20
"""Most token ids to decode; few contexts are longer."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True, False),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "padding": ("do_not_pad",),
    "priority": (0,),
}
"""Field values of requests without generation that are equivalent to an absent field."""


@dataclass(frozen=True, slots=True)
class EncodingInputs:
    """Prompts without generation.

    Attributes:
        prompts: texts, lists of token ids or conversations.
        special: whether the tokenizer adds its special tokens to texts.
        most_tokens: the length that longer prompts are cut to; -1 for the longest that fits, None for no cut.
        keeps_end: whether the end of a cut prompt is kept, rather than the beginning.
        template: the keywords of `session.render` for conversations.
        name: the field of the body with the prompts, unless they are conversations.
    """

    prompts: Sequence[Any]
    special: bool = True
    most_tokens: int | None = None
    keeps_end: bool = False
    template: Mapping[str, Any] = field(default_factory=dict)
    name: str = "input"

    @property
    def is_pictured(self) -> bool:
        """True if a conversation has images."""
        return any(next(images_in(each), None) is not None for each in self.prompts) if self.template else False

    @property
    def fields(self) -> Mapping[str, str]:
        """The field of the body for each keyword of the session call."""
        return dict.fromkeys(("prompt", "texts", "token_ids"), "messages" if self.template else self.name)


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A request for embeddings.

    Attributes:
        inputs: the prompts to embed.
        dimensions: the length of each vector; None for all dimensions.
        encoding: "float" for lists of numbers, "base64" for the base64 of their bytes.
        cache_salt: as in `SamplingParams`.
        normalize: whether vectors have length 1; None for the model's choice.
        prompts: the names of the prompt before each text, of which the model may have one.
    """

    inputs: EncodingInputs
    dimensions: int | None
    encoding: Literal["float", "base64"]
    cache_salt: str
    normalize: bool | None = None
    prompts: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A text or a conversation to tokenize.

    Attributes:
        text: the text; None for a conversation.
        messages: the conversation; None for a text.
        options: the keywords of `session.render`.
        special: whether to add the tokenizer's special tokens around the prompt.
        with_texts: whether the answer has the text of each token.
        with_pieces: whether each token comes with its text, in llama.cpp's form.
    """

    text: str | None
    messages: Sequence[Mapping[str, Any]] | None
    options: Mapping[str, Any]
    special: bool
    with_texts: bool
    with_pieces: bool = False


JINA_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "retrieval.query": ("retrieval.query", "query"),
    "retrieval.passage": ("retrieval.passage", "passage", "document"),
}
"""Names of a model's prompt for a task in Jina's API; other tasks have their own names."""


def read_embedding(body: Fields, most: int, form: MessageForm = PLAIN.form) -> EmbeddingRequest:
    """Return the request for embeddings in a body of at most `most` texts; raise ApiError if the body is invalid.

    The fields are OpenAI's, vLLM's and Jina's.
    """
    inputs = inputs_in(body, most, form, images=True)
    dimensions = body.take("dimensions", int)
    encoding = encoding_in(body, "embedding_type" if body.peek(("embedding_type",)) else "encoding_format")
    salt = body.take("cache_salt", str) or ""
    task, normalize = body.take("task", str), body.take("normalized", bool)
    if body.flag("truncate") and inputs.most_tokens is None:
        inputs = replace(inputs, most_tokens=-1)
    body.finish({**NEUTRAL, "late_chunking": (False,)})
    prompts = () if task is None else JINA_PROMPTS.get(task, (task,))
    return EmbeddingRequest(inputs, dimensions, encoding, salt, normalize, prompts)


def encoding_in(body: Fields, name: str = "encoding_format") -> Literal["float", "base64"]:
    """Take the encoding of vectors; raise ApiError if it is unknown."""
    encoding = body.take(name, str) or "float"
    if encoding not in ("float", "base64"):
        body.refuse(name, f"must be float or base64, got {preview(encoding)}")
    return "base64" if encoding == "base64" else "float"


def inputs_in(body: Fields, most: int, form: MessageForm, *, images: bool = False) -> EncodingInputs:
    """Take the texts, token ids or conversation of a body with at most `most` texts.

    Args:
        images: whether a conversation may have images.
    """
    messages, template = body.items("messages", dict), dict[str, Any]()
    if messages is None:
        body.unwrap_texts("input")
        prompts = list[Any](texts(body, "input", most))
    else:
        if body.peek(("input",)):
            body.refuse("messages", "and input are both prompts; give one of them")
        prompts, template = [messages_in(messages, form)], template_in(body)
        if not images:
            refuse_images(prompts[0], "messages")
    special = body.flag("add_special_tokens", messages is None)
    count = body.take("truncate_prompt_tokens", int)
    if count is not None and not (count == -1 or 0 < count <= MAX_TOKEN_ID):
        body.refuse("truncate_prompt_tokens", f"must be at least 1, or -1 for the longest that fits, got {count}")
    if count is not None and messages is not None and next(images_in(prompts[0]), None) is not None:
        body.refuse("truncate_prompt_tokens", "cannot cut a conversation with images; leave it out")
    side = body.take("truncation_side", str) or "right"
    if side not in ("left", "right"):
        body.refuse("truncation_side", f"must be left or right, got {preview(side)}")
    return EncodingInputs(prompts, special, count, side == "left", template)


def read_tokenize(body: Fields, form: MessageForm) -> TokenizeRequest:
    """Return the request for tokenization in a body; raise ApiError if the body is invalid."""
    if body.peek(("content",)):
        return _read_content(body)
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
    chat = messages_in(messages, form)
    refuse_images(chat, "messages")
    return TokenizeRequest(None, chat, options, special, with_texts)


def _read_content(body: Fields) -> TokenizeRequest:
    """Return the request for tokenization in a body of llama.cpp's form."""
    text, special = body.take("content", str) or "", body.flag("add_special")
    with_pieces = body.flag("with_pieces")
    body.finish({"parse_special": (True,)})
    return TokenizeRequest(text, None, {}, special, False, with_pieces)


def read_detokenize(body: Fields) -> list[int]:
    """Return the token ids to decode; raise ApiError if the field is missing or invalid."""
    tokens = body.require("tokens", list)
    if len(tokens) > MOST_TOKENS:
        body.refuse("tokens", f"must be at most {MOST_TOKENS:,} token ids, got {len(tokens):,}")
    if not all(type(each) is int and 0 <= each <= MAX_TOKEN_ID for each in tokens):
        body.refuse("tokens", f"must be a list of token ids, got {preview(tokens)}")
    body.finish({})
    return tokens
