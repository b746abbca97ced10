"""A square table of positions, stretched over images of any size."""

from collections.abc import Callable
from itertools import product

import jax
import jax.numpy as jnp

from rekindle.core.models.vision.patches import Patches


def stretched(table: Callable[[jax.Array], jax.Array], side: int, patches: Patches) -> jax.Array:
    """Return the positions of patches, (patches, hidden) float32, bilinearly between the nearest four of a table.

    The corners of the table are at the corners of the image.

    Args:
        table: returns the rows of the table, (rows,) int32.
        side: rows and columns of the table as a square.
        patches: the patches; a segment is an image.
    """
    places = patches.positions
    counts = jnp.max(jnp.where(patches.valid[:, :, None], places, 0), axis=1, keepdims=True) + 1
    # Like torch.linspace, from both ends.
    step = jnp.float32(side - 1) / jnp.maximum(counts - 1, 1).astype(jnp.float32)
    from_end = (side - 1) - (counts - 1 - places).astype(jnp.float32) * step
    at = jnp.where((places < counts // 2) | (counts == 1), places.astype(jnp.float32) * step, from_end)
    at = jnp.clip(at, 0, side - 1).reshape(-1, 2)
    low = jnp.floor(at)
    corners = (low, low + 1 - at), (jnp.minimum(low + 1, side - 1), at - low)
    parts = []
    for (rows, of_rows), (columns, of_columns) in product(corners, corners):
        places = (rows[:, 0] * side + columns[:, 1]).astype(jnp.int32)
        parts.append(table(places) * (of_rows[:, 0] * of_columns[:, 1])[:, None])
    return parts[0] + parts[1] + parts[2] + parts[3]
