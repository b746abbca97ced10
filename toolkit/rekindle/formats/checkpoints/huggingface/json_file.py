"""JSON files of a model directory."""

import json
from pathlib import Path
from typing import Any

from rekindle.core.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty dict if the file does not exist.

    Raises:
        CheckpointError: the file is not valid JSON, or not an object.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}). Fetch it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content
