"""Queries and documents with images: their checks, and their questions in the form of Qwen3-VL-Reranker."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Conversation
from rekindle.core.request import checks
from rekindle.formats.rendering.chat import check_messages, copy_messages
from rekindle.results.scores.ranking import Content

INSTRUCTION: Final = "Given a search query, retrieve relevant candidates that answer the query."
"""Default instruction of Qwen3-VL-Reranker."""


def content(name: str, value: Any) -> Content:
    """Return a text, or parts of a message with their images read.

    Args:
        name: the name of the value, for errors.
        value: a text, or a list of parts as of a message's content.

    Raises:
        InvalidRequest: the value is neither, or an image is bad.
        ConfigError: Pillow is not installed.
    """
    if not checks.is_sequence(value):
        return checks.text(name, value, checks.LONGEST_LONG_TEXT)
    from rekindle.formats.images.parts import with_sources  # texts need no image

    messages = [{"role": "user", "content": list(value)}]
    try:
        check_messages(messages)
        (message,) = with_sources(copy_messages(messages))
    except InvalidRequest as error:
        raise InvalidRequest.of("prompt", f"{name}: {error}") from error
    return tuple(message["content"])


def contents(name: str, values: Sequence[Any]) -> tuple[Content, ...]:
    """Return texts, or parts of messages among them; errors as of `content` and of `checks.long_texts`."""
    if all(isinstance(value, str) for value in values):
        return checks.long_texts(name, values)
    checks.check_size(name, values, checks.MOST_LONG_TEXTS)
    return tuple(content(f"{name}[{index}]", value) for index, value in enumerate(values))


def illustrated_question(system: str, instruction: str, query: Content, document: Content) -> Conversation:
    """Return the conversation for judging a document's relevance, with images in the query, the document, or both."""
    parts = [_text(f"<Instruct>: {instruction}"), _text("<Query>:"), *_parts(query)]
    parts += [_text("\n<Document>:"), *_parts(document)]
    return Conversation([{"role": "system", "content": system}, {"role": "user", "content": parts}], None, {})


def _parts(value: Content) -> Sequence[Mapping[str, Any]]:
    return [_text(value)] if isinstance(value, str) else value


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
