"""What sampling computes over the vocabulary, in portable XLA.

All passes run over (vocabulary, rows). A row's numbers along the other axis would be transposed first, which takes
XLA's CPU backend several times as long as a pass.
"""

import jax
import jax.numpy as jnp
from jax import lax

from rekindle_kernels.penalties import END, GENERATED, Penalties
from rekindle_kernels.xla.noise import gumbel

BLOCK = 32
"""As many numbers as XLA's CPU backend reduces in one loop with whatever computes them. Others need no blocks."""

SMALLEST = 2.0**-126
"""The smallest number that is not taken for 0."""


def mass(columns: jax.Array, largest: jax.Array, temperature: jax.Array, least: jax.Array) -> jax.Array:
    """See `sampling.mass`. In a loop over bounds, the barrier keeps XLA from storing all powers ahead of it."""
    largest, temperature, least = lax.optimization_barrier((largest, temperature, least))
    return jnp.where(columns < least[None], 0.0, jnp.exp((columns - largest[None]) / temperature[None])).sum(0)


def argmax(columns: jax.Array) -> jax.Array:
    """See `sampling.argmax`."""
    numbers = jnp.where(jnp.isnan(columns), jnp.inf, columns)  # whether a maximum is NaN depends on how XLA fuses it
    largest: jax.Array = lax.platform_dependent(numbers, cpu=_argmax_of_blocks, default=_first_largest)
    return largest


def nth_largest(columns: jax.Array, n: jax.Array) -> jax.Array:
    """See `sampling.nth_largest`. It is found by bisecting the numbers that float32 has: exact after 32 passes."""
    sought = (n > 0) & (n < len(columns))

    def body(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1)
        count = _count(columns >= _number_of(middle)[None])
        return jnp.where(count >= n, middle, low), jnp.where(count >= n, high, middle)

    lowest = jnp.full(n.shape, _order_of(jnp.float32(-jnp.inf)), jnp.int32)
    start = (lowest, jnp.full_like(lowest, _order_of(jnp.float32(jnp.inf)) + 1))
    low, _ = lax.cond(sought.any(), lambda: lax.fori_loop(0, 32, body, start), lambda: start)
    found = _number_of(low)
    found = jnp.where(jnp.abs(found) < SMALLEST, 0.0, found)  # XLA takes such numbers for 0, and so do the comparisons
    return jnp.where(sought, found, -jnp.inf)


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
    """Find the block that has the maximum, and then its place in it: one pass, which writes nothing of its size."""
    blocks = _in_blocks(columns, -jnp.inf)
    block = _first_largest(blocks.max(1))
    place = _first_largest(jnp.take_along_axis(blocks, block[None, None], axis=0)[0])
    return jnp.minimum(block * BLOCK + place, len(columns) - 1)


def _first_largest(columns: jax.Array) -> jax.Array:
    places = lax.broadcasted_iota(jnp.int32, columns.shape, 0)
    return jnp.where(columns == columns.max(0, keepdims=True), places, len(columns) - 1).min(0)


def _count(those: jax.Array) -> jax.Array:
    """Count what is true of each row."""

    def at_once(those: jax.Array) -> jax.Array:
        return those.sum(0, dtype=jnp.int32)

    def by_blocks(those: jax.Array) -> jax.Array:
        return _in_blocks(those, False).sum(1, dtype=jnp.uint8).sum(0, dtype=jnp.int32)

    count: jax.Array = lax.platform_dependent(those, cpu=by_blocks, default=at_once)
    return count


def _in_blocks(columns: jax.Array, padding: float | bool) -> jax.Array:
    """Reshape (vocabulary, rows) to (blocks, BLOCK, rows), with padding at the end."""
    padded = jnp.pad(columns, ((0, -len(columns) % BLOCK), (0, 0)), constant_values=padding)
    return padded.reshape(-1, BLOCK, columns.shape[1])


def _order_of(numbers: jax.Array) -> jax.Array:
    """Map numbers to int32 in their order: the bit patterns, of which those of negative numbers run backwards."""
    bits = lax.bitcast_convert_type(numbers, jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFF_FFFF, bits)


def _number_of(order: jax.Array) -> jax.Array:
    """Return what `_order_of` maps."""
    return lax.bitcast_convert_type(jnp.where(order < 0, order ^ 0x7FFF_FFFF, order), jnp.float32)
