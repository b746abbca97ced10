"""Groups of the inputs of a matrix: consecutive ones, or by an index of each input (act-order)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rekindle_kernels.blocks import Array

Indices = np.ndarray[Any, np.dtype[np.integer[Any]]]


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of inputs with one scale each.

    Attributes:
        size: the number of consecutive inputs with the same scale.
        of: the group of each input, if groups are not consecutive inputs; else None.
    """

    size: int
    of: Indices | None = None

    def spread(self, numbers: Array) -> Array:
        """Return numbers of groups, (rows, groups), for each `size` inputs, (rows, inputs / size)."""
        return numbers if self.of is None else numbers[:, self.of]


def by_inputs(indices: Indices | None, size: int, inputs: int) -> Groups:
    """Return the groups for stored indices: consecutive ones if indices are None, all -1 or in order."""
    if indices is None or (indices < 0).all() or np.array_equal(indices, np.arange(inputs) // size):
        return Groups(size)
    return Groups(1, indices)
