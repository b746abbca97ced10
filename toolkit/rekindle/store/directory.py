"""The cache directory, and writing files into it so that no reader ever sees half of one."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rekindle.errors import StorageError, UnsafeStorage


def cache_dir(*parts: str) -> Path:
    """The cache directory, or a directory inside it; made, with mode 0700, where it is missing.

    Its place is the environment variable REKINDLE_CACHE, else the platform's cache directory for this user.
    Compiled programs are loaded from it, so a directory that somebody else could write to is refused.

    Args:
        parts: names of directories below the cache directory, outermost first.

    Raises:
        StorageError: a directory cannot be made.
        UnsafeStorage: it belongs to another user, or is writable by others.
    """
    path = _root()
    _make_private(path)
    for part in parts:
        path = path / part
        _make_private(path)
    return path


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Write a file under a temporary name in the same directory; name it `path` when the block ends without an error.

    The last of several concurrent writers wins, and every reader sees one writer's whole file.

    Yields:
        the temporary file, open for writing bytes.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _root() -> Path:
    chosen = os.environ.get("REKINDLE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("rekindle", appauthor=False)


def _make_private(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise StorageError(
            f"the cache directory {path} cannot be made ({error.strerror}): "
            "set REKINDLE_CACHE to a directory that you can write to"
        ) from error
    if not hasattr(os, "getuid"):  # Windows keeps the user's directories apart by access lists, not by mode bits
        return
    if status.st_uid != os.getuid():
        raise UnsafeStorage(
            f"the cache directory {path} belongs to user {status.st_uid}, but this process runs as {os.getuid()}: "
            "set REKINDLE_CACHE to a directory of your own"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeStorage(
            f"the cache directory {path} is writable by others (mode {stat.S_IMODE(status.st_mode):04o}), who could "
            f"plant programs there: run `chmod go-w {path}`, or set REKINDLE_CACHE to another directory"
        )


def _sync_directory(path: Path) -> None:
    """Make a rename in the directory outlast a power cut, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
