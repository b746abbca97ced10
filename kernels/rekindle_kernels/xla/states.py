"""Recurrent layer states in portable XLA: what is inside a block at once, and the states block by block."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


def convolve_blocks(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    states: jax.Array,
    slots: jax.Array,
    starts: jax.Array,
    counts: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """See `states.convolve_blocks`. It works in place if `states` is donated."""
    taps, tokens = weight.shape[1], x.shape[1]
    fresh = (starts == 0) | (slots == len(states) - 1)

    def step(
        states: jax.Array, block: tuple[jax.Array, jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        slot, fresh, count, x = block
        before = jnp.where(fresh, 0.0, lax.dynamic_index_in_dim(states, slot, keepdims=False))
        x = jnp.where(jnp.arange(tokens, dtype=jnp.int32)[:, None] < count, x, 0.0)
        window = jnp.concatenate([before, x])
        after = lax.dynamic_slice_in_dim(window, count, taps - 1)
        y = _convolve([window[tap : tap + tokens] for tap in range(taps)], weight, bias)
        return lax.dynamic_update_index_in_dim(states, after, slot, 0), y

    states, y = lax.scan(step, states, (slots, fresh, counts, x))
    return y, states


def convolve_rows(
    x: jax.Array, weight: jax.Array, bias: jax.Array | None, states: jax.Array, slots: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """See `states.convolve_rows`. It works in place if `states` is donated."""
    window = jnp.concatenate([states[slots], x[:, None]], axis=1)
    window = jnp.where((slots == len(states) - 1)[:, None, None], 0.0, window)
    y = _convolve([window[:, tap] for tap in range(weight.shape[1])], weight, bias)
    return y, _write(states, slots, window[:, 1:])


class _Block(NamedTuple):
    """The parts of blocks before their states; (blocks, heads, ...) each, except slot and fresh.

    Attributes:
        slot: (blocks,) int32.
        fresh: (blocks,) bool, for zeros as the state before.
        q: (tokens, keys), for products with the state before.
        inside: (tokens, tokens), the share of each token's d in the results.
        k: (keys, tokens), decayed up to the end.
        remainder: (1 or keys, 1), the decay of the state before.
        d: (tokens, values), the numbers to add, without the delta rule for the state before.
        expectation: (tokens, keys), to take off d by the delta rule for the state before; None for no delta rule.
    """

    slot: jax.Array
    fresh: jax.Array
    q: jax.Array
    inside: jax.Array
    k: jax.Array
    remainder: jax.Array
    d: jax.Array
    expectation: jax.Array | None


def recur_blocks(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decay: jax.Array,
    beta: jax.Array | None,
    states: jax.Array,
    slots: jax.Array,
    starts: jax.Array,
    counts: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """See `states.recur_blocks`. It works in place if `states` is donated.

    The delta rule within a block is a triangular system, solved before the states are known (Yang et al., 2024,
    arXiv:2406.06484).
    """
    tokens, group = v.shape[1], v.shape[2] // q.shape[2]
    real = jnp.arange(tokens, dtype=jnp.int32)[None] < counts[:, None]

    def by_head(x: jax.Array) -> jax.Array:
        """Return (blocks, heads, tokens, numbers), with zeros for padding, so that it changes no state."""
        x = x.reshape(*x.shape[:3], -1)
        return jnp.moveaxis(jnp.where(real[..., None, None], x, 0.0), 2, 1)

    q, k = (jnp.repeat(by_head(x), group, axis=1) for x in (q, k))
    d, total, expectation = by_head(v), jnp.cumsum(by_head(decay), axis=2), None
    factors = jnp.exp(total)
    if beta is not None:
        keys = by_head(beta) * k
        inverse = _inverse(jnp.tril(_products(keys, k, total), -1))
        d, expectation = _dot(inverse, by_head(beta) * d), _dot(inverse, keys * factors)
    blocks = _Block(
        slots,
        (starts == 0) | (slots == len(states) - 1),
        q * factors,
        jnp.tril(_products(q, k, total)),
        jnp.swapaxes(k * jnp.exp(total[:, :, -1:] - total), -1, -2),
        jnp.swapaxes(factors[:, :, -1:], -1, -2),
        d,
        expectation,
    )
    states, o = lax.scan(_after, states, blocks)
    return jnp.moveaxis(o, 1, 2), states


def _after(states: jax.Array, block: _Block) -> tuple[jax.Array, jax.Array]:
    """Return the states after a block, and its results."""
    state = jnp.where(block.fresh, 0.0, lax.dynamic_index_in_dim(states, block.slot, keepdims=False))
    d = block.d if block.expectation is None else block.d - _dot(block.expectation, state)
    o = _dot(block.q, state) + _dot(block.inside, d)
    state = state * block.remainder + _dot(block.k, d)
    return lax.dynamic_update_index_in_dim(states, state, block.slot, 0), o


def recur_rows(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decay: jax.Array,
    beta: jax.Array | None,
    states: jax.Array,
    slots: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """See `states.recur_rows`. It works in place if `states` is donated."""
    group = v.shape[1] // q.shape[1]
    null = slots == len(states) - 1

    def cleared(x: jax.Array) -> jax.Array:
        return jnp.where(null.reshape(-1, *(1,) * (x.ndim - 1)), 0.0, x)

    q, k = (jnp.repeat(cleared(x), group, axis=1) for x in (q, k))
    v, state = cleared(v), cleared(states[slots])
    state = state * jnp.exp(cleared(decay)).reshape(*v.shape[:2], -1, 1)
    if beta is not None:
        v = cleared(beta)[..., None] * (v - jnp.sum(k[..., None] * state, axis=2))
    state = state + k[..., None] * v[:, :, None]
    return jnp.sum(q[..., None] * state, axis=2), _write(states, slots, state)


def _convolve(inputs: list[jax.Array], weight: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Return the sum of a token's inputs times their weights, the oldest first."""
    by_tap = weight.T.reshape(-1, *(1,) * (inputs[0].ndim - 1), len(weight))
    y = inputs[0] * by_tap[0]
    for x, w in zip(inputs[1:], by_tap[1:], strict=True):
        y += x * w
    return y if bias is None else y + bias.reshape(by_tap.shape[1:])


def _write(states: jax.Array, slots: jax.Array, rows: jax.Array) -> jax.Array:
    """Write the state of each row into its slot. XLA's CPU backend would copy all states for each row of a scatter."""

    def body(i: jax.Array, states: jax.Array) -> jax.Array:
        row = lax.dynamic_index_in_dim(rows, i, keepdims=False)
        updated: jax.Array = lax.dynamic_update_index_in_dim(states, row, slots[i], 0)
        return updated

    # A loop of one iteration would be inlined, and fused with other readers of the states, which then are copied.
    result: jax.Array = lax.fori_loop(0, lax.optimization_barrier(jnp.int32(len(rows))), body, states)
    return result


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply matrices in float32 on every device."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _products(x: jax.Array, k: jax.Array, total: jax.Array) -> jax.Array:
    """Return the products of x with earlier keys that decayed since, (..., tokens, tokens); later keys are arbitrary.

    A difference of total decays is at most 0, while the exponential of a negated sum would overflow.

    Args:
        x, k: (..., tokens, keys).
        total: (..., tokens, 1 or keys), the sums of the logarithms of decay up to each token.
    """
    decayed = jnp.exp(jnp.minimum(total[..., :, None, :] - total[..., None, :, :], 0.0))
    if total.shape[-1] == 1:
        return _dot(x, jnp.swapaxes(k, -1, -2)) * decayed[..., 0]
    return jnp.sum(x[..., :, None, :] * k[..., None, :, :] * decayed, axis=-1)


def _inverse(a: jax.Array) -> jax.Array:
    """Invert 1 + a for a strictly lower triangular, row by row.

    The sum of the powers of -a has only products, but cancels badly where keys are alike. Matrices of this size are too
    small for a TPU's matrix unit, so all of them are side by side in its lanes.

    Args:
        a: (..., tokens, tokens).
    """
    tokens = a.shape[-1]
    lanes = jnp.moveaxis(a.reshape(-1, tokens, tokens), 0, -1)

    def step(i: jax.Array, inverse: jax.Array) -> jax.Array:
        row = jnp.sum(lax.dynamic_index_in_dim(lanes, i, keepdims=False)[:, None] * inverse, axis=0)
        unit = jnp.where(jnp.arange(tokens, dtype=jnp.int32) == i, 1.0, 0.0)[:, None]
        after: jax.Array = lax.dynamic_update_index_in_dim(inverse, unit - row, i, 0)
        return after

    return jnp.moveaxis(lax.fori_loop(0, tokens, step, jnp.zeros_like(lanes)), -1, 0).reshape(a.shape)
