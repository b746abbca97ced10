"""Prose to score: the README's."""

import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.formats.checkpoints.checkpoint import Checkpoint

README: Final = Path(__file__).parents[2] / "README.md"


def prose(checkpoint: Checkpoint, positions: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the first tokens of the README without its code, tables and links: one more than `positions`."""
    whole = README.read_text(encoding="utf-8")
    text = re.sub(r"```.*?```|^\|.*?$|\]\(.*?\)", "", whole, flags=re.DOTALL | re.MULTILINE)
    assert checkpoint.tokenizer is not None
    ids = checkpoint.tokenizer.encode(text)[: positions + 1]
    assert len(ids) == positions + 1, f"the README has only {len(ids)} tokens of prose"
    return np.asarray(ids)
