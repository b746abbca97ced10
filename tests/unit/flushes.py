"""A watch over what a store flushes: whatever it names must outlast a power cut."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest


class Flushes:
    """The files and directories that are flushed, and those that get a name in one directory.

    Attributes:
        named: what got one; names that begin with a dot are temporary, and do not count.
        unflushed: what got one, or lies below what did, before it was flushed as it is.
        due: whether one was given since the directory was flushed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._flushed: set[tuple[int, int]] = set()
        self.named: list[Path] = []
        self.unflushed: list[Path] = []
        self.due = False

    def flush(self, descriptor: int) -> None:
        """Note that a file or directory is flushed as it is."""
        status = os.fstat(descriptor)
        self._flushed.add((status.st_ino, status.st_mtime_ns))
        if self._directory.exists() and self._directory.stat().st_ino == status.st_ino:
            self.due = False

    def name(self, source: Path, target: Path) -> None:
        """Note that something is about to get a name."""
        if target.parent == self._directory and not target.name.startswith("."):
            self.named.append(target)
            self.due = True
            self.unflushed += [path for path in (source, *source.rglob("*")) if _state(path) not in self._flushed]


def _naming(flushes: Flushes, call: Callable[[Path, Path], None], source: Path, target: Path) -> None:
    flushes.name(Path(source), Path(target))
    call(source, target)


def _state(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.stat().st_mtime_ns


@contextmanager
def watched(directory: Path) -> Iterator[Flushes]:
    """Watch what this process flushes, and what it names in a directory, which need not be there yet."""
    flushes, fsync = Flushes(directory), os.fsync

    def flushing(descriptor: int) -> None:
        flushes.flush(descriptor)
        fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", flushing)
        for call in (os.rename, os.replace):
            patch.setattr(os, call.__name__, partial(_naming, flushes, call))
        yield flushes
