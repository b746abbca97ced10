"""Attention of patches within their segments, in blocks of a fixed size."""

from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.core.models.mixing import ScoreOptions

BLOCK: Final = 256
"""Queries, and keys, of one product. A fixed size keeps the bits of a segment whatever its padding, and fits caches."""
MASKED: Final = -1e30
_Arrays = tuple[jax.Array, jax.Array, jax.Array]


@dataclass(frozen=True, slots=True)
class SegmentMixer:
    """The exchange between the patches of each of several segments, in both directions; see `Mixer.attend`.

    Attributes:
        valid: False for padding, (segments, length) bool.
        dtype: the dtype of the factors of products; sums are float32.
        windows: a number of each patch, (segments, length) int32, if only patches with equal numbers attend to each
            other; None for no windows.
    """

    valid: jax.Array
    dtype: jnp.dtype
    windows: jax.Array | None = None

    def attend(self, q: jax.Array, kv: jax.Array, pages: Any, scores: ScoreOptions) -> tuple[jax.Array, Any]:
        """Compute attention of each patch, (patches, heads, head_dim), over the valid ones of its segment."""
        segments, length = self.valid.shape
        padding = -length % BLOCK

        def blocks(x: jax.Array) -> jax.Array:
            """Return (blocks, segments, heads, BLOCK, head_dim)."""
            x = x.astype(self.dtype).reshape(segments, length, *x.shape[1:])
            x = jnp.pad(x, [(0, 0), (0, padding), (0, 0), (0, 0)])
            return x.reshape(segments, -1, BLOCK, *x.shape[2:]).transpose(1, 0, 3, 2, 4)

        def rows(x: jax.Array) -> jax.Array:
            """Return (blocks, segments, BLOCK)."""
            return jnp.pad(x, [(0, 0), (0, padding)]).reshape(segments, -1, BLOCK).swapaxes(0, 1)

        windows = None if self.windows is None else rows(self.windows)
        keys = blocks(kv[:, 0]), blocks(kv[:, 1]), rows(self.valid), windows
        out = lax.map(lambda queries: _attend(queries[0], queries[1], *keys), (blocks(q * scores.scale), windows))
        out = out.transpose(1, 0, 3, 2, 4).reshape(segments, -1, *q.shape[1:])[:, :length]
        return out.reshape(q.shape), pages


def _attend(
    q: jax.Array,
    own: jax.Array | None,
    keys: jax.Array,
    values: jax.Array,
    valid: jax.Array,
    windows: jax.Array | None,
) -> jax.Array:
    """Compute the attention of a block of queries by an online softmax (Milakov and Gimelshein, 2018).

    Shapes: q and the result (segments, heads, BLOCK, head_dim), keys and values the same after an axis of blocks, valid
    and the windows of keys (blocks, segments, BLOCK), the windows of the queries (segments, BLOCK).
    """

    def step(carry: _Arrays, block: Any) -> tuple[_Arrays, None]:
        (peak, total, weighted), (k, v, is_valid, of_keys) = carry, block
        scores = jnp.einsum("shqd,shkd->shqk", q, k, preferred_element_type=jnp.float32)
        visible = is_valid[:, None, None]
        if own is not None:
            visible &= (own[:, :, None] == of_keys[:, None])[:, None]
        scores = jnp.where(visible, scores, MASKED)
        new_peak = jnp.maximum(peak, scores.max(-1))
        shrink, weights = jnp.exp(peak - new_peak), jnp.exp(scores - new_peak[..., None])
        part = jnp.einsum("shqk,shkd->shqd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        return (new_peak, total * shrink + weights.sum(-1), weighted * shrink[..., None] + part), None

    empty = jnp.zeros(q.shape, jnp.float32)
    start = jnp.full(q.shape[:-1], MASKED, jnp.float32), empty[..., 0], empty
    (_, total, weighted), _ = lax.scan(step, start, (keys, values, valid, windows))
    return weighted / total[..., None]
