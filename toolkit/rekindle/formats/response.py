"""A parsed answer: its reasoning, content, and tool calls."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

PartKind = Literal["reasoning", "content", "tool_call"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call requested by the model. Calls with the same text are equal, whatever their ids.

    Attributes:
        name: name of the function; empty if it cannot be parsed.
        arguments: arguments by name; empty if they cannot be parsed.
        text: the call as the model wrote it, with its delimiters.
        id: unique id, for the reply message with role "tool".
        error: reason for a failure to parse the call, or None.
    """

    name: str
    arguments: dict[str, Any] = field(hash=False)
    text: str
    id: str = field(compare=False)
    error: str | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"a call that cannot be read: {self.text!r:.80}"
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"

    def __repr__(self) -> str:
        return f"<rekindle.ToolCall {self}>"


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a call's arguments, as JSON text.

    Attributes:
        id: the id of the call.
        name: name of the function.
        arguments: the next text. The texts of a complete call are its arguments as JSON; those of another one are not
            JSON.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an answer with a known kind.

    Attributes:
        kind: the kind of text: "reasoning", "content" or "tool_call".
        text: the next text of this kind. The joined texts of "reasoning" are the answer's reasoning, and likewise for
            "content". For a call, the text is the model's raw output, as it arrives.
        call: the completed call, on the last piece of a call. This piece has no text.
        pieces: the next pieces of calls' arguments, in formats whose arguments are JSON.
    """

    kind: PartKind
    text: str
    call: ToolCall | None = None
    pieces: tuple[CallPiece, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The format of assistant messages expected by a chat template.

    Attributes:
        reasoning_key: the message key for reasoning, or None if the template does not use reasoning.
        arguments_as_text: whether the arguments of a call are serialized JSON instead of an object.
        null_content: whether a message with tool calls and no text has None as its content instead of an empty text.
    """

    reasoning_key: str | None = None
    arguments_as_text: bool = False
    null_content: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """A parsed answer.

    Attributes:
        content: the answer to the user, without surrounding whitespace.
        reasoning: the reasoning before the answer, or None.
        tool_calls: the calls in order.
        form: the format of the message for the chat template.
    """

    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    form: MessageForm = MessageForm()

    @property
    def message(self) -> dict[str, Any]:
        """The message for a conversation. Calls with errors are included in its content, as the model wrote them."""
        unreadable = "".join(call.text for call in self.tool_calls if call.error is not None)
        calls = [self._call_json(call) for call in self.tool_calls if call.error is None]
        content = self.content + unreadable
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls and not content and self.form.null_content:
            message["content"] = None
        if self.reasoning is not None and self.form.reasoning_key is not None:
            message[self.form.reasoning_key] = self.reasoning
        return {**message, "tool_calls": calls} if calls else message

    def _call_json(self, call: ToolCall) -> dict[str, Any]:
        as_text = self.form.arguments_as_text
        arguments = json.dumps(call.arguments, ensure_ascii=False) if as_text else dict(call.arguments)
        return {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": arguments}}


class Reading(Protocol):
    """Incremental parser of one answer; see `rekindle.formats.responses.reading.reader`."""

    def push(self, text: str, token_ids: Sequence[int]) -> list[Part]:
        """Consume more of the answer, and return the new parts."""
        ...

    def finish(self) -> tuple[Response, list[Part]]:
        """End the answer, and return the whole response and the last parts."""
        ...

    def reasoning_tokens(self) -> int:
        """Return the number of reasoning tokens in a finished answer."""
        ...


def tool_messages(results: Sequence[tuple[ToolCall, Any]]) -> list[Mapping[str, Any]]:
    """Return the tool messages with the results of calls, texts or parts, in the format of chat templates."""
    return [
        {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content} for call, content in results
    ]
