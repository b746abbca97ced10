"""A square table of positions, stretched over images of any size."""

from collections.abc import Callable
from itertools import product

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.core.models.vision.patches import Patches


def stretched_by_corners(table: Callable[[jax.Array], jax.Array], side: int, patches: Patches) -> jax.Array:
    """Return the positions of patches, (patches, hidden) float32, bilinearly between the nearest four of a table.

    The corners of the table are at the corners of the image.

    Args:
        table: returns the rows of the table, (rows,) int32.
        side: rows and columns of the table as a square.
        patches: the patches; a segment is an image.
    """
    places, counts = patches.positions, _counts(patches)
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


def stretched_by_means(table: Callable[[jax.Array], jax.Array], side: int, patches: Patches) -> jax.Array:
    """Return the positions of patches, (patches, hidden) float32, by a table resized with anti-aliasing.

    An image covers the same area as the table: a patch has the mean of the rows and columns around its centre, with
    weights that fall to 0 at a distance of one row of the table, or of one patch if that is more.

    Args:
        table, side, patches: see `stretched_by_corners`.
    """
    scale = side / _counts(patches).astype(jnp.float32)
    reach, centres = jnp.maximum(scale, 1.0), (patches.positions.astype(jnp.float32) + 0.5) * scale
    rows = jnp.arange(side, dtype=jnp.float32)[None, None, None] + 0.5
    distances = jnp.abs(rows - centres[..., None]) / reach[..., None]
    weights = jnp.maximum(1.0 - distances, 0.0)
    weights = (weights / weights.sum(-1, keepdims=True)).reshape(-1, 2, side)
    both = (weights[:, 0, :, None] * weights[:, 1, None]).reshape(-1, side**2)
    return jnp.matmul(both, table(jnp.arange(side**2, dtype=jnp.int32)), precision=lax.Precision.HIGHEST)


def _counts(patches: Patches) -> jax.Array:
    """Return the rows and columns of each segment, (segments, 1, 2) int32."""
    return jnp.max(jnp.where(patches.valid[:, :, None], patches.positions, 0), axis=1, keepdims=True) + 1
