"""New files and directories, which appear complete or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rekindle.core.errors import StorageError
from rekindle.core.words import size_text

SPARE_BYTES: Final = 16 << 20
"""Free space left on the disk for others."""


@contextmanager
def new_file(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield the path of a temporary file, renamed to `path` if the block ends without an error, else removed.

    Raises:
        StorageError: the file exists and may not be overwritten, or its folder cannot be written.
    """
    if path.is_dir():
        raise StorageError(f"{path} is a directory, and a GGUF model is one file: name one, such as {path}/model.gguf")
    if path.exists() and not overwrite:
        raise StorageError(f"{path} exists: choose another name, or pass overwrite=True (--overwrite)")
    with _temporary_directory(path) as directory:
        temporary = directory / path.name
        yield temporary
        os.replace(temporary, path)


@contextmanager
def new_directory(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield the path of a temporary directory, renamed to `path` if the block ends without an error, else removed.

    Raises:
        StorageError: the directory has files and may not be overwritten, or its parent cannot be written.
    """
    has_files = path.is_file() or (path.is_dir() and any(path.iterdir()))
    if has_files and not overwrite:
        raise StorageError(f"{path} exists: choose another name, or pass overwrite=True (--overwrite)")
    if has_files and not (path / "config.json").is_file():
        raise StorageError(f"{path} is no model directory, so it is not overwritten: choose another name")
    with _temporary_directory(path) as directory:
        temporary = directory / path.name
        temporary.mkdir()
        yield temporary
        if path.is_dir():
            os.replace(path, directory / "replaced")
        os.replace(temporary, path)


def check_room(folder: Path, size: int) -> None:
    """Raise StorageError unless the disk of a folder has room for `size` more bytes."""
    free = shutil.disk_usage(folder).free
    if free < size + SPARE_BYTES:
        raise StorageError(
            f"the model needs {size_text(size)}, and the disk of {folder} has {size_text(free)} free: free some space, "
            "or choose a folder of another disk"
        )


@contextmanager
def _temporary_directory(path: Path) -> Iterator[Path]:
    """Yield a new directory beside a path, and remove it with its content at the end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}): choose another folder") from error
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
