"""The distribution that a token is drawn from: what temperature, top-k, top-p and min-p make of the logits.

The last three are bounds on a token's logit, or on its depth: how far the logit is below the largest of its row.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.core.device.sampling.columns import of_tokens
from rekindle.core.device.sampling.rows import SamplingRows
from rekindle_kernels.api import Implementation
from rekindle_kernels.sampling import mass, nth_largest

BITS_OF_INFINITY = 0x7F80_0000


def drawn_from(
    columns: jax.Array,
    largest: jax.Array,
    rows: SamplingRows,
    tokens: jax.Array,
    implementation: Implementation = "xla",
) -> jax.Array:
    """Compute logits whose softmax is the distribution that each row's token was drawn from.

    Args:
        columns: (vocabulary, rows) float32, the logits after the adjustments.
        largest: (rows,) float32, the largest of them.
        tokens: (rows,) int32, the tokens that were drawn; they are kept whatever rounding says of a bound.
        implementation: of the kernels.

    Returns:
        (vocabulary, rows) float32, of which each row's largest is 0; minus infinity for tokens that are not kept. A row
        at temperature 0 draws nothing: its logits are as they came, but for a constant.
    """
    drawn = rows.temperature > 0
    temperature, top_p = jnp.where(drawn, rows.temperature, 1.0), jnp.where(drawn, rows.top_p, 1.0)
    of_top_k, of_min_p = (
        jnp.where(drawn, largest - least, jnp.inf)
        for least in least_kept(columns, largest, temperature, rows, implementation)
    )
    of_top_p = _deepest_of_top_p(columns - largest[None], temperature, of_top_k, top_p, implementation)
    bound = jnp.minimum(jnp.minimum(of_top_k, of_top_p), of_min_p)
    bound = jnp.maximum(bound, largest - of_tokens(columns, tokens))
    depth = largest[None] - columns
    return jnp.where(depth <= bound[None], -depth / temperature[None], -jnp.inf)


def least_kept(
    columns: jax.Array,
    largest: jax.Array,
    temperature: jax.Array,
    rows: SamplingRows,
    implementation: Implementation = "xla",
) -> tuple[jax.Array, jax.Array]:
    """Return the least logits that top-k and min-p keep in each row, (rows,) each; minus infinity where one keeps all.

    Tokens of equal logits are all kept. Top-p comes between the two, so that its mass is that of what top-k keeps.

    Args:
        columns: (vocabulary, rows) float32, the logits.
        largest: (rows,) float32, the largest of them.
        temperature: (rows,) float32, positive.
        implementation: of the kernels.
    """
    of_min_p = largest + temperature * jnp.log(rows.min_p)
    return nth_largest(columns, rows.top_k, implementation=implementation), of_min_p


def _deepest_of_top_p(
    heights: jax.Array, temperature: jax.Array, bound: jax.Array, top_p: jax.Array, implementation: Implementation
) -> jax.Array:
    """Return the depth of the least likely token that each row's `top_p` keeps, (rows,); infinity where it keeps all.

    It is the one whose mass, with that of all likelier ones, first reaches `top_p` of the mass within the `bound`.

    Args:
        heights: (vocabulary, rows) float32, the negative depths.
    """
    top = jnp.zeros_like(temperature)

    def mass_within(bound: jax.Array) -> jax.Array:
        return mass(heights, top, temperature, -bound, implementation=implementation)

    wanted = top_p * mass_within(bound)
    return _least_reached(lambda depth: mass_within(jnp.minimum(depth, bound)) >= wanted, top_p < 1)


def _least_reached(reached: Callable[[jax.Array], jax.Array], sought: jax.Array) -> jax.Array:
    """Return for each `sought` row the least number from 0 on that is enough, (rows,) float32; infinity for others.

    It is found by bisecting the bit pattern, which has the order of the number: exact after 31 passes.
    """

    def body(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        enough = (middle >= 0) & reached(lax.bitcast_convert_type(middle, jnp.float32))  # below 0 are no numbers
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    low = jnp.full(sought.shape, -1, jnp.int32)
    start = (low, jnp.full_like(low, BITS_OF_INFINITY))
    _, high = lax.cond(sought.any(), lambda: lax.fori_loop(0, 31, body, start), lambda: start)
    return jnp.where(sought, lax.bitcast_convert_type(high, jnp.float32), jnp.inf)
