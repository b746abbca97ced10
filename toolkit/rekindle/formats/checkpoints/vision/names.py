"""Names of the GGUF files with vision towers."""

import re
from pathlib import Path
from typing import Final

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

    Of files with several precisions, take the largest.
    """
    name = _model_name(path)
    candidates = [each for each in path.parent.glob("*.[gG][gG][uU][fF]") if is_tower(each)]
    fitting = [each for each in candidates if _model_name(each) == name]
    nameless = [each for each in candidates if _model_name(each) in _NAMELESS]
    return max(fitting or nameless, key=lambda each: (each.stat().st_size, each.name), default=None)


def _model_name(path: Path) -> str:
    """Return the name of a model in the name of one of its files."""
    name = _PRECISION.sub("", _PART.sub("", path.stem.lower()))
    return re.sub("[-_.]?mmproj[-_.]?", "", name)
