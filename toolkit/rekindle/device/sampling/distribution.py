"""The distribution that a token is drawn from: what temperature, top-k, top-p and min-p make of the logits.

The last three are bounds on a token's depth: how far its logit is below the largest of its row. All passes run over
(vocabulary, rows), as in `sampling`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.device.sampling.rows import SamplingRows

BLOCK = 32
"""As many numbers as XLA's CPU backend reduces in one loop with whatever computes them. Others need no blocks."""

BITS_OF_INFINITY = 0x7F80_0000


def drawn_from(columns: jax.Array, rows: SamplingRows, tokens: jax.Array) -> jax.Array:
    """Compute logits whose softmax is the distribution that each row's token was drawn from.

    Args:
        columns: (vocabulary, rows) float32, the logits after the adjustments.
        tokens: (rows,) int32, the tokens that were drawn; they are kept whatever rounding says of a bound.

    Returns:
        (rows, vocabulary) float32, minus infinity for tokens that are not kept. A row at temperature 0 draws nothing:
        its logits are as they came, but for a constant.
    """
    drawn, largest = rows.temperature > 0, columns.max(0)
    temperature = jnp.where(drawn, rows.temperature, 1.0)
    bound = deepest_of_top_k(columns, largest, jnp.where(drawn, rows.top_k, 0))
    nucleus = _deepest_of_top_p(columns, largest, temperature, bound, jnp.where(drawn, rows.top_p, 1.0))
    bound = jnp.minimum(jnp.minimum(bound, nucleus), deepest_of_min_p(temperature, jnp.where(drawn, rows.min_p, 0.0)))
    bound = jnp.maximum(bound, largest - of_tokens(columns, tokens))
    depth = largest[None] - columns
    return jnp.where(depth <= bound[None], -depth / temperature[None], -jnp.inf).T


def deepest_of_top_k(columns: jax.Array, largest: jax.Array, top_k: jax.Array) -> jax.Array:
    """Return the depth of each row's `top_k`-th likeliest token, (rows,); infinity where `top_k` keeps all.

    Tokens of equal logits are all kept.

    Args:
        columns: (vocabulary, rows) float32, the logits.
        largest: (rows,) float32, the largest of them.
        top_k: (rows,) int32.
    """

    def reached(bound: jax.Array) -> jax.Array:
        kept = largest[None] - columns <= bound[None]
        count: jax.Array = lax.platform_dependent(kept, cpu=_count_in_blocks, default=_count)
        return count >= top_k

    return _least_reached(reached, (top_k > 0) & (top_k < len(columns)))


def _count(kept: jax.Array) -> jax.Array:
    return kept.sum(0, dtype=jnp.int32)


def _count_in_blocks(kept: jax.Array) -> jax.Array:
    return in_blocks(kept, False).sum(1, dtype=jnp.uint8).sum(0, dtype=jnp.int32)


def _deepest_of_top_p(
    columns: jax.Array, largest: jax.Array, temperature: jax.Array, bound: jax.Array, top_p: jax.Array
) -> jax.Array:
    """Return the depth of the least likely token that each row's `top_p` keeps, (rows,); infinity where it keeps all.

    It is the one whose mass, with that of all likelier ones, first reaches `top_p` of the mass within the `bound`.
    """

    def mass(bound: jax.Array) -> jax.Array:
        depth = largest[None] - columns
        return jnp.where(depth <= bound[None], jnp.exp(-depth / temperature[None]), 0.0).sum(0)

    wanted = top_p * mass(bound)
    return _least_reached(lambda depth: mass(jnp.minimum(depth, bound)) >= wanted, top_p < 1)


def deepest_of_min_p(temperature: jax.Array, min_p: jax.Array) -> jax.Array:
    """Return the depth at which a token is `min_p` times as likely as the likeliest; infinity for 0."""
    return -temperature * jnp.log(min_p)


def in_blocks(columns: jax.Array, padding: float | bool) -> jax.Array:
    """Reshape (vocabulary, rows) to (blocks, BLOCK, rows), with padding at the end."""
    padded = jnp.pad(columns, ((0, -len(columns) % BLOCK), (0, 0)), constant_values=padding)
    return padded.reshape(-1, BLOCK, columns.shape[1])


def of_tokens(columns: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return each row's value at its token, (rows,)."""
    return jnp.take_along_axis(columns, tokens[None], axis=0)[0]


def _least_reached(reached: Callable[[jax.Array], jax.Array], sought: jax.Array) -> jax.Array:
    """Return for each `sought` row the least number from 0 on that is enough, (rows,) float32; infinity for others.

    It is found by bisecting the bit pattern, which has the order of the number: exact after 31 passes.
    """

    def body(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        enough = reached(lax.bitcast_convert_type(middle, jnp.float32))
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    low = jnp.full(sought.shape, -1, jnp.int32)
    start = (low, jnp.full_like(low, BITS_OF_INFINITY))
    _, high = lax.cond(sought.any(), lambda: lax.fori_loop(0, 31, body, start), lambda: start)
    return jnp.where(sought, lax.bitcast_convert_type(high, jnp.float32), jnp.inf)
