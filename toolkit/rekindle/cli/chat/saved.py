"""Conversations in files, which /save writes."""

import json
from pathlib import Path
from typing import Any

from rekindle.core.errors import InvalidRequest, StorageError


def read_messages(path: Path) -> list[Any]:
    """Return the messages of a file.

    Raises:
        StorageError: the file cannot be read.
        InvalidRequest: it has no conversation.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} has no conversation, which /save writes: {error}") from error
    messages = content.get("messages") if isinstance(content, dict) else content
    if not isinstance(messages, list):
        raise InvalidRequest(f"{path} has no conversation: expected a JSON object with a list of messages")
    from rekindle.formats.rendering.chat import check_messages  # no wrong path and no help needs it

    check_messages(messages)
    return messages
