"""Files of weights, read by position and never mapped: a cut file under a mapping ends the process."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final
from weakref import finalize

import numpy as np

from rekindle.core.errors import CheckpointError
from rekindle_kernels.blocks import FileArray

Stamp = tuple[int, int, int, int]
"""Device, inode, size and modification time in nanoseconds of a file."""
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_BY_POSITION: Final = hasattr(os, "preadv")
"""False on Windows, where a lock holds between moving to a position and reading there."""
_READ_BYTES: Final = 1 << 20
"""The bytes of one read with a lock."""


class WeightFile:
    """One open file. Reads are thread-safe, and of the opened file even after another was moved to its path.

    Attributes:
        path: path of the file.
        size: bytes of the file when it was opened.
    """

    def __init__(self, path: Path):
        """Open a file; raises OSError if it cannot be read."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        finalize(self, os.close, self._descriptor)
        self._stamp = _stamp(os.fstat(self._descriptor))
        self._lock = Lock()
        self.size = self._stamp[2]

    def array(self, begin: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> FileArray:
        """Return an array at a position of the file; nothing is read yet. Reading it raises as `read`."""
        return FileArray(shape, dtype, begin, self.read)

    def read(self, begin: int, size: int) -> Bytes:
        """Return bytes of the file.

        Raises:
            CheckpointError: the file was written anew or cut since it was opened, perhaps during this read.
        """
        into = np.empty(size, np.uint8)
        rest = into.data
        while rest and (count := self._read_into(rest, begin + size - len(rest))):
            rest = rest[count:]
        if rest or _stamp(os.fstat(self._descriptor)) != self._stamp:
            raise CheckpointError(
                f"{self.path} was written anew since it was opened, so its tensors are of two models: open it again, "
                "once it is complete"
            )
        return into

    def _read_into(self, buffer: memoryview, position: int) -> int:
        if _BY_POSITION:
            return os.preadv(self._descriptor, [buffer], position)
        with self._lock:
            os.lseek(self._descriptor, position, os.SEEK_SET)
            some = os.read(self._descriptor, min(len(buffer), _READ_BYTES))
        buffer[: len(some)] = some
        return len(some)


def stamps_of(files: Iterable[Path]) -> dict[Path, Stamp]:
    """Return the stamps of files; raises OSError for a missing one."""
    return {path.absolute(): _stamp(path.stat()) for path in files}


def check_unchanged(stamps: Mapping[Path, Stamp], remedy: str) -> None:
    """Raise CheckpointError, with a remedy, unless files still have these stamps."""
    changed = [path.name for path, stamp in stamps.items() if not is_unchanged({path: stamp})]
    if changed:
        names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise CheckpointError(f"weight files have changed since they were read ({names}): {remedy}")


def is_unchanged(stamps: Mapping[Path, Stamp]) -> bool:
    """Return True if all files still have these stamps."""
    try:
        return all(_stamp(path.stat()) == stamp for path, stamp in stamps.items())
    except OSError:
        return False


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
