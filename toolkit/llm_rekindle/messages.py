"""Prompts of `llm` as conversations of Rekindle."""

from collections.abc import Iterator, Mapping
from typing import Any

from llm.parts import AttachmentPart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

REFUSAL = "models of Rekindle read text alone, and the prompt has an attachment{}: leave it out"


def messages_of(prompt: Any) -> list[dict[str, Any]]:
    """Return the whole conversation of a prompt, with its history.

    Raises:
        ValueError: the conversation has an attachment.
    """
    return [message for each in prompt.messages for message in _messages(each)]


def schemas_of(prompt: Any) -> list[Mapping[str, Any]] | None:
    """Return the JSON schemas of a prompt's tools; None without tools."""
    from rekindle.tools.references import without_references

    functions = [
        {"name": tool.name, "description": tool.description or "", "parameters": without_references(tool.input_schema)}
        for tool in prompt.tools
    ]
    return [{"type": "function", "function": function} for function in functions] or None


def _messages(message: Message) -> Iterator[dict[str, Any]]:
    """Yield a message in Rekindle's form; each result of a tool is one of its own."""
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case TextPart():
                texts.append(part.text)
            case ReasoningPart():
                reasoning.append(part.text)
            case ToolCallPart():
                function = {"name": part.name, "arguments": part.arguments}
                calls.append({"type": "function", "id": part.tool_call_id, "function": function})
            case ToolResultPart():
                content = "\n".join([part.output, *(_note(each) for each in part.attachments)])
                yield {"role": "tool", "tool_call_id": part.tool_call_id, "name": part.name, "content": content}
            case AttachmentPart():
                kind = part.attachment.type if part.attachment is not None else None
                raise ValueError(REFUSAL.format(f" of type {kind}" if kind else ""))
    if texts or calls:
        yield {
            "role": message.role,
            "content": "\n".join(texts),
            **({"reasoning_content": "".join(reasoning)} if any(reasoning) else {}),
            **({"tool_calls": calls} if calls else {}),
        }


def _note(attachment: Any) -> str:
    """Return a line in place of a tool's attachment."""
    return f"[attachment, {attachment.resolve_type()}: not shown, as only text can be read here]"
