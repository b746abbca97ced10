"""Names of the GGUF files with vision towers."""

import re
from pathlib import Path
from typing import Final

TOWER: Final = "clip"
"""The architecture in the metadata of a tower's file."""
_PRECISION: Final = re.compile(r"[-_.](?:ud[-_])?(?:i?q\d\w*|b?f16|fp16|f32|mxfp4\w*)$")
"""The end of a file's name with the kind of the numbers, in lower case."""
_PART: Final = re.compile(r"-\d{5}-of-\d{5}$")
_NAMELESS: Final = ("", "model")
"""Names of towers' files, without "mmproj" and precision, for any model."""


def is_tower(path: Path) -> bool:
    """Return True if a GGUF file has a vision tower in place of a model, by its name."""
    return "mmproj" in path.name.lower()


def find_mmproj(path: Path) -> Path | None:
    """Return the tower's file beside a GGUF model: with "mmproj" and the model's name, or with no name.

    Of files with several precisions, take the largest. A snapshot in the cache of the hub may have the model in a
    folder for its precision: without a tower there, take one of the folders above.
    """
    name = _model_name(path)
    for folder in _folders(path):
        candidates = [each for each in folder.glob("*.[gG][gG][uU][fF]") if is_tower(each) and each.is_file()]
        fitting = [each for each in candidates if _model_name(each) == name]
        nameless = [each for each in candidates if _model_name(each) in _NAMELESS]
        if fitting or nameless:
            return max(fitting or nameless, key=lambda each: (each.stat().st_size, each.name))
    return None


def _folders(path: Path) -> list[Path]:
    """Return the folder of a file, followed by those above up to the root of a snapshot of the hub, if it is in one."""
    folders = [*path.parents]
    roots = [place for place, each in enumerate(folders) if each.parent.name == "snapshots"]
    return folders[: 1 + (roots[0] if roots else 0)]


def _model_name(path: Path) -> str:
    """Return the name of a model in the name of one of its files."""
    name = _PRECISION.sub("", _PART.sub("", path.stem.lower()))
    return re.sub("[-_.]?mmproj[-_.]?", "", name)
