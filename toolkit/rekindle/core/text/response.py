"""What a model said, taken apart: its reasoning, what it answered, and the functions that it wants to be called."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

PartKind = Literal["reasoning", "content", "tool_call"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants to be called. Two that are written alike are equal, whatever their ids.

    Attributes:
        name: that of the function; empty if it cannot be read.
        arguments: by name; empty if they cannot be read.
        text: the call as the model wrote it, marks included.
        id: names the call, and no other, for a message of the role "tool".
        error: why the call cannot be read; None if it can.
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
class Part:
    """A piece of an answer, of which it is known what it is part of.

    Attributes:
        kind: what that is.
        text: more of the text. The texts of "reasoning", joined, are the answer's reasoning, and so with "content". Of
            a call it is what the model writes, as it comes.
        call: of a call that is complete, which has no further text.
    """

    kind: PartKind
    text: str
    call: ToolCall | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The form in which a chat template wants a message of the assistant, as far as chat templates differ.

    Attributes:
        reasoning_key: the key that it reads reasoning from; None if it reads none.
        arguments_as_text: whether the arguments of a call are JSON that is written already, and no object.
        null_content: whether the content of a message that only has calls is None, and not empty.
    """

    reasoning_key: str | None = None
    arguments_as_text: bool = False
    null_content: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """An answer that was taken apart.

    Attributes:
        content: what it says to the user, without the white space around it.
        reasoning: what the model wrote before, to itself; None if it wrote nothing.
        tool_calls: in their order.
        form: how the chat template wants it.
    """

    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    form: MessageForm = MessageForm()

    @property
    def message(self) -> dict[str, Any]:
        """The message for a conversation. A call that cannot be read is part of its content, as it was written."""
        unread = "".join(call.text for call in self.tool_calls if call.error is not None)
        calls = [self._written(call) for call in self.tool_calls if call.error is None]
        content = self.content + unread
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls and not content and self.form.null_content:
            message["content"] = None
        if self.reasoning is not None and self.form.reasoning_key is not None:
            message[self.form.reasoning_key] = self.reasoning
        return {**message, "tool_calls": calls} if calls else message

    def _written(self, call: ToolCall) -> dict[str, Any]:
        as_text = self.form.arguments_as_text
        arguments = json.dumps(call.arguments, ensure_ascii=False) if as_text else dict(call.arguments)
        return {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": arguments}}


class Reading(Protocol):
    """The reading of one answer while it comes; see `rekindle.core.text.responses.reading`."""

    def push(self, text: str, token_ids: Sequence[int]) -> list[Part]:
        """Take more of the answer, and return what it tells."""
        ...

    def finish(self) -> tuple[Response, list[Part]]:
        """Take the end of the answer, and return it as a whole, and what the end tells."""
        ...

    def reasoning_tokens(self) -> int:
        """Return how many tokens of an answer that has ended its reasoning has."""
        ...


def tool_messages(results: Sequence[tuple[ToolCall, str]]) -> list[Mapping[str, Any]]:
    """Return the messages that tell a model what its calls gave, as chat templates read them."""
    return [
        {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content} for call, content in results
    ]
