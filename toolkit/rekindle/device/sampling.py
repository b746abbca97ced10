"""Sampling tokens from logits: greedy and seeded draws in one batch, without a sort.

The order of application is that of transformers: logit bias, repetition, frequency and presence penalty, bad words, min
tokens, allowed tokens (all in `adjustments`), then temperature, top-k, top-p, min-p, then the draw.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry_2x32

from rekindle.device.adjustments import Adjustments, adjust
from rekindle.device.sampling_rows import SamplingRows

BLOCK = 128
ABOVE_ALL_MASS = 0x3F80_0001
"""The bit pattern of the next float32 after 1, which is the mass of the likeliest token."""


def sample(
    logits: jax.Array, rows: SamplingRows, positions: jax.Array, adjustments: Adjustments, owners: jax.Array
) -> jax.Array:
    """Choose one token for each row.

    A row's token depends on its logits, its parameters and (seed, position), and on nothing else in the batch. A batch
    of greedy rows without adjustments costs only the argmax.

    Args:
        logits: (rows, vocabulary) float32.
        positions: (rows,) int32, the token's position in its request.
        adjustments: of all slots.
        owners: (rows,) int32, the slot of each row.

    Returns:
        (rows,) int32 token ids.
    """
    drawn, adjusted = rows.temperature > 0, rows.adjusted > 0

    def changed() -> jax.Array:
        return jnp.where(adjusted[:, None], adjust(logits, rows, positions, adjustments, owners), logits)

    def choose() -> jax.Array:
        final = lax.cond(adjusted.any(), changed, lambda: logits)
        best = argmax(final)
        chosen: jax.Array = lax.cond(
            drawn.any(), lambda: jnp.where(drawn, _draw(final, rows, positions), best), lambda: best
        )
        return chosen

    greedy = argmax(logits)  # outside of any branch, where XLA's CPU backend would run it ten times slower
    tokens: jax.Array = lax.cond((drawn | adjusted).any(), choose, lambda: greedy)
    return tokens


def argmax(values: jax.Array) -> jax.Array:
    """Return the smallest index of each row's maximum, by two reductions that XLA's CPU backend vectorises.

    They run along the columns, the order in which the last product leaves the logits, so that nothing is transposed.
    """
    columns = values.T
    places = lax.broadcasted_iota(jnp.int32, columns.shape, 0)
    return jnp.where(columns == columns.max(0, keepdims=True), places, len(columns) - 1).min(0)


def in_blocks(values: jax.Array, padding: float) -> jax.Array:
    """Reshape (rows, columns) to (rows, blocks, BLOCK), with padding at the end."""
    padded = jnp.pad(values, ((0, 0), (0, -values.shape[1] % BLOCK)), constant_values=padding)
    return padded.reshape(len(values), -1, BLOCK)


def _draw(logits: jax.Array, rows: SamplingRows, positions: jax.Array) -> jax.Array:
    temperature = jnp.where(rows.temperature > 0, rows.temperature, 1.0)
    mass = jnp.exp((logits - logits.max(-1, keepdims=True)) / temperature[:, None])
    limited = (rows.top_k > 0) & (rows.top_k < logits.shape[1])
    least = lax.cond(limited.any(), lambda: _least_of_top_k(mass, rows.top_k, limited), lambda: jnp.zeros(len(mass)))
    return _draw_nucleus(mass, least, rows, positions)


def _least_of_top_k(mass: jax.Array, top_k: jax.Array, limited: jax.Array) -> jax.Array:
    """Return the mass of the `top_k`-th likeliest token of each limited row, (rows,); 0 for others.

    It is found by bisecting the bit pattern, which has the order of the mass: exact after 31 passes. Tokens of equal
    mass are all kept.
    """

    def body(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        least = lax.bitcast_convert_type(middle, jnp.float32)
        reached = (mass >= least[:, None]).sum(-1, dtype=jnp.int32) >= top_k
        return jnp.where(reached, middle, low), jnp.where(reached, high, middle)

    low = jnp.zeros(len(mass), jnp.int32)
    low, _ = lax.fori_loop(0, 31, body, (low, jnp.full_like(low, ABOVE_ALL_MASS)))
    return jnp.where(limited, lax.bitcast_convert_type(low, jnp.float32), 0.0)


_Search = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""The number of attempts, and for each row the pivot, the token, and whether it was found."""


def _draw_nucleus(mass: jax.Array, least: jax.Array, rows: SamplingRows, positions: jax.Array) -> jax.Array:
    """Draw from the tokens that top-k, top-p and min-p keep, without computing that set.

    A token is in the nucleus if the tokens likelier than it have less than top-p of the mass. So draw from all tokens;
    if the drawn one is outside, the less likely ones are outside too: draw again from those likelier than it.
    (Rejection sampling with a pivot, as in FlashInfer, Ye et al., 2025, arXiv:2501.01005.)

    Args:
        mass: (rows, vocabulary) float32, 1 for the likeliest token.
        least: (rows,) float32, the least mass of the top-k.
    """
    wanted = rows.top_p * jnp.where(mass >= least[:, None], mass, 0.0).sum(-1)
    floor = jnp.maximum(least, rows.min_p)

    def body(search: _Search) -> _Search:
        attempt, pivot, token, found = search
        candidate = _invert_cdf(mass, pivot, floor, _uniform(rows.seed, positions, attempt))
        own = jnp.take_along_axis(mass, candidate[:, None], axis=1)
        likelier = jnp.where(mass > own, mass, 0.0).sum(-1)
        inside = (likelier < wanted) | (likelier <= 0) | (rows.top_p >= 1)
        token = jnp.where(found, token, candidate)
        return attempt + 1, jnp.where(inside, pivot, own[:, 0]), token, found | inside

    none = jnp.zeros(len(mass), jnp.int32)
    start = (jnp.int32(0), none.astype(jnp.float32), none, rows.temperature <= 0)
    token: jax.Array = lax.while_loop(lambda search: ~search[3].all(), body, start)[2]
    return token


def _uniform(seeds: jax.Array, positions: jax.Array, attempt: jax.Array) -> jax.Array:
    """Hash (seed, position) and the attempt to a number in [0, 1) a row, by Threefry-2x32 (Salmon et al., 2011)."""
    words = (seeds, positions, jnp.broadcast_to(attempt, seeds.shape))
    seed, position, counter = (lax.bitcast_convert_type(word, jnp.uint32) for word in words)

    def one(seed: jax.Array, position: jax.Array, counter: jax.Array) -> jax.Array:
        hashed: jax.Array = threefry_2x32(jnp.stack([seed, position]), jnp.stack([counter, jnp.uint32(0)]))
        return hashed[0]

    return (jax.vmap(one)(seed, position, counter) >> 8).astype(jnp.float32) * 2.0**-24


def _invert_cdf(mass: jax.Array, pivot: jax.Array, floor: jax.Array, uniform: jax.Array) -> jax.Array:
    """Return the column at which the running sum of each row's mass exceeds `uniform` of the total.

    Only mass above the row's pivot and not below its floor counts. First the block is found, then the column in it.
    """

    def counted(blocks: jax.Array) -> jax.Array:
        lowest, above = (bound.reshape(-1, *(1,) * (blocks.ndim - 1)) for bound in (floor, pivot))
        return jnp.where((blocks > above) & (blocks >= lowest), blocks, 0.0)

    blocks = in_blocks(mass, 0.0)
    sums = counted(blocks).sum(-1)
    running = _running_sum(sums)
    target = uniform * running[:, -1]
    block = _first_above(running, target, sums)
    before = jnp.take_along_axis(running - sums, block[:, None], axis=1)[:, 0]
    inside = counted(jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0])
    return block * BLOCK + _first_above(_running_sum(inside), target - before, inside)


def _running_sum(values: jax.Array) -> jax.Array:
    """Return each row's cumulative sum, as a product with a triangle, which compiles in a tenth of a scan's time."""
    places = jnp.arange(values.shape[1])
    triangle = (places[:, None] <= places[None]).astype(jnp.float32)
    return jnp.matmul(values, triangle, precision=lax.Precision.HIGHEST)


def _first_above(running: jax.Array, target: jax.Array, mass: jax.Array) -> jax.Array:
    """Return the first column whose running sum exceeds the target, or for rounding errors the last one with mass."""
    first = (running <= target[:, None]).sum(-1, dtype=jnp.int32)
    columns = lax.broadcasted_iota(jnp.int32, mass.shape, 1)
    return jnp.minimum(first, jnp.where(mass > 0, columns, 0).max(-1))
