"""Products by tiles over numbers of a seed: `python -m tests.kernels.tile_programs` prints digests of their bits."""

import hashlib
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from rekindle_kernels import api, layers
from tests.kernels.cases import stored

PAGE, HEADS = 16, 4


def weight_of(rows: NDArray[np.float32]) -> jax.Array:
    """Pack a weight, (outputs, inputs), in bfloat16."""
    spec = layers.packed(rows.shape, jnp.dtype("bfloat16"), implementation="cpu")
    packed = np.zeros(spec.shape, spec.dtype)
    layers.pack([rows], packed, implementation="cpu")
    return jnp.asarray(packed)


def attended(
    q: NDArray[np.float32], kv: NDArray[np.float32], first: int, *, window: int | None = None
) -> NDArray[np.float32]:
    """Attend with adjacent queries to positions in bfloat16 pages.

    Args:
        q: (queries, HEADS, head_dim), of the positions from `first` on.
        kv: (positions, 2, 1, head_dim).
        first: the position of the first query.
        window: the positions that a query sees, or None for all.
    """
    positions, _, _, head_dim = kv.shape
    count = -(-positions // PAGE)
    padded = np.zeros((count * PAGE, 2, 1, head_dim), np.float32)
    padded[:positions] = kv
    blocks = padded.reshape(count, PAGE, 2, 1, head_dim).transpose(0, 2, 3, 1, 4)
    pages = stored(blocks, "bfloat16", "cpu")
    table = jnp.arange(count, dtype=jnp.int32)[None]
    place = jnp.zeros(1, jnp.int32)
    out = api.attend_blocks(
        jnp.asarray(q)[None], pages, table, place, place + first,
        scale=head_dim**-0.5, window=window, soft_cap=None, implementation="cpu",
    )  # fmt: skip
    return np.asarray(out[0])


def digests() -> dict[str, str]:
    """Return a digest of each product's bits, by its name."""
    rng = np.random.default_rng(5)
    results: dict[str, NDArray[np.float32]] = {}
    for outputs, inputs, rows in ((96, 64, 1), (70, 416, 37), (33, 48, 5), (256, 1024, 130)):
        weight = weight_of(rng.standard_normal((outputs, inputs), np.float32))
        x = jnp.asarray(rng.standard_normal((rows, inputs), np.float32))
        product = layers.linear(x, weight, outputs, implementation="cpu")
        results[f"linear {outputs} x {inputs}"] = np.asarray(product)
    for head_dim, window in ((64, None), (96, 50), (128, None)):
        kv = rng.standard_normal((300, 2, 1, head_dim), np.float32)
        q = rng.standard_normal((40, HEADS, head_dim), np.float32)
        results[f"attention of {head_dim}"] = attended(q, kv, 260, window=window)
    return {name: hashlib.sha256(result.tobytes()).hexdigest() for name, result in results.items()}


if __name__ == "__main__":
    json.dump(digests(), sys.stdout)
