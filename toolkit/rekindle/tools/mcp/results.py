"""Results of an MCP server's tools, as text and pictures for the model."""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from rekindle.tools.calling import ToolFailed, ToolOutput
from rekindle.tools.content import Content, as_text, data_name, picture_part

Block = Mapping[str, Any]
"""Block of a result, in the words of the protocol."""


def output_of(result: Mapping[str, Any]) -> ToolOutput:
    """Return the content and the value of a call's result.

    The content has all blocks: a text, or parts if there are images. Other data are data_name, as no model reads them.
    Structured content is part of it if no block is text.

    Args:
        result: the result in the words of the protocol.

    Raises:
        ToolFailed: the tool reports an error, in its words.
    """
    blocks, structured = result.get("content") or [], result.get("structuredContent")
    parts = [_picture(block) or {"type": "text", "text": _text(block)} for block in blocks]
    if structured is not None and not any(block.get("type") == "text" for block in blocks):
        parts.append({"type": "text", "text": json.dumps(structured, ensure_ascii=False)})
    if result.get("isError"):
        raise ToolFailed(as_text(parts) or "the tool failed without a word")
    content: Content = parts if any(part["type"] == "image" for part in parts) else as_text(parts)
    return ToolOutput(content, content if structured is None else structured)


def _picture(block: Block) -> dict[str, Any] | None:
    """Return the part for an image, possibly of an embedded resource; None for another block, or a damaged image."""
    resource = block.get("resource", {}) if block.get("type") == "resource" else {}
    data = block.get("data") if block.get("type") == "image" else resource.get("blob")
    try:
        return picture_part(base64.b64decode(data or "", validate=True))
    except (binascii.Error, ValueError, TypeError):
        return None


def _text(block: Block) -> str:
    """Return a block of a result as text."""
    match block.get("type"):
        case "text":
            return str(block["text"])
        case "image" | "audio" as kind:
            return data_name(kind, block.get("mimeType"), _size(block.get("data", "")))
        case "resource_link":
            return f"[resource {block.get('name', '')}: {block.get('uri')}]"
        case "resource":
            resource = block.get("resource", {})
            if "text" in resource:
                return str(resource["text"])
            return data_name(
                f"resource {resource.get('uri')}", resource.get("mimeType"), _size(resource.get("blob", ""))
            )
        case kind:
            return f"[{kind}, which cannot be shown as text]"


def _size(data: str) -> int:
    """Return the number of bytes of data in base64."""
    return len(data) * 3 // 4
