"""From logits to tokens: greedy and seeded draws side by side in one batch, without a sort.

Order of application: temperature, top-k, top-p, min-p, then the draw.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

CDF_BLOCK = 128
LARGEST_MAGNITUDE = 0x7F80_0000
"""The bit pattern of float32 infinity: magnitudes order like their bit patterns up to here."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The sampling parameters of each row of a batch.

    Attributes:
        temperature: (rows,) float32; 0 is greedy.
        top_k: (rows,) int32; 0 keeps all.
        top_p: (rows,) float32 in (0, 1]; 1 keeps all.
        min_p: (rows,) float32 in [0, 1]; 0 keeps all.
        seed: (rows,) int32.
    """

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    seed: jax.Array


def sample(logits: jax.Array, rows: SamplingRows, positions: jax.Array) -> jax.Array:
    """One token per row.

    A row's draw depends on its logits, its parameters and (seed, position), and on nothing else in the batch.

    Args:
        logits: (rows, vocabulary) float32.
        rows: the parameters of each row.
        positions: (rows,) int32, the position that the token will take in its request.

    Returns:
        (rows,) int32 token ids.
    """
    greedy = first_of_the_largest(logits)
    drawn = rows.temperature > 0

    def draw() -> jax.Array:
        return jnp.where(drawn, _draw(logits, rows, positions), greedy)

    tokens: jax.Array = lax.cond(drawn.any(), draw, lambda: greedy)
    return tokens


def first_of_the_largest(values: jax.Array) -> jax.Array:
    """The smallest index of each row's maximum, as two plain reductions, which XLA's CPU backend vectorises."""
    columns = lax.broadcasted_iota(jnp.int32, values.shape, 1)
    largest = values.max(-1, keepdims=True)
    return jnp.where(values == largest, columns, values.shape[1] - 1).min(-1)


def _draw(logits: jax.Array, rows: SamplingRows, positions: jax.Array) -> jax.Array:
    vocabulary = logits.shape[1]
    temperature = jnp.where(rows.temperature > 0, rows.temperature, 1.0)
    scaled = (logits - logits.max(-1, keepdims=True)) / temperature[:, None]
    ranks = lax.bitcast_convert_type(jnp.abs(scaled), jnp.int32)
    mass = jnp.exp(scaled)

    limited = (rows.top_k > 0) & (rows.top_k < vocabulary)
    wanted = jnp.where(limited, rows.top_k, vocabulary).astype(jnp.float32)
    mass = lax.cond(limited.any(), lambda m: _keep_best(m, jnp.ones_like(m), ranks, wanted, limited), lambda m: m, mass)
    wanted = rows.top_p * mass.sum(-1)
    limited = rows.top_p < 1
    mass = lax.cond(limited.any(), lambda m: _keep_best(m, m, ranks, wanted, limited), lambda m: m, mass)
    mass = jnp.where(mass >= rows.min_p[:, None], mass, 0.0)
    return _invert_cdf(mass, _uniform(rows.seed, positions))


def _keep_best(
    mass: jax.Array, weights: jax.Array, ranks: jax.Array, wanted: jax.Array, limited: jax.Array
) -> jax.Array:
    """Zero the mass outside the fewest best columns of each limited row whose weights reach `wanted`.

    The cut is found by bisecting the bit pattern of the logits' distance from the largest, `ranks`: exact in 31
    passes, and columns equal to the cut are all kept.
    """

    def body(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        reached = jnp.where(ranks <= middle[:, None], weights, 0.0).sum(-1) >= wanted
        return jnp.where(reached, low, middle + 1), jnp.where(reached, middle, high)

    low = jnp.zeros(len(mass), jnp.int32)
    _, cut = lax.fori_loop(0, 31, body, (low, jnp.full_like(low, LARGEST_MAGNITUDE)))
    cut = jnp.where(limited, cut, LARGEST_MAGNITUDE)
    return jnp.where(ranks <= cut[:, None], mass, 0.0)


def _uniform(seeds: jax.Array, positions: jax.Array) -> jax.Array:
    def one(seed: jax.Array, position: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.key(seed), position))

    return jax.vmap(one)(seeds, positions)


def _invert_cdf(mass: jax.Array, uniform: jax.Array) -> jax.Array:
    """The column at which the running sum of each row's mass passes `uniform` of the whole, found block by block."""
    blocks = jnp.pad(mass, ((0, 0), (0, -mass.shape[1] % CDF_BLOCK))).reshape(len(mass), -1, CDF_BLOCK)
    sums = blocks.sum(-1)
    running = jnp.cumsum(sums, axis=-1)
    target = uniform * running[:, -1]
    block = _first_above(running, target, sums)
    before = jnp.take_along_axis(running - sums, block[:, None], axis=1)[:, 0]
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return block * CDF_BLOCK + _first_above(jnp.cumsum(inside, axis=-1), target - before, inside)


def _first_above(running: jax.Array, target: jax.Array, mass: jax.Array) -> jax.Array:
    """The first column whose running sum exceeds the target; rounding never leads past the last one with mass."""
    first = (running <= target[:, None]).sum(-1, dtype=jnp.int32)
    columns = lax.broadcasted_iota(jnp.int32, mass.shape, 1)
    return jnp.minimum(first, jnp.where(mass > 0, columns, 0).max(-1))
