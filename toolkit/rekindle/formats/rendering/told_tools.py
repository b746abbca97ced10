"""Tools, their calls and their results as text in messages, for chat templates without a place for tools."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.formats.rendering.content_form import text_of
from rekindle.formats.rendering.system_messages import SYSTEM_ROLES

if TYPE_CHECKING:
    from rekindle.formats.responses.grammars.call_forms import CallForm

Message = Mapping[str, Any]

RESULT: Final = ("<tool_response>\n", "\n</tool_response>")
"""Text around the result of a call."""


def tell_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], form: "CallForm") -> list[Message]:
    """Return messages that begin with the schemas of tools and the form of their calls, in the system message."""
    schemas = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    call = f"{form.begin}{form.before}NAME{form.between}{{ARGUMENTS}}{form.after}{form.end}"
    words = (
        f"You can call these functions, whose schemas are in JSON:\n<tools>\n{schemas}\n</tools>\n"
        f"To call one, give its name and its arguments as a JSON object in this form, and end the answer:\n{call}\n"
        "The next message has the result. Without need of a function, answer in words."
    )
    if messages[0]["role"] not in SYSTEM_ROLES:
        return [{"role": "system", "content": words}, *messages]
    return [{**messages[0], "content": f"{text_of(messages[0])}\n\n{words}".lstrip()}, *messages[1:]]


def calls_as_text(messages: Sequence[Message], form: "CallForm") -> list[Message]:
    """Return messages with calls as text of the assistant, and results, with images, as messages of the user."""
    plain: list[Message] = []
    after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result or (after_result and message["role"] == "user"):
            pieces = [RESULT[0], *_pieces(message), RESULT[1]] if is_result else _pieces(message)
            if after_result:  # templates may refuse two messages of the user in sequence
                pieces = [*_pieces(plain.pop()), "\n", *pieces]
            plain.append({"role": "user", "content": _content(pieces)})
        elif calls := message.get("tool_calls"):
            others = {name: value for name, value in message.items() if name != "tool_calls"}
            before = [piece for piece in _pieces(message) if piece]
            texts = "\n".join(_call_texts(calls, form))
            plain.append({**others, "content": _content([*before, "\n" if before and texts else "", texts])})
        else:
            plain.append(message)
        after_result = is_result or (after_result and message["role"] == "user")
    return plain


def _pieces(message: Message) -> list[str | Message]:
    """Return the content of a message as texts, and parts with images and videos between."""
    pieces: list[str | Message] = []
    content = message.get("content") or ""
    for part in [] if isinstance(content, str) else content:
        if "text" not in part:
            pieces.append(part)
        elif pieces and isinstance(pieces[-1], str):
            pieces[-1] += f"\n{part['text']}"
        else:
            pieces.append(part["text"])
    return [content] if isinstance(content, str) else pieces


def _content(pieces: Sequence[str | Message]) -> str | list[Message]:
    """Return pieces as a content: one text, or parts if some are images."""
    parts: list[Message] = []
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        parts += [{"type": "text", "text": text}, piece] if text else [piece]
        text = ""
    if not parts:
        return text
    return [*parts, {"type": "text", "text": text}] if text else parts


def _call_texts(calls: Any, form: "CallForm") -> Iterator[str]:
    for call in calls:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise InvalidRequest.of("prompt", f"each of tool_calls must have a function, got {preview(call)}")
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        yield f"{form.begin}{form.before}{function.get('name')}{form.between}{text or '{}'}{form.after}{form.end}"
