"""States of layers in a tick with drafts: one after each decode row, to go on from the last right row.

The states of decode rows lie between the slots' and the null slot's.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.core.models.mixing import State

RowOperation: TypeAlias = Callable[..., tuple[jax.Array, jax.Array]]
"""Changes states by a token of each row: `(states, slots, *rows) -> (results, states)`, as
`rekindle_kernels.states.recur_rows`."""


def compute_rows(
    operation: RowOperation,
    states: jax.Array,
    rows: Sequence[jax.Array],
    slots: jax.Array,
    offsets: jax.Array,
    null_slot: int,
) -> tuple[jax.Array, jax.Array]:
    """Compute the rows of each slot in order, each from the state after the row before it.

    The rows of newest tokens are computed together and change the states of their slots. Then follows one drafted token
    after the other: a tick without drafts takes no longer than in a session without them.

    Args:
        operation: a kernel.
        states: (slots + rows, ...).
        rows: arrays (rows, ...), the arguments of the operation.
        slots: (rows,) int32.
        offsets: (rows,) int32, the place of each row after its slot's newest token. The rows of a slot are adjacent and
            in order.
        null_slot: the slot of padding among `slots`.

    Returns:
        The results, (rows, ...), and the states.
    """
    is_newest = (offsets == 0) & (slots != null_slot)
    results, states = operation(states, jnp.where(is_newest, slots, len(states) - 1), *rows)
    drafted, count = _in_order(offsets > 0)

    def body(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        results, states = carry
        row = drafted[i]
        before = jnp.where(offsets[row] == 1, slots[row], null_slot + row - 1)
        state = _copy_of(states, before)
        own = (lax.dynamic_slice_in_dim(each, row, 1) for each in rows)
        result, after = operation(jnp.stack([state, jnp.zeros_like(state)]), jnp.zeros(1, jnp.int32), *own)
        states = lax.dynamic_update_index_in_dim(states, after[0], null_slot + row, 0)
        return lax.dynamic_update_slice_in_dim(results, result, row, 0), states

    results, states = lax.fori_loop(jnp.int32(0), count, body, (results, states))
    return results, states


def settle_states(
    states: tuple[State, ...], slots: jax.Array, offsets: jax.Array, is_last: jax.Array, null_slot: int
) -> tuple[State, ...]:
    """Return the states of all layers, each slot with the state after its last right row.

    Args:
        states: the states from `compute_rows`.
        slots, offsets, null_slot: see `compute_rows`.
        is_last: (rows,) bool, True for the last right row of each slot.
    """
    rows, count = _in_order(is_last & (offsets > 0))

    def body(i: jax.Array, states: tuple[State, ...]) -> tuple[State, ...]:
        row = rows[i]

        def after_row(array: jax.Array) -> jax.Array:
            state = _copy_of(array, null_slot + row)
            updated: jax.Array = lax.dynamic_update_index_in_dim(array, state, slots[row], 0)
            return updated

        return tuple(tuple(after_row(array) for array in state) for state in states)

    result: Any = lax.fori_loop(jnp.int32(0), count, body, states)
    return tuple(result)


def _copy_of(states: jax.Array, place: jax.Array) -> jax.Array:
    """Return the state of one place. Without the barrier, a compiler joins read and update, and copies all states."""
    state: jax.Array = lax.optimization_barrier(lax.dynamic_index_in_dim(states, place, keepdims=False))
    return state


def _in_order(selection: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the rows of a mask in order, then all others, and the number of the former."""
    return jnp.argsort(~selection).astype(jnp.int32), jnp.sum(selection, dtype=jnp.int32)
