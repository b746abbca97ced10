"""Digests of files by all bytes, with notes in the cache directory: an unchanged file is read once."""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

from rekindle.core.errors import StorageError
from rekindle.core.store.directory import atomic_write, cache_dir, require_private

DIGESTS: Final = "digests"
"""Directory name of the notes in the cache directory."""
PIECE_BYTES: Final = 32 << 20
"""Bytes hashed by one task; the digest of a file is over the digests of pieces."""
READ_BYTES: Final = 1 << 20
SETTLED_NS: Final = 2_000_000_000
"""Age of a change in nanoseconds; a change after this age has another time."""

FileState = tuple[int, int, int, int, int]
"""Device, inode, size, and the times of the last changes of a file's content and of its inode, in nanoseconds."""

_memory: dict[tuple[str, FileState], str] = {}
_lock = Lock()


def file_digest(path: Path) -> str:
    """Return the digest of a file's bytes, from memory, from a note on disk, or from the file.

    Returns:
        64 hexadecimal digits.

    Raises:
        OSError: the file cannot be read.
    """
    path = path.resolve()
    with _lock:  # a second caller waits for the first, and has its digest
        state = _state_of(path)
        digest = _memory.get((str(path), state)) or noted(path, state)
        if digest is None:
            now, digest = time.time_ns(), _computed(path, state[2])
            if _state_of(path) != state or now - max(state[3:]) < SETTLED_NS:
                return digest
            note(path, state, digest)
        _memory[str(path), state] = digest
        return digest


def _state_of(path: Path) -> FileState:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _computed(path: Path, size: int) -> str:
    """Return the digest of a file of this size."""
    starts = range(0, size, PIECE_BYTES)
    if len(starts) < 2:
        pieces = [_piece(path, 0)]
    else:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
            pieces = list(threads.map(partial(_piece, path), starts))
    return hashlib.sha256(b"".join(pieces)).hexdigest()


def _piece(path: Path, start: int) -> bytes:
    """Return the digest of a piece of a file."""
    whole, room = hashlib.sha256(), bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        rest = PIECE_BYTES
        while rest and (count := file.readinto(memoryview(room)[: min(rest, READ_BYTES)])):
            whole.update(memoryview(room)[:count])
            rest -= count
    return whole.digest()


def noted(path: Path, state: Sequence[int | str], subject: str = "") -> str | None:
    """Return the digest in the note of a path in this state; None without one.

    Args:
        path: the file, or the folder of the subject.
        state: what changes with the content.
        subject: what the digest is of; empty for the file itself.
    """
    with suppress(OSError, StorageError, ValueError, KeyError, TypeError, AttributeError):
        place = _note_of(path, subject)
        require_private(place)
        record = json.loads(place.read_bytes())
        if [record["file"], record["subject"], record["state"]] == [str(path), subject, list(state)]:
            return bytes.fromhex(record["digest"]).hex()
    return None


def note(path: Path, state: Sequence[int | str], digest: str, subject: str = "") -> None:
    """Write a note for `noted`, and remove the notes of paths that are gone."""
    record = {"file": str(path), "subject": subject, "state": list(state), "digest": digest}
    with suppress(OSError, StorageError):
        place = _note_of(path, subject)
        with atomic_write(place) as file:
            file.write(json.dumps(record).encode())
        for other in _outdated(place.parent):
            other.unlink(missing_ok=True)


def _note_of(path: Path, subject: str) -> Path:
    return cache_dir(DIGESTS) / f"{hashlib.sha256(os.fsencode(path) + subject.encode()).hexdigest()}.json"


def _outdated(directory: Path) -> Iterator[Path]:
    for place in directory.glob("*.json"):
        try:
            is_outdated = not Path(json.loads(place.read_bytes())["file"]).exists()
        except (OSError, ValueError, KeyError, TypeError):
            is_outdated = True
        if is_outdated:
            yield place
