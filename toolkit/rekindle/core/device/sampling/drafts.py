"""Verification of drafts: decode rows of one slot at successive positions, with guessed tokens.

A draw depends on logits, seed and position alone. So a guess that equals the draw before it changes no later draw, and
the rows after the first wrong guess are dropped.
"""

import jax
import jax.numpy as jnp


def verify(offsets: jax.Array, guesses: jax.Array, draws: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compare guesses with draws.

    Args:
        offsets: (rows,) int32, the place of each row after the newest token of its slot. The rows of a slot are
            adjacent and in order.
        guesses: (rows,) int32, the guessed token of each row with an offset.
        draws: (rows,) int32, the token sampled after each row.

    Returns:
        (rows,) bool, True for a row without a wrong guess before it in its slot; and (rows,) bool, True for the last
        such row of a slot.
    """
    is_guess = offsets > 0
    wrong = jnp.cumsum(is_guess & (jnp.roll(draws, 1) != guesses))
    is_right = wrong == wrong[jnp.arange(len(draws), dtype=jnp.int32) - offsets]
    goes_on = jnp.concatenate([(is_guess & is_right)[1:], jnp.zeros(1, bool)])
    return is_right, is_right & ~goes_on
