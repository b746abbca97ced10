"""An adapter in the form of a device: its matrices for each product, joined, in order and packed."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from rekindle.core.models.adapters.products import AdapterSizes, LinearShard
from rekindle.formats.lora import Array, Lora
from rekindle_kernels import layers as kernels
from rekindle_kernels.api import Implementation


def pack_adapter(
    lora: Lora, products: Sequence[LinearShard], sizes: AdapterSizes, dtype: jnp.dtype, implementation: Implementation
) -> list[tuple[Array, Array]]:
    """Return the two matrices of each product, packed; zeros for projections without a summand."""
    packed = []
    for product in products:
        forms = product.forms(sizes, dtype, implementation)
        both = [np.zeros(form.shape, form.dtype) for form in forms]
        if any(name in lora.parts for name in product.parts):
            for into, matrix in zip(both, _matrices(lora, product, sizes), strict=True):
                kernels.pack([matrix], into, implementation=implementation)
        packed.append((both[0], both[1]))
    return packed


def _matrices(lora: Lora, product: LinearShard, sizes: AdapterSizes) -> tuple[Array, Array]:
    """Return the joined matrices (rank, in) and (out, rank): each projection has inner features of its own."""
    rank = product.rank(sizes)
    first: np.ndarray[Any, Any] = np.zeros((rank, product.inputs), np.float32)
    second: np.ndarray[Any, Any] = np.zeros((sum(product.parts.values()), rank), np.float32)
    row = 0
    for index, (name, rows) in enumerate(product.parts.items()):
        part = lora.parts.get(name)
        if part is not None:
            at = slice(index * sizes.rank, index * sizes.rank + len(part.a))
            first[at], second[row : row + rows, at] = part.a, part.b * np.float32(part.scale)
        row += rows
    if product.columns is not None:
        first = np.where(product.columns >= 0, first[:, product.columns], 0)
    return first, second if product.order is None else second[product.order]
