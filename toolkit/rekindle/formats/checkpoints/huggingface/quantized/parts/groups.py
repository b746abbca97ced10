"""Groups of the inputs of a matrix: consecutive ones, or by an index of each input (act-order)."""

import numpy as np

from rekindle_kernels.quantized import Indices


def by_inputs(indices: Indices | None, size: int) -> Indices | None:
    """Return the group of each input; None if groups are consecutive, without indices, with all -1 or in order.

    Args:
        indices: (inputs,), the stored group of each input; None for none.
        size: the inputs of a group.
    """
    if indices is None or (indices < 0).all() or np.array_equal(indices, np.arange(len(indices)) // size):
        return None
    return indices
