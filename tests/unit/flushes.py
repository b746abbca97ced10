"""A watch over the flushes of a store: its new entries must outlast a power cut."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest


class Flushes:
    """The flushes of files and directories, and the renames into one directory.

    Attributes:
        targets: the new names; temporary ones, which begin with a dot, do not count.
        unflushed: the files and directories in a rename without a flush of their last state before it.
        dirty: whether the directory has a new name since its last flush.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._flushed: set[tuple[int, int]] = set()
        self.targets: list[Path] = []
        self.unflushed: list[Path] = []
        self.dirty = False

    def flush(self, descriptor: int) -> None:
        """Record the flush of a file or directory."""
        status = os.fstat(descriptor)
        self._flushed.add((status.st_ino, status.st_mtime_ns))
        if self._directory.exists() and self._directory.stat().st_ino == status.st_ino:
            self.dirty = False

    def name(self, source: Path, target: Path) -> None:
        """Record the rename of a file or directory."""
        if target.parent == self._directory and not target.name.startswith("."):
            self.targets.append(target)
            self.dirty = True
            self.unflushed += [path for path in (source, *source.rglob("*")) if _state(path) not in self._flushed]


def _naming(flushes: Flushes, call: Callable[[Path, Path], None], source: Path, target: Path) -> None:
    flushes.name(Path(source), Path(target))
    call(source, target)


def _state(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.stat().st_mtime_ns


@contextmanager
def watched(directory: Path) -> Iterator[Flushes]:
    """Watch the flushes of this process, and its renames into a directory, which need not exist yet."""
    flushes, fsync = Flushes(directory), os.fsync

    def flushing(descriptor: int) -> None:
        flushes.flush(descriptor)
        fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", flushing)
        for call in (os.rename, os.replace):
            patch.setattr(os, call.__name__, partial(_naming, flushes, call))
        yield flushes
