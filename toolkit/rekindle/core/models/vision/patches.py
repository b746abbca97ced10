"""The pixels of one image, cut into patches for a tower."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Patches:
    """The pixels of one image, cut into patches for a tower.

    A segment is what attends to itself: a tile of Idefics3, a whole image of Pixtral. Patches are in the order of their
    output tokens: if a tower merges squares of m x m patches, each m² successive patches of a segment are one square,
    by row and then by column in the square.

    Attributes:
        values: the pixels, (segments, length, patch_width) float32: a patch is (row, column, channel, frame).
        positions: row and column of each patch, in the tower's table of positions if it has one, (segments, length, 2)
            int32.
        valid: False for padding, (segments, length) bool.
        order: for each embedding of a segment the index of its token among those of the image, -1 for none, (segments,
            length // merge²) int32; None for tokens in the order of valid embeddings.
    """

    values: Any
    positions: Any
    valid: Any
    order: Any = None

    def padded(self, length: int) -> "Patches":
        """Return segments of another length, with patches of zeros behind the others. For arrays of NumPy."""
        missing = [(0, 0), (0, length - self.valid.shape[1])]
        values, positions = (np.pad(each, [*missing, (0, 0)]) for each in (self.values, self.positions))
        return replace(self, values=values, positions=positions, valid=np.pad(self.valid, missing))
