"""A session as the model of the chat of marimo: `mo.ui.chat(rekindle.marimo.chat_model(session))`."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Unpack

from rekindle.chats.turns import fitted
from rekindle.client.calls.options import OnePromptOptions, is_greedy
from rekindle.client.window import WhenFull, check_when_full
from rekindle.core.concurrency.waits import awaited
from rekindle.core.errors import InvalidRequest
from rekindle.session.session import Session

ChatModel = Callable[[Sequence[Any], Any], AsyncIterator[Any]]
"""A model of `mo.ui.chat`: a function of messages and a configuration, with an iterator of pieces of an answer."""
CONFIGURATION: Final = ("max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")
"""The options in a configuration of marimo's chat."""


def chat_model(session: Session, *, when_full: WhenFull = "trim", **options: Unpack[OnePromptOptions]) -> ChatModel:
    """Return a model for `mo.ui.chat`, answered by a session.

    Answers arrive piece by piece, reasoning apart from content. The stop button of the chat cancels the request. Image
    attachments are images of the prompt.

    Args:
        session: an open session.
        when_full: what to do when the conversation no longer fits the context, as in `Session.chat`.
        options: options of each request, as for `Session.stream`; the `config=` of the chat counts less.

    Raises:
        InvalidRequest: `when_full` is invalid; or an attachment of a message is no image, raised by the model.
    """
    check_when_full(when_full)

    async def answer(messages: Sequence[Any], config: Any) -> AsyncIterator[Any]:
        own, talk = _options(config, options), [_message(each) for each in messages]
        stream = session.stream(await awaited(fitted(session._requests, talk, own, when_full)), **own)
        thinks = False
        try:
            async for part in stream.parts():
                if thinks != (part.kind == "reasoning"):
                    thinks = not thinks
                    yield {"type": "reasoning-start" if thinks else "reasoning-end", "id": "reasoning"}
                yield {"type": "reasoning-delta", "id": "reasoning", "delta": part.text} if thinks else part.text
            if thinks:
                yield {"type": "reasoning-end", "id": "reasoning"}
        finally:
            stream.close()

    return answer


def _options(config: Any, options: Mapping[str, Any]) -> Any:
    """Join the options of `chat_model` with the configuration of the chat, which counts less."""
    of_chat = {name: value for name in CONFIGURATION if (value := getattr(config, name, None)) is not None}
    if is_greedy(options.get("temperature", of_chat.get("temperature"))):
        of_chat = {name: value for name, value in of_chat.items() if name not in ("top_p", "top_k")}
    return {**of_chat, **options}


def _message(message: Any) -> dict[str, Any]:
    """Return a message of marimo as one of a conversation."""
    files = [*message.parts, *(message.attachments or ())]
    images = [{"type": "image", "url": url} for url in _image_urls(files)]
    texts = [part.text for part in message.parts if getattr(part, "type", "") == "text"]
    text = "".join(texts) if texts else str(message.content)
    return {"role": message.role, "content": [*images, {"type": "text", "text": text}] if images else text}


def _image_urls(files: Sequence[Any]) -> Iterator[str]:
    for file in files:
        kind = getattr(file, "media_type", getattr(file, "content_type", None))
        if kind is None:
            continue
        if not kind.startswith("image/"):
            raise InvalidRequest(f"an attachment of a chat must be an image, got {kind}: put its text into the message")
        yield file.url
