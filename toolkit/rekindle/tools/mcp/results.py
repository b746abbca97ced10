"""Results of an MCP server's tools, as text for the model."""

import json
from collections.abc import Mapping
from typing import Any

from rekindle.core.words import size_text
from rekindle.tools.calling import ToolFailed, ToolOutput

Content = Mapping[str, Any]
"""Block of a result, in the words of the protocol."""


def output_of(result: Mapping[str, Any]) -> ToolOutput:
    """Return the text and the value of a call's result.

    The text has all blocks of the content. Images and other data are named instead, as the model reads text alone.
    Structured content is part of the text if no block is text.

    Args:
        result: the result in the words of the protocol.

    Raises:
        ToolFailed: the tool reports an error, in its words.
    """
    blocks, structured = result.get("content") or [], result.get("structuredContent")
    texts = [_text(block) for block in blocks]
    if structured is not None and not any(block.get("type") == "text" for block in blocks):
        texts.append(json.dumps(structured, ensure_ascii=False))
    text = "\n".join(texts)
    if result.get("isError"):
        raise ToolFailed(text or "the tool failed without a word")
    return ToolOutput(text, text if structured is None else structured)


def _text(block: Content) -> str:
    """Return a block of a result as text."""
    match block.get("type"):
        case "text":
            return str(block["text"])
        case "image" | "audio" as kind:
            return _unread(kind, block.get("mimeType"), block.get("data", ""))
        case "resource_link":
            return f"[resource {block.get('name', '')}: {block.get('uri')}]"
        case "resource":
            resource = block.get("resource", {})
            if "text" in resource:
                return str(resource["text"])
            return _unread(f"resource {resource.get('uri')}", resource.get("mimeType"), resource.get("blob", ""))
        case kind:
            return f"[{kind}, which cannot be shown as text]"


def _unread(kind: str, mime_type: Any, data: str) -> str:
    size = size_text(len(data) * 3 // 4)  # base64
    return f"[{kind}, {mime_type}, {size}: not shown, as only text can be read here]"
