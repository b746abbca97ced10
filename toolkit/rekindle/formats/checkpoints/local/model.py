"""A model in the files of another program, and the error for a name without a model."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from rekindle.core.errors import ModelNotFound
from rekindle.formats.checkpoints.vision.names import is_tower

_SHOWN: Final = 12
"""Most models in an error."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model in the files of another program.

    Attributes:
        name: the name for `open`, with the prefix of the program.
        path: the GGUF file, or the directory.
        size: bytes of the weights.
    """

    name: str
    path: Path
    size: int


def home_directory() -> Path:
    """Return the user's home directory; for a user without one, a directory that does not exist."""
    return Path(os.path.expanduser("~"))


def missing(name: str, owner: str, places: Sequence[Path], models: Sequence[str], remedy: str) -> ModelNotFound:
    """Return the error about a name of no model, with a close name and all names there.

    Args:
        name: the full name, with its prefix.
        owner: the program or the cache, as the subject of a sentence.
        places: the searched directories.
        models: the full names of all models there.
        remedy: the way to get a model, as an item of a list.
    """
    where = " and ".join(map(str, places))
    if not models:
        return ModelNotFound(f"no model {name!r}: {owner} has no models in {where}.\n- {remedy}")
    folded = {each.casefold(): each for each in sorted(models)}
    folded_name = name.casefold()
    stem = folded_name.rpartition(":")[0] if folded_name.count(":") > 1 else folded_name  # without its tag
    parts = [each for each in folded if each.startswith((f"{stem}:", f"{stem}/"))]
    close = parts or get_close_matches(folded_name, folded, n=1)
    hint = f" Did you mean {folded[close[0]]!r}?" if close else ""
    more = len(models) - _SHOWN
    items = "\n".join(f"- {each}" for each in sorted(models)[:_SHOWN])
    rest = f"\n- and {more} more: `rekindle models --local` lists all" if more > 0 else ""
    return ModelNotFound(f"no model {name!r}.{hint} In {where}, {owner} has:\n{items}{rest}")


def first_parts(files: Sequence[Path]) -> list[Path]:
    """Return the GGUF files with text models: the first part of a split model, and no projectors of images."""
    return [
        file for file in sorted(files) if not is_tower(file) and ("-of-" not in file.name or "-00001-of-" in file.name)
    ]


def bytes_of(path: Path) -> int:
    """Return the bytes of a GGUF file with all parts, or of the safetensors of a directory; 0 if unreadable."""
    if path.is_dir():
        files = list(path.glob("*.safetensors"))
    else:
        head, part, count = path.name.partition("-00001-of-")
        files = [
            file for file in path.parent.iterdir() if file.name.startswith(f"{head}-") and file.name.endswith(count)
        ]
        files = files if part else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
