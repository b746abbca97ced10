"""Images of calls, beside a text or for the last message of a conversation."""

from collections.abc import Mapping, Sequence
from typing import Any

from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Continued, Conversation, Illustrated, KnownTokens, PicturedTokens, Prompt
from rekindle.core.request.checks import preview


def with_sources(messages: list[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return messages with all images read and checked.

    Raises:
        InvalidRequest: an image is bad.
        ConfigError: Pillow is not installed.
    """
    if not is_illustrated(messages):
        return messages
    from rekindle.formats.images import parts as images

    return images.with_sources(messages)


def has_images(prompt: Prompt) -> bool:
    """Return True for a prompt with images."""
    match prompt:
        case Illustrated() | KnownTokens() | PicturedTokens():
            return True
        case Conversation(messages):
            return is_illustrated(messages)
        case Continued(prefix, more):
            return has_images(prefix) or has_images(more)
    return False


def images_of(prompt: Prompt | None) -> tuple[Any, ...]:
    """Return the images and videos of a prompt in order, each as an `ImageSource` or a `Video`."""
    match prompt:
        case Illustrated(_, images) | KnownTokens(_, images):
            return tuple(image for image, _ in images)
        case PicturedTokens(_, pictures):
            return tuple(picture.source.image for picture in pictures if hasattr(picture.source, "image"))
        case Conversation(messages) if is_illustrated(messages):
            from rekindle.formats.images.parts import images_in

            return tuple(image for image, _ in images_in(messages))
        case Continued(prefix, more):
            return images_of(prefix) + images_of(more)
    return ()


def is_illustrated(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return True for messages with an image or a video."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list | tuple) for part in content)
    return any(isinstance(part, Mapping) and part.get("type") in ("image", "video") for part in parts)


def with_images(prompt: Prompt, images: Any) -> Prompt:
    """Return a prompt with images: a text has them in its places or first, a conversation in its last user message.

    Args:
        images: the images, in order; see `rekindle.formats.images.sources.image_source`.

    Raises:
        InvalidRequest: `images` is not a list, an image is bad, or the prompt has no place for images.
        ConfigError: Pillow is not installed.
    """
    if not isinstance(images, list | tuple):
        raise InvalidRequest.of("images", f"images must be a list of images, got {preview(images)}")
    if not images:
        return prompt
    from rekindle.formats.images.parts import image_part  # files and arrays are of no use to other calls
    from rekindle.formats.images.sources import image_source

    match prompt:
        case str():
            return Illustrated(prompt, tuple((image_source(image), "auto") for image in images))
        case Conversation():
            parts = [image_part(image) for image in images]
            return Conversation(
                _before_last(prompt.messages, parts), prompt.tools, prompt.variables, prompt.continue_final_message
            )
    raise InvalidRequest.of("images", "images need a prompt of text or messages, and this one has token ids")


def _before_last(messages: Sequence[Mapping[str, Any]], parts: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages with parts before the content of the last user message."""
    users = [place for place, message in enumerate(messages) if message.get("role") == "user"]
    if not users:
        raise InvalidRequest.of("images", "images are for a message of the user, and the conversation has none")
    message = messages[users[-1]]
    content = message.get("content") or ""
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else [*content]
    return [*messages[: users[-1]], {**message, "content": [*parts, *texts]}, *messages[users[-1] + 1 :]]
