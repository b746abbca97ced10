"""Files of a model directory: their presence, their text and JSON, and their names of other files."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

from rekindle.core.errors import CheckpointError, RekindleError, panics_as

_DAMAGE: Final = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""Errors of readers for values of another kind, size or depth than any model has."""
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
"""Beginning of a file that git-lfs leaves in place of the content."""
_LARGEST_POINTER: Final = 1024


@contextmanager
def damage(name: object, *, own_code: bool = False) -> Iterator[None]:
    """Raise any error of a reader as CheckpointError: a file's content must not look like a fault of the code.

    Args:
        name: the model, for errors.
        own_code: whether the reader is the caller's own, whose errors stay as they are.
    """
    try:
        with panics_as(CheckpointError):
            yield
    except RekindleError:
        raise
    except OSError as error:
        raise CheckpointError(f"{error.filename or name} cannot be read: {error.strerror or error}") from error
    except _DAMAGE as error:
        if own_code:
            raise
        raise CheckpointError(
            f"{name}: a file has a value of a wrong type, size or depth ({type(error).__name__}: {error!s:.200}). "
            "Fetch the model again"
        ) from error


def is_present(path: Path) -> bool:
    """Return True if a file is there.

    Raises:
        CheckpointError: it is a link to a lost file or a pointer of git-lfs, or cannot be looked at.
    """
    try:
        if path.is_file():
            _refuse_pointer(path)
            return True
        is_link = path.is_symlink() and not path.exists()
    except (OSError, ValueError) as error:  # a directory without permission; a name of 5,000 characters; a NUL
        raise CheckpointError(f"{path!s:.200} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if is_link:
        raise CheckpointError(
            f"{path} is a link to {os.readlink(path)}, which is gone, as after an interrupted or pruned download: "
            "fetch the model again, or remove the link"
        )
    return False


def _refuse_pointer(path: Path) -> None:
    """Raise CheckpointError for a small file that stands for a large one in a repository of git-lfs."""
    if path.stat().st_size > _LARGEST_POINTER:
        return
    with path.open("rb") as file:
        if file.read(len(_POINTER)) != _POINTER:
            return
    raise CheckpointError(
        f"{path} is a pointer of git-lfs, not the file itself: the repository was cloned without git-lfs. "
        f"Run `git lfs install` and then `git lfs pull` in {path.parent}, or open the model by its hub id"
    )


def inside(directory: Path, name: str, owner: str) -> Path:
    """Return the path of a file or folder of a model by its name in another file.

    Args:
        directory: the model directory.
        name: the name, relative to the directory.
        owner: the file with the name, for errors.

    Raises:
        CheckpointError: the name leads out of the directory.
    """
    ways = PurePosixPath(name), PureWindowsPath(name)
    if "\0" in name or any(way.anchor or ".." in way.parts for way in ways):
        raise CheckpointError(
            f"{directory / owner}: {name!r:.200} is outside of the model's directory, and a file of a model may name "
            "only files beside it. Fetch the model again from a source that you trust"
        )
    return directory / name


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8.

    Raises:
        CheckpointError: the file cannot be read, or is not a text in UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not a text in UTF-8 ({error}). Fetch it again") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def parse_json(text: str | bytes, source: object) -> Any:
    """Return the JSON value in a text.

    Args:
        text: the text.
        source: the path of the file, for errors.

    Raises:
        CheckpointError: the text is not valid JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{source}: not valid JSON ({error}). Fetch it again") from error
    except RecursionError as error:
        raise CheckpointError(
            f"{source}: its JSON is nested too deeply for a file of a model. Fetch it again"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty dict if the file does not exist.

    Raises:
        CheckpointError: the file is a link to a lost file, is not valid JSON, or not an object.
    """
    if not is_present(path):
        return {}
    content = parse_json(read_text(path), path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content
