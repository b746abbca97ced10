"""The pixels of one image, cut into patches for a tower."""

from dataclasses import dataclass
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Patches:
    """The pixels of one image, cut into patches for a tower.

    A segment is what attends to itself: a tile of Idefics3, a whole image of Qwen. Patches are in the order of their
    output tokens: if a tower merges squares of m x m patches, each m² successive patches of a segment are one square,
    by row and then by column in the square.

    Attributes:
        values: the pixels, (segments, length, patch_width) float32; a patch is (row, column, channel), normalized.
        positions: rows of the tower's position table, (segments, length) int32.
        valid: False for padding, (segments, length) bool.
    """

    values: Any
    positions: Any
    valid: Any
