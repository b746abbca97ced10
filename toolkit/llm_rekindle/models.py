"""Models for text, as `llm` calls them: one class for blocking callers, one for async ones."""

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing, contextmanager
from typing import TYPE_CHECKING, Any
from warnings import warn

import anyio.to_thread
import llm
from llm.parts import StreamEvent

from llm_rekindle.messages import messages_of, schemas_of
from llm_rekindle.options import Options
from llm_rekindle.registry import Entry
from llm_rekindle.sessions import session_of

if TYPE_CHECKING:
    from rekindle import Part, Session, Stream


class RekindleModel(llm.Model):  # type: ignore[misc]
    """A model for blocking callers.

    Attributes:
        entry: the model.
        model_id: the id in `llm`.
    """

    can_stream = True
    supports_schema = True
    supports_tools = True
    Options = Options

    def __init__(self, entry: Entry):
        self.entry, self.model_id = entry, entry.model_id

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[StreamEvent]:
        """Yield the events of an answer. Closing the iterator early cancels it.

        Raises:
            RekindleError: as in `session.chat`.
            ValueError: the prompt has an attachment.
        """
        session = session_of(self.entry.model)
        with closing(begin(session, prompt)) as answer:
            for part in answer.parts():
                yield from events(part, response)
        tell_figures(answer, response)
        with warnings_of_storage():
            session.save_sync(progress=False)


class AsyncRekindleModel(llm.AsyncModel):  # type: ignore[misc]
    """A model for async callers; the session is that of `RekindleModel`.

    Attributes:
        entry: the model.
        model_id: the id in `llm`.
    """

    can_stream = True
    supports_schema = True
    supports_tools = True
    Options = Options

    def __init__(self, entry: Entry):
        self.entry, self.model_id = entry, entry.model_id

    async def execute(
        self, prompt: Any, stream: bool, response: Any, conversation: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of an answer, as in `RekindleModel.execute`."""
        session = await anyio.to_thread.run_sync(session_of, self.entry.model)
        async with aclosing(begin(session, prompt)) as answer:
            async for part in answer.parts():
                for event in events(part, response):
                    yield event
        tell_figures(answer, response)
        with warnings_of_storage():
            await session.save(progress=False)


@contextmanager
def warnings_of_storage() -> Iterator[None]:
    """Warn of a failure to store the prefix of an answer, since the answer is complete."""
    from rekindle import StorageError

    try:
        yield
    except StorageError as error:
        warn(str(error), RuntimeWarning, stacklevel=3)


def begin(session: "Session", prompt: Any) -> "Stream":
    """Submit the request for an answer to a prompt.

    Raises:
        InvalidRequest: as in `session.chat`; or the model has no chat template, and the prompt is more than a text.
        ValueError: the prompt has an attachment.
    """
    messages, options = messages_of(prompt), prompt.options.sampling(prompt.schema)
    tools = schemas_of(prompt)
    if session.tokenizer is not None and session.tokenizer.chat_template is None and tools is None:
        match messages:
            case [{"role": "user", "content": text}]:  # a model without a template continues texts
                stream: Stream = session.stream(text, **options)
                return stream
    return session.chat(messages=messages, tools=tools, **options).stream()


def events(part: "Part", response: Any) -> Iterator[StreamEvent]:
    """Yield the events of a part of the answer, and add a complete call of a tool to the response."""
    call = part.call
    if part.kind != "tool_call":
        if part.text:
            yield StreamEvent("reasoning" if part.kind == "reasoning" else "text", part.text)
    elif call is not None and call.error is not None:
        yield StreamEvent("text", call.text)  # a call without a meaning is part of the text
    elif call is not None:
        response.add_tool_call(llm.ToolCall(call.name, call.arguments, call.id))
        yield StreamEvent("tool_call_name", call.name, tool_call_id=call.id)
        yield StreamEvent("tool_call_args", json.dumps(call.arguments, ensure_ascii=False), tool_call_id=call.id)


def tell_figures(answer: "Stream", response: Any) -> None:
    """Give a response the token counts of its answer, and the reason for its end."""
    generation = answer.handle.result()
    usage = generation.usage
    details = {"cached_tokens": generation.cached.total, "reasoning_tokens": usage.reasoning_tokens}
    response.set_usage(
        input=usage.prompt_tokens,
        output=usage.completion_tokens,
        details={name: count for name, count in details.items() if count} or None,
    )
    response.response_json = {"finish_reason": generation.finish_reason}
