"""Sampling operations over the vocabulary, in portable XLA.

All passes run over (vocabulary, rows). A transposition would take XLA's CPU backend several times as long as a pass.
"""

import jax
import jax.numpy as jnp
from jax import lax

from rekindle_kernels.penalties import END, GENERATED, Penalties
from rekindle_kernels.xla.noise import gumbel

BLOCK = 32
"""XLA's CPU backend reduces at most this many numbers in the loop that computes them. Other backends have no limit."""

SMALLEST = 2.0**-126
"""Smallest normal float32: XLA treats subnormal numbers as 0."""


def mass(columns: jax.Array, largest: jax.Array, temperature: jax.Array, least: jax.Array) -> jax.Array:
    """See `sampling.mass`. The barrier keeps XLA from storing all exponentials before a loop over bounds."""
    largest, temperature, least = lax.optimization_barrier((largest, temperature, least))
    return jnp.where(columns < least[None], 0.0, jnp.exp((columns - largest[None]) / temperature[None])).sum(0)


def argmax(columns: jax.Array) -> jax.Array:
    """See `sampling.argmax`."""
    numbers = jnp.where(jnp.isnan(columns), jnp.inf, columns)  # a maximum's NaN depends on XLA's fusion
    largest: jax.Array = lax.platform_dependent(numbers, cpu=_argmax_of_blocks, default=_first_largest)
    return largest


def nth_largest(columns: jax.Array, n: jax.Array) -> jax.Array:
    """See `sampling.nth_largest`. The search bisects all float32 numbers: exact after 32 passes."""
    is_valid = (n > 0) & (n < len(columns))

    def body(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1)
        count = _count(columns >= _number_of(middle)[None])
        return jnp.where(count >= n, middle, low), jnp.where(count >= n, high, middle)

    lowest = jnp.full(n.shape, _order_of(jnp.float32(-jnp.inf)), jnp.int32)
    start = (lowest, jnp.full_like(lowest, _order_of(jnp.float32(jnp.inf)) + 1))
    low, _ = lax.cond(is_valid.any(), lambda: lax.fori_loop(0, 32, body, start), lambda: start)
    numbers = _number_of(low)
    numbers = jnp.where(jnp.abs(numbers) < SMALLEST, 0.0, numbers)  # as in the comparisons above
    return jnp.where(is_valid, numbers, -jnp.inf)


def count_above(columns: jax.Array, bound: jax.Array) -> jax.Array:
    """See `sampling.count_above`."""
    return _count(columns > bound[None])


def draw(
    columns: jax.Array,
    keys: tuple[jax.Array, jax.Array],
    largest: jax.Array,
    temperature: jax.Array,
    least: jax.Array,
) -> jax.Array:
    """See `sampling.draw`."""
    depth, noise = largest[None] - columns, gumbel(*keys, len(columns))
    return argmax(jnp.where(columns >= least[None], noise - depth / temperature[None], -jnp.inf))


def adjust(columns: jax.Array, bias: jax.Array, marks: jax.Array, owners: jax.Array, penalties: Penalties) -> jax.Array:
    """See `sampling.adjust`."""
    of_rows = jnp.maximum(owners, 0)
    bias, marks = bias[of_rows].T, marks[of_rows].T
    logits, repetition = columns + bias, penalties.repetition[None]
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = jnp.where((marks & ~END) != 0, repeated, logits)
    times = marks // GENERATED
    logits -= times.astype(jnp.float32) * penalties.frequency[None]
    logits -= jnp.where(times > 0, penalties.presence[None], 0.0)
    logits = jnp.where(penalties.too_early[None] & ((marks & END) != 0), -jnp.inf, logits)
    return jnp.where(owners[None] < 0, columns, logits)


def _argmax_of_blocks(columns: jax.Array) -> jax.Array:
    """Find the block of the maximum, and then its index in the block: one pass, without an intermediate of its size."""
    blocks = _in_blocks(columns, -jnp.inf)
    block = _first_largest(blocks.max(1))
    place = _first_largest(jnp.take_along_axis(blocks, block[None, None], axis=0)[0])
    return jnp.minimum(block * BLOCK + place, len(columns) - 1)


def _first_largest(columns: jax.Array) -> jax.Array:
    places = lax.broadcasted_iota(jnp.int32, columns.shape, 0)
    return jnp.where(columns == columns.max(0, keepdims=True), places, len(columns) - 1).min(0)


def _count(mask: jax.Array) -> jax.Array:
    """Count the true entries of each row's column."""

    def at_once(mask: jax.Array) -> jax.Array:
        return mask.sum(0, dtype=jnp.int32)

    def by_blocks(mask: jax.Array) -> jax.Array:
        return _in_blocks(mask, False).sum(1, dtype=jnp.uint8).sum(0, dtype=jnp.int32)

    count: jax.Array = lax.platform_dependent(mask, cpu=by_blocks, default=at_once)
    return count


def _in_blocks(columns: jax.Array, padding: float | bool) -> jax.Array:
    """Reshape (vocabulary, rows) to (blocks, BLOCK, rows), with padding at the end."""
    padded = jnp.pad(columns, ((0, -len(columns) % BLOCK), (0, 0)), constant_values=padding)
    return padded.reshape(-1, BLOCK, columns.shape[1])


def _order_of(numbers: jax.Array) -> jax.Array:
    """Map numbers to int32 of the same order: bit patterns, reversed for negative numbers."""
    bits = lax.bitcast_convert_type(numbers, jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFF_FFFF, bits)


def _number_of(order: jax.Array) -> jax.Array:
    """Invert `_order_of`."""
    return lax.bitcast_convert_type(jnp.where(order < 0, order ^ 0x7FFF_FFFF, order), jnp.float32)
