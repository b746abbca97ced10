"""A model in the files of another program, and the error for a name without a model."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from rekindle.core.errors import ModelNotFound
from rekindle.formats.checkpoints.vision.names import is_tower

_SHOWN: Final = 12
"""Most models in an error."""
_OTHERS: Final = ("consolidated", "adapter_", "optimizer", "scheduler", "random_states")
"""Beginnings of names of safetensors files without effect beside the model's own."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the files of another program.

    Attributes:
        name: the name for `open`, with the prefix of the program.
        path: the GGUF file, or the directory.
        size: bytes of the weights.
        numbers: the kind of most numbers, like "Q4_K_M", if the program knows it; else "".
        problem: the reason why the files are no model; "" if none is known.
    """

    name: str
    path: Path
    size: int
    numbers: str = ""
    problem: str = ""


def home_directory() -> Path:
    """Return the user's home directory; for a user without one, a directory that does not exist."""
    return Path(os.path.expanduser("~"))


def missing(
    name: str, owner: str, places: Sequence[Path], models: Sequence[str], remedy: str, skipped: Sequence[str] = ()
) -> ModelNotFound:
    """Return the error about a name of no model, with a close name and all names there.

    Args:
        name: the full name, with its prefix.
        owner: the program or the cache, as the subject of a sentence.
        places: the searched directories.
        models: the full names of all models there.
        remedy: the way to get a model, as an item of a list.
        skipped: lines about unreadable folders.
    """
    where = " and ".join(map(str, places))
    unread = "".join(f"\n- {line}" for line in skipped)
    if not models:
        return ModelNotFound(f"no model {name!r}: {owner} has no models in {where}.\n- {remedy}{unread}")
    folded = {each.casefold(): each for each in sorted(models)}
    folded_name = name.casefold()
    stem = folded_name.rpartition(":")[0] if folded_name.count(":") > 1 else folded_name  # without its tag
    parts = [each for each in folded if each.startswith((f"{stem}:", f"{stem}/"))]
    close = parts or get_close_matches(folded_name, folded, n=1)
    hint = f" Did you mean {folded[close[0]]!r}?" if close else ""
    more = len(models) - _SHOWN
    items = "\n".join(f"- {each}" for each in sorted(models)[:_SHOWN])
    rest = f"\n- and {more} more: rekindle.models(), or `rekindle models --local`, lists all" if more > 0 else ""
    return ModelNotFound(f"no model {name!r}.{hint} In {where}, {owner} has:\n{items}{rest}{unread}")


def first_parts(files: Iterable[Path]) -> list[Path]:
    """Return the GGUF files with text models: the first part of a split model, and no projectors of images."""
    gguf = [file for file in files if file.suffix.lower() == ".gguf" and not is_tower(file)]
    return [file for file in sorted(gguf) if "-of-" not in file.name or "-00001-of-" in file.name]


def is_model_directory(names: Iterable[str]) -> bool:
    """Return True if the names of a directory's files are a model's: a config, and safetensors."""
    names = set(names)
    weights = [name for name in names if name.endswith(".safetensors")]
    if "config.json" in names:
        return any(not name.startswith("adapter_") for name in weights)
    return "params.json" in names and any(name.startswith("consolidated") for name in weights)


def bytes_of(path: Path, names: Iterable[str]) -> int:
    """Return the bytes of a GGUF file with all parts, or of the safetensors of a directory; 0 for unreadable files.

    Args:
        path: the file or the directory.
        names: the names of all files in the directory, or beside the file.
    """
    head, is_split, count = path.name.partition("-00001-of-")
    if path.suffix.lower() == ".gguf":
        parts = [name for name in names if name.startswith(f"{head}-") and name.endswith(f"-of-{count}")]
        return sum(_size(path.with_name(name)) for name in (parts if is_split else [path.name]))
    weights = [name for name in names if name.endswith(".safetensors")]
    own = [name for name in weights if not name.startswith(_OTHERS)] or weights
    return sum(_size(path / name) for name in own)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # a link to a lost file
        return 0
