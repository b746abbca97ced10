"""Parts of both attention kernels: loading a tile of paged keys and values, and the online softmax over tiles.

They run inside Triton programs: sizes are powers of two, and loads of smaller arrays are masked.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rekindle_kernels.gpu.refs import Ref, columns_of, load, within
from rekindle_kernels.xla.scaled import GROUP, SCALE_BYTES, stored_groups

LOG2E = math.log2(math.e)
MASKED = -1e30


class Sums(NamedTuple):
    """The online softmax of a tile of queries, by Milakov and Gimelshein, 2018 (arXiv:1805.02867), in base 2.

    Attributes:
        peak: (queries,) the largest score so far.
        total: (queries,) the sum of 2 ** (score - peak); 0 before the first visible position.
        weighted: (queries, dims) the same sum, with each term times its values.
    """

    peak: jax.Array
    total: jax.Array
    weighted: jax.Array

    @classmethod
    def empty(cls, queries: int, dims: int) -> "Sums":
        """Return the sums before the first tile."""
        shape = (queries,)
        return cls(jnp.full(shape, MASKED), jnp.zeros(shape), jnp.zeros((queries, dims)))

    def output(self, sink: jax.Array | None = None) -> jax.Array:
        """Return the weighted mean, (queries, dims); zeros for a query without visible positions.

        Args:
            sink: (queries,) the score of one more position with zeros as values; None for no sink.
        """
        total = jnp.where(self.total == 0.0, 1.0, self.total)
        if sink is not None:
            total += jnp.exp2(sink * LOG2E - self.peak)
        return self.weighted / total[:, None]


@dataclass(frozen=True)
class Context:
    """The pages of one sequence and key-value head.

    Attributes:
        pool: ref to (pages * sides * kv_heads * page_size, width), the pool with all but its last axis joined.
        table: ref to (sequences, pages_per_sequence) int32.
        sequence, head: () int32.
        sides, kv_heads, page_size: the sizes of the pool.
        scale, soft_cap: the options of the scores.
    """

    pool: Ref
    table: Ref
    sequence: jax.Array
    head: jax.Array
    sides: int
    kv_heads: int
    page_size: int
    scale: float
    soft_cap: float | None

    @property
    def _groups(self) -> int:
        """The number of scales of a position; 0 for numbers without."""
        return stored_groups(self.pool.shape[1]) if self.pool.dtype == jnp.int8 else 0

    def visit(
        self, sums: Sums, q: jax.Array, positions: jax.Array, readable: jax.Array | None, mask: jax.Array | None
    ) -> Sums:
        """Add one tile of keys and values to the sums.

        Args:
            sums: the sums so far.
            q: (queries, dims) of `products_dtype`; dims is head_dim padded with zeros to a power of two.
            positions: (keys,) int32.
            readable: (keys,) bool, whether to read each position; None for all.
            mask: (queries or 1, keys) bool, whether a key is visible to a query; None for all.
        """
        page_ids = load(self.table, self.sequence, lax.div(positions, self.page_size), mask=readable)
        keys_at = (page_ids * (self.sides * self.kv_heads) + self.head) * self.page_size + lax.rem(
            positions, self.page_size
        )
        scores = _dot(q, self._tile(keys_at, readable), 1) * self.scale
        if self._groups == 1:
            scores *= self._scales(keys_at, readable, 0)[None]
        if self.soft_cap is not None:
            scores = self.soft_cap * jnp.tanh(scores / self.soft_cap)
        scores = scores * LOG2E
        if mask is not None:
            scores = jnp.where(mask, scores, MASKED)
        peak = jnp.maximum(sums.peak, scores.max(axis=1))
        weights = jnp.exp2(scores - peak[:, None])
        if mask is not None:
            weights = jnp.where(mask, weights, 0.0)
        shrink = jnp.exp2(sums.peak - peak)
        values_at = keys_at + (self.sides - 1) * self.kv_heads * self.page_size
        values = self._tile(values_at, readable)
        total = sums.total * shrink + weights.sum(axis=1)
        if self._groups == 1:
            weights *= self._scales(values_at, readable, 0)[None]
        part = _dot(weights.astype(values.dtype), values, 0)
        return Sums(peak, total, sums.weighted * shrink[:, None] + part)

    def _tile(self, rows: jax.Array, readable: jax.Array | None) -> jax.Array:
        """Load rows of numbers, zeros where they are not readable. Codes with one scale stay as they are."""
        head_dim = self.pool.shape[1] - SCALE_BYTES * self._groups
        columns = columns_of(head_dim)
        mask = within(columns, head_dim, None if readable is None else readable[:, None])
        numbers = load(self.pool, rows[:, None], columns, mask=mask)
        if self._groups > 1:
            scales = self._scales(rows, readable, 0)[:, None]
            for group in range(1, self._groups):
                scales = jnp.where(columns < group * GROUP, scales, self._scales(rows, readable, group)[:, None])
            numbers = numbers.astype(jnp.float32) * scales
        return numbers.astype(products_dtype(self.pool.dtype))

    def _scales(self, rows: jax.Array, readable: jax.Array | None, group: int) -> jax.Array:
        """Load the scales of a group of rows of int8, (keys,) float32; zeros where they are not readable."""
        places = jnp.arange(SCALE_BYTES, dtype=jnp.int32)[None]
        columns = self.pool.shape[1] - SCALE_BYTES * (self._groups - group) + places
        mask = None if readable is None else readable[:, None]
        parts = load(self.pool, rows[:, None], columns, mask=mask).astype(jnp.int32)
        bits = jnp.left_shift(parts & 0xFF, 8 * places).sum(axis=1, dtype=jnp.int32)
        return lax.bitcast_convert_type(bits, jnp.float32)


def products_dtype(stored: jnp.dtype) -> jnp.dtype:
    """Return the dtype of the operands of products with pages of this dtype."""
    return jnp.dtype(jnp.bfloat16) if stored == jnp.int8 else stored


def _dot(a: jax.Array, b: jax.Array, contracted: int) -> jax.Array:
    """Multiply over a's last axis and one axis of b, with sums in float32, and full precision for float32 operands."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    dims = (((1,), (contracted,)), ((), ()))
    product: jax.Array = lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)
    return product
