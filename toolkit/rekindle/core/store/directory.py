"""The user's private cache directory, and atomic writes of its files."""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rekindle.core.errors import StorageError, UnsafeStorage


def cache_dir(*parts: str) -> Path:
    """Return the cache directory, or a directory inside it. Create it with mode 0700 if it is missing.

    The path comes from the environment variable REKINDLE_CACHE, else from the platform's cache directory of the user.
    Compiled programs are loaded from it, so a directory writable by another user is refused.

    Args:
        parts: directory names below the cache directory, outermost first.

    Raises:
        StorageError: a directory cannot be created, or the user has no home directory.
        UnsafeStorage: a directory belongs to another user, or is writable by others.
    """
    path = _root()
    try:
        for part in ("", *parts):
            path /= part
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            require_private(path.resolve())
    except OSError as error:
        raise StorageError(
            f"the cache directory {path} cannot be created ({error.strerror}): "
            "set REKINDLE_CACHE to a directory that you can write to"
        ) from error
    return path


def make_private(path: Path) -> None:
    """Create a directory with mode 0700 if it is missing, and check that it is private.

    Raises:
        OSError: the directory cannot be created.
        UnsafeStorage: the directory belongs to another user, or is writable by others.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_private(path)


def require_private(path: Path) -> None:
    """Check the ownership of a directory or file: it belongs to this user, and nobody else can write to it.

    Raises:
        OSError: the path does not exist, or is neither a directory nor a regular file (a link, for example).
        UnsafeStorage: the path belongs to another user, or is writable by others.
    """
    status = path.lstat()
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        raise OSError(errno.EINVAL, "neither a directory nor a file", str(path))
    if not hasattr(os, "getuid"):  # Windows separates users by access lists, not by mode bits
        return
    if status.st_uid != os.getuid():
        raise UnsafeStorage(
            f"{path} belongs to user {status.st_uid}, but this process runs as {os.getuid()} and loads nothing that "
            "another user can change: delete it, or set REKINDLE_CACHE to a directory that belongs to you"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeStorage(
            f"{path} is writable by others (mode {stat.S_IMODE(status.st_mode):04o}), who could plant programs in it: "
            f"delete it, or run `chmod -R go-w {path}` if nobody else can have changed it"
        )


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Write a temporary file next to `path`, and rename it to `path` if the block ends without an error.

    The last of several concurrent writers wins. A reader always sees one writer's complete file.

    Yields:
        The temporary file, open for writing bytes.
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
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file's content, or a directory's names, to the disk, if the platform supports it."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _root() -> Path:
    path = os.environ.get("REKINDLE_CACHE")
    try:
        if path:
            return Path(path).expanduser().absolute()
        from platformdirs import user_cache_path

        return user_cache_path("rekindle", appauthor=False)
    except RuntimeError as error:  # a number without a name, as containers may give, and no HOME
        raise StorageError(
            f"there is no cache directory, as this user has no home directory ({error}): set REKINDLE_CACHE to a "
            "directory that you can write to"
        ) from error
