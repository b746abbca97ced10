"""Memory-mapped files. A changed file is an error; a read beyond the end of one would end the process."""

import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from rekindle.core.errors import CheckpointError

Stamp = tuple[int, int, int, int]
"""Device, inode, size and modification time in nanoseconds of a file."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """One file, mapped for reading.

    Attributes:
        path: path of the file.
        data: the mapped bytes; call `check` before reading them.
    """

    path: Path
    data: mmap.mmap
    _file: "_Descriptor"
    _stamp: Stamp

    @classmethod
    def open(cls, path: Path) -> "MappedFile":
        """Map a file.

        Raises:
            ValueError: the file is empty.
            OSError: the file cannot be read.
        """
        file = _Descriptor(path)
        return cls(path, mmap.mmap(file.number, 0, access=mmap.ACCESS_READ), file, file.stamp)

    def check(self) -> None:
        """Raise CheckpointError if the mapped bytes were written anew or cut; other files in their place are fine."""
        if self._file.stamp != self._stamp:
            raise CheckpointError(
                f"{self.path} was written anew since it was opened, so its tensors are of two models: open it again, "
                "once it is complete"
            )

    def bytes(self, begin: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return bytes of the file as a read-only view; raises as `check`."""
        self.check()
        return np.frombuffer(self.data, np.uint8, size, begin)


class _Descriptor:
    """Descriptor of an open file, closed when the mapped file is gone."""

    def __init__(self, path: Path):
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        finalize(self, os.close, self.number)

    @property
    def stamp(self) -> Stamp:
        """Stamp of the file now."""
        return _stamp(os.fstat(self.number))


def stamps_of(files: Iterable[Path]) -> dict[Path, Stamp]:
    """Return the stamps of files; raises OSError for a missing one."""
    return {path.absolute(): _stamp(path.stat()) for path in files}


def check_unchanged(stamps: Mapping[Path, Stamp], remedy: str) -> None:
    """Raise CheckpointError, with a remedy, unless files still have these stamps."""
    changed = []
    for path, stamp in stamps.items():
        try:
            is_same = _stamp(path.stat()) == stamp
        except OSError:
            is_same = False
        if not is_same:
            changed.append(path.name)
    if changed:
        names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise CheckpointError(f"weight files have changed since they were read ({names}): {remedy}")


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
