"""Durations of cold starts on disk, for comparison with later starts."""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from rekindle.core.errors import StorageError
from rekindle.core.store.directory import atomic_write, make_private, require_private

STARTS: Final = "starts"
"""Directory name of the durations in the cache directory."""
MOST: Final = 256
"""Maximum number of durations; the oldest are removed."""


class ColdStarts:
    """The durations of `open` without stored programs, one file for each set of programs.

    They are for display alone, so no method raises an error.

    Args:
        root: the cache directory.
        programs: the entries of all programs of the session.
    """

    def __init__(self, root: Path, programs: Iterable[Path]):
        names = "\n".join(sorted(path.name for path in programs))
        self._directory = root / STARTS
        self._path = self._directory / f"{hashlib.sha256(names.encode()).hexdigest()}.json"

    def seconds(self) -> float | None:
        """Return the duration of the cold start with these programs; None if it is unknown."""
        with suppress(OSError, ValueError, AttributeError, RecursionError, StorageError):
            require_private(self._path)
            seconds = json.loads(self._path.read_text(encoding="utf-8")).get("seconds")
            return float(seconds) if isinstance(seconds, float | int) and seconds > 0 else None
        return None

    def record(self, seconds: float) -> None:
        """Store the duration of a cold start."""
        with suppress(OSError, StorageError):
            make_private(self._directory)
            with atomic_write(self._path) as file:
                file.write(json.dumps({"seconds": round(seconds, 3)}).encode())
            paths = sorted(self._directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in paths[:-MOST]:
                path.unlink(missing_ok=True)
