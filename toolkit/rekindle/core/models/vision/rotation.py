"""Rotary positions of patches: some pairs of a head by the row of a patch, the others by its column."""

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.core.models.rope import Positions


def axial_positions(places: jax.Array, theta: float, head_dim: int, *, alternating: bool) -> Positions:
    """Compute the positions of patches for attention.

    Args:
        places: row and column of each patch, (patches, 2) int32.
        theta: the base of the frequencies.
        head_dim: the size of a head.
        alternating: whether frequencies go to rows and columns in turns; else both have every other one.
    """
    frequencies = 1 / np.float32(theta) ** (np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim))
    by_axis = frequencies[0::2], frequencies[1::2] if alternating else frequencies[0::2]
    angles = [places[:, axis, None].astype(jnp.float32) * by_axis[axis][None] for axis in range(2)]
    both = jnp.concatenate(angles, axis=1)
    return Positions(jnp.cos(both), jnp.sin(both), None)
