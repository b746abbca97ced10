"""Messages of Anthropic's API, whose contents are blocks, as messages for a chat template."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rekindle.core.request.checks import preview
from rekindle.server.common.errors import invalid_field
from rekindle.server.common.pictures import from_text

ROLES: Final[Mapping[str, str]] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "ctx": "user",  # some versions of a coding agent send these two
    "msg": "user",
}
"""The role for a chat template by the role of a message."""
CHANGING: Final = "x-anthropic-billing-header"
"""Start of a text that a coding agent puts before its instructions. It differs in each request and is not for the
model: kept, it would keep the prefix cache from all that follows."""
REMINDER: Final = "<system-reminder>"
"""Start of a coding agent's text beside the results of tools. As a message of the user, it would be a new question, and
chat templates leave out the reasoning before the last question."""

HOSTED_BLOCKS: Final = ("fallback", "mcp_tool_listing", "mcp_tool_use", "server_tool_use")
"""The types of blocks about tools on Anthropic's servers, beside those of their results."""

Message = dict[str, Any]


class Messages:
    """Messages for a chat template, made of messages of Anthropic's API.

    Adjacent messages of the user or the assistant become one, as in Anthropic's API.

    Attributes:
        messages: the messages so far.
        hosted: the types of the ignored blocks about tools on Anthropic's servers.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.hosted: list[str] = []
        self._names: dict[str, str] = {}  # of the called tools, by the ids of the calls

    def system(self, content: Any) -> None:
        """Add instructions: a text, or blocks of text.

        Raises:
            ApiError: the content has another form.
        """
        texts = [text for text in text_blocks(content, "system") if not text.startswith(CHANGING)]
        if texts:
            self.messages.append({"role": "system", "content": "\n".join(texts)})

    def add(self, message: Mapping[str, Any], field: str) -> None:
        """Add a message.

        Args:
            message: the message.
            field: its place in the body, for errors.

        Raises:
            ApiError: its role or a block of its content is not served.
        """
        role, content = message.get("role"), message.get("content")
        match ROLES.get(role) if isinstance(role, str) else None:
            case "system":
                texts = [each for each in text_blocks(content, f"{field}.content") if not each.startswith(CHANGING)]
                if texts:
                    self.messages.append({"role": "system", "content": "\n".join(texts)})
            case "user":
                self._add_user(content, f"{field}.content")
            case "assistant":
                self._add_assistant(content, f"{field}.content")
            case _:
                rule = "must be user, assistant or system"
                raise invalid_field(field, f"{field}.role {rule}, got {preview(role)}")

    def _add_user(self, content: Any, field: str) -> None:
        """Add a message of the user: results of tools, each reminder in the last of them, then other parts."""
        parts = []
        has_results = False
        for place, block in self._readable(content, field):
            if block.get("type") == "tool_result":
                self._add_result(block, place)
                has_results = True
            else:
                parts.append(_part(block, place))
        if has_results:
            reminders = [part for part in parts if part.get("text", "").startswith(REMINDER)]
            _append(self.messages[-1], reminders)
            parts = [part for part in parts if part not in reminders]
        if parts:
            self._add("user", parts)

    def _add_result(self, block: Mapping[str, Any], field: str) -> None:
        identity, content = _string(block, "tool_use_id", field), block.get("content")
        blocks = () if content is None else _blocks(content, f"{field}.content")
        parts = [_part(each, place) for place, each in blocks]
        text = "\n".join(part["text"] for part in parts if "text" in part)
        images = [part for part in parts if "text" not in part]
        if block.get("is_error") is True:
            text = f"error: {text}"
        whole: Any = [*([_text_part(text)] if text else []), *images] if images else text
        message = {"role": "tool", "tool_call_id": identity, "content": whole}
        name = self._names.get(identity)
        self.messages.append(message if name is None else {**message, "name": name})

    def _add_assistant(self, content: Any, field: str) -> None:
        parts, calls, thoughts = [], [], []
        for place, block in self._readable(content, field):
            match block.get("type"):
                case "thinking":
                    thoughts.append(_string(block, "thinking", place))
                case "redacted_thinking":
                    pass  # only Anthropic's own models can read it
                case "tool_use":
                    calls.append(self._call(block, place))
                case _:
                    parts.append(_text_part(_text(block, place)))
        message = self._add("assistant", parts)
        if thoughts:
            message["reasoning"] = message.get("reasoning", "") + "".join(thoughts)
        if calls:
            message["tool_calls"] = [*message.get("tool_calls", ()), *calls]

    def _readable(self, content: Any, field: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the blocks of a content, without those about tools on Anthropic's servers."""
        for place, block in _blocks(content, field):
            kind = block.get("type")
            if isinstance(kind, str) and (kind in HOSTED_BLOCKS or kind.endswith("_tool_result")):
                self.hosted.append(kind)
            elif not (kind == "compaction" and block.get("content") is None):  # a failed one has no summary
                yield place, block

    def _call(self, block: Mapping[str, Any], field: str) -> Message:
        identity, name = _string(block, "id", field), _string(block, "name", field)
        arguments = block.get("input")
        if not isinstance(arguments, dict):
            raise invalid_field(field, f"{field}.input must be an object, got {preview(arguments)}")
        self._names[identity] = name
        return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _add(self, role: str, parts: Sequence[Message]) -> Message:
        """Add parts to the last message if it has this role, or else append a message; return the message."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": []})
        message = self.messages[-1]
        message["content"] += parts
        return message

    def finish(self) -> list[Message]:
        """Return the messages, each with a text as its content if it has one part."""
        for each in self.messages:
            match each["content"]:
                case []:
                    each["content"] = ""
                case [{"text": str(text)}]:
                    each["content"] = text
        return self.messages


def text_blocks(content: Any, field: str) -> list[str]:
    """Return the texts of a content without calls: a text, or a list of blocks of text.

    Raises:
        ApiError: the content has another form, or a block of another type.
    """
    return [_text(block, place) for place, block in _blocks(content, field)]


def _blocks(content: Any, field: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the blocks of a content, each with its place in the body."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise invalid_field(field, f"{field} must be a text or a list of blocks, got {preview(content)}")
    for place, block in enumerate(content):
        yield f"{field}[{place}]", block


def _text(block: Mapping[str, Any], field: str) -> str:
    """Return the text of a block with text, a document, a search result, a summary, or the name of a tool."""
    match block:
        case {"type": "text"}:
            return _string(block, "text", field)
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            return _titled(block, [text])
        case {"type": "document", "source": {"type": "content", "content": content}}:
            return _titled(block, text_blocks(content, f"{field}.source.content"))
        case {"type": "search_result", "content": content}:
            return _titled(block, text_blocks(content, f"{field}.content"))
        case {"type": "tool_reference", "tool_name": str(text)} | {"type": "compaction", "content": str(text)}:
            return text
    kind = preview(block.get("type"))
    raise invalid_field(
        field, f"{field} is of type {kind}, and this server reads only text and images; put its text in"
    )


def _titled(block: Mapping[str, Any], texts: Sequence[str]) -> str:
    """Return texts after the title, source and context of their block."""
    heads = [block.get(name) for name in ("title", "source", "context")]
    return "\n".join([*(head for head in heads if isinstance(head, str)), *texts])


def _string(block: Mapping[str, Any], name: str, field: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise invalid_field(field, f"{field}.{name} must be a string, got {preview(value)}")
    return value


def _part(block: Mapping[str, Any], field: str) -> Message:
    """Return the part of a message for a block of the user: with an image, or with text."""
    if block.get("type") != "image":
        return _text_part(_text(block, field))
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64":
        raise invalid_field(field, f"{field}.source must be of type base64, because nothing is fetched")
    return from_text(source.get("data"), field, f"{field}.source.data", block)


def _text_part(text: str) -> Message:
    return {"type": "text", "text": text}


def _append(message: Message, parts: Sequence[Message]) -> None:
    """Append parts of text to the content of a result."""
    if isinstance(message["content"], list):
        message["content"] += parts
    else:
        message["content"] = "\n\n".join(filter(None, [message["content"], *(part["text"] for part in parts)]))
