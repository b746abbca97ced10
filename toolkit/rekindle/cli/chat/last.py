"""The last conversation with a model, for the next start of the chat."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from rekindle.cli.chat.lines import HISTORY
from rekindle.core.errors import InvalidRequest, StorageError
from rekindle.core.store.directory import atomic_write, cache_dir
from rekindle.formats.images.writing import as_json
from rekindle.formats.rendering.chat import check_messages


class LastChat:
    """File of the cache directory, readable by its user alone, with the last conversation with a model.

    Args:
        model: the name of the model.
    """

    def __init__(self, model: str):
        self._model = model

    def read(self) -> list[Mapping[str, Any]]:
        """Return the messages; none if there is no file, or if it is damaged."""
        try:
            messages: list[Mapping[str, Any]] = json.loads(self._path().read_text(encoding="utf-8"))["messages"]
            check_messages(messages)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, InvalidRequest, StorageError):
            return []
        return messages

    def write(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Replace the messages; a full disk only loses the offer of the next start."""
        content = json.dumps({"model": self._model, "messages": as_json(messages)}, ensure_ascii=False)
        with suppress(OSError, StorageError), atomic_write(self._path()) as file:
            file.write(content.encode())

    def _path(self) -> Path:
        return cache_dir(HISTORY) / f"chat-{sha256(self._model.encode()).hexdigest()[:16]}.json"
