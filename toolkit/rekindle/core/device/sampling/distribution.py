"""The sampling distribution: logits after temperature, top-k, top-p and min-p.

The last three are bounds on a token's logit, or on its depth: the distance of its logit from the largest of its row.
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


def sampling_logits(
    columns: jax.Array,
    largest: jax.Array,
    rows: SamplingRows,
    tokens: jax.Array,
    implementation: Implementation = "xla",
) -> jax.Array:
    """Compute the logits of each row's sampling distribution, for log-probabilities by softmax.

    Args:
        columns: (vocabulary, rows) float32, the logits after the adjustments.
        largest: (rows,) float32, each row's largest logit.
        rows: the sampling parameters of the rows.
        tokens: (rows,) int32, the sampled tokens; they are always kept, despite rounding of the bounds.
        implementation: the kernel implementation.

    Returns:
        (vocabulary, rows) float32 with 0 as each row's largest value, and minus infinity for excluded tokens. A greedy
        row keeps its logits, up to a constant.
    """
    is_sampled = rows.temperature > 0
    temperature, top_p = jnp.where(is_sampled, rows.temperature, 1.0), jnp.where(is_sampled, rows.top_p, 1.0)
    of_top_k, of_min_p = (
        jnp.where(is_sampled, largest - least, jnp.inf)
        for least in least_logits(columns, largest, temperature, rows, implementation)
    )
    of_top_p = _deepest_of_top_p(columns - largest[None], temperature, of_top_k, top_p, implementation)
    bound = jnp.minimum(jnp.minimum(of_top_k, of_top_p), of_min_p)
    bound = jnp.maximum(bound, largest - of_tokens(columns, tokens))
    depth = largest[None] - columns
    return jnp.where(depth <= bound[None], -depth / temperature[None], -jnp.inf)


def least_logits(
    columns: jax.Array,
    largest: jax.Array,
    temperature: jax.Array,
    rows: SamplingRows,
    implementation: Implementation = "xla",
) -> tuple[jax.Array, jax.Array]:
    """Return each row's least logit within top-k, and within min-p, (rows,) each; minus infinity for no bound.

    Tokens of equal logits are all kept. Top-p comes between the two: its mass is relative to the mass within top-k.

    Args:
        columns: (vocabulary, rows) float32, the logits.
        largest: (rows,) float32, each row's largest logit.
        temperature: (rows,) float32, positive.
        rows: the sampling parameters of the rows.
        implementation: the kernel implementation.
    """
    of_min_p = largest + temperature * jnp.log(rows.min_p)
    return nth_largest(columns, rows.top_k, implementation=implementation), of_min_p


def _deepest_of_top_p(
    heights: jax.Array, temperature: jax.Array, bound: jax.Array, top_p: jax.Array, implementation: Implementation
) -> jax.Array:
    """Return the depth of each row's least likely token within `top_p`, (rows,); infinity for no bound.

    It is the least depth whose tokens together reach `top_p` of the mass within `bound`.

    Args:
        heights: (vocabulary, rows) float32, the negative depths.
        bound: (rows,) float32, the greatest depth within top-k.
    """
    top = jnp.zeros_like(temperature)

    def mass_within(bound: jax.Array) -> jax.Array:
        return mass(heights, top, temperature, -bound, implementation=implementation)

    nucleus = top_p * mass_within(bound)
    return _bisect(lambda depth: mass_within(jnp.minimum(depth, bound)) >= nucleus, top_p < 1)


def _bisect(suffices: Callable[[jax.Array], jax.Array], mask: jax.Array) -> jax.Array:
    """Return the least sufficient number, 0 or more, for each row selected by `mask`; infinity for other rows.

    The search bisects the bit pattern, whose order is the order of the numbers: exact after 31 passes.
    """

    def body(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        # Negative bit patterns lie below all numbers of the search.
        enough = (middle >= 0) & suffices(lax.bitcast_convert_type(middle, jnp.float32))
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    low = jnp.full(mask.shape, -1, jnp.int32)
    start = (low, jnp.full_like(low, BITS_OF_INFINITY))
    _, high = lax.cond(mask.any(), lambda: lax.fori_loop(0, 31, body, start), lambda: start)
    return jnp.where(mask, lax.bitcast_convert_type(high, jnp.float32), jnp.inf)
