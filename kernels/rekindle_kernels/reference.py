"""Reference of each operation in plain JAX, short and slow, for comparison with every implementation.

It computes in float32, or in float64 for arguments of float64.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rekindle_kernels.inputs import Input
from rekindle_kernels.storage import Weight
from rekindle_kernels.xla import scaled
from rekindle_kernels.xla.gate import gate
from rekindle_kernels.xla.halves import halves
from rekindle_kernels.xla.linear import look_up, materialize, pack, packed, widened
from rekindle_kernels.xla.norm import layer_norm, rms_norm
from rekindle_kernels.xla.rotary import rotate
from rekindle_kernels.xla.sampling import adjust, argmax, count_above, draw, mass, nth_largest
from rekindle_kernels.xla.stored import pack_blocks


def unsupported_reason(shape: tuple[int, ...], dtype: jnp.dtype, weights: jnp.dtype | None = None) -> str | None:
    """See `Operations.unsupported_reason`."""
    return None if jnp.issubdtype(dtype, jnp.floating) or dtype == jnp.int8 else "numbers must be floating, or int8"


def empty(shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """See `api.empty`."""
    return jnp.zeros(scaled.stored_shape(shape) if dtype == jnp.int8 else shape, dtype)


def attend_rows(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    visible: jax.Array,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
) -> jax.Array:
    """See `api.attend_rows`."""
    return attend(q[:, None], pages, page_table, visible[:, None], scale, window, soft_cap, sinks)[:, 0]


def attend_blocks(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    block_sequence: jax.Array,
    block_start: jax.Array,
    visible_until: jax.Array | None = None,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
    bias: jax.Array | None = None,
) -> jax.Array:
    """See `api.attend_blocks`."""
    visible = block_start[:, None] + 1 + jnp.arange(q.shape[1], dtype=jnp.int32)[None]
    visible = jnp.where(block_start[:, None] < 0, 0, visible)
    until = None if visible_until is None else jnp.where(visible > 0, visible_until, 0)
    return attend(q, pages, page_table[block_sequence], visible, scale, window, soft_cap, sinks, until, bias)


def attend(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    visible: jax.Array,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
    until: jax.Array | None = None,
    bias: jax.Array | None = None,
) -> jax.Array:
    """Compute attention of each query over the positions `[visible - window, until)` of its sequence.

    Shapes: q and the result (sequences, queries, heads, head_dim), visible and until (sequences, queries). Without
    `until`, it is `visible`.
    """
    kv_heads = pages.shape[2]
    group = q.shape[2] // kv_heads
    dtype = jnp.float64 if q.dtype == jnp.float64 else jnp.float32

    def one(q: jax.Array, table: jax.Array, visible: jax.Array, until: jax.Array) -> jax.Array:
        rows = jnp.moveaxis(pages[table], 3, 1)
        context = (scaled.dequantize(rows) if pages.dtype == jnp.int8 else rows).astype(dtype)
        sides = jnp.repeat(context.reshape(-1, *context.shape[2:]), group, axis=2)
        keys, values = sides[:, 0], sides[:, -1]
        positions = jnp.arange(len(keys), dtype=jnp.int32)[None]
        mask = positions < until[:, None]
        if window is not None:
            mask &= positions >= visible[:, None] - window
        values = jnp.where(mask.any(0)[:, None, None], values, 0.0)  # a weight of 0 would not hide NaN
        scores = jnp.einsum("qhd,shd->qhs", q.astype(dtype), keys) * scale
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        if bias is not None:
            farthest = bias.shape[1] // 2
            distances = jnp.clip(positions - (visible[:, None] - 1), -farthest, farthest)
            scores += jnp.moveaxis(bias[:, distances + farthest], 0, 1)
        scores = jnp.where(mask[:, None, :], scores, -jnp.inf)
        if sinks is not None:
            sink_scores = jnp.broadcast_to(sinks.astype(dtype)[None, :, None], (*scores.shape[:2], 1))
            scores = jnp.concatenate([scores, sink_scores], axis=-1)
        weights = jax.nn.softmax(scores, axis=-1)[..., : len(keys)]
        return jnp.einsum("qhs,shd->qhd", jnp.where(mask[:, None, :], weights, 0.0), values)

    return jax.vmap(one)(q, jnp.clip(page_table, 0, len(pages) - 1), visible, visible if until is None else until)


def write(pages: jax.Array, kv: jax.Array, page_ids: jax.Array, offsets: jax.Array) -> jax.Array:
    """See `api.write`."""
    kv = scaled.quantize(kv) if pages.dtype == jnp.int8 else kv
    for block, page, offset in zip(kv, page_ids, offsets, strict=True):
        rows = offset + jnp.arange(block.shape[2])
        pages = pages.at[page, :, :, rows].set(jnp.moveaxis(block, 2, 0).astype(pages.dtype))
    return pages


def read_page(pages: jax.Array, page_id: jax.Array) -> jax.Array:
    """See `api.read_page`."""
    return pages[page_id]


def write_page(pages: jax.Array, page_id: jax.Array, content: jax.Array) -> jax.Array:
    """See `api.write_page`."""
    return pages.at[page_id].set(content)


def linear(x: Input, weight: Weight, outputs: int, onto: jax.Array | None = None) -> jax.Array:
    """See `layers.linear`."""
    x, weight = widened(materialize(x), weight)
    dtype = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    if weight.dtype == jnp.float16:
        numbers, factors = halves(x.astype(jnp.float32))
        x = numbers.astype(dtype) * factors
    else:
        x = x.astype(weight.dtype).astype(dtype)
    y = x @ weight.astype(dtype).T
    return y if onto is None else onto + y


def linear_columns(x: jax.Array, weight: Weight, outputs: int) -> jax.Array:
    """See `layers.linear_columns`."""
    return linear(x, weight, outputs).T


def grouped_linear(x: jax.Array, counts: jax.Array | None, weight: Weight, outputs: int) -> jax.Array:
    """See `layers.grouped_linear`."""
    x, weight = widened(x, weight)
    counts = jnp.full(len(weight), len(x) // len(weight)) if counts is None else counts
    group = jnp.repeat(jnp.arange(len(counts)), counts, total_repeat_length=len(x))
    return jax.vmap(lambda row, of: linear(row[None], weight[of], outputs)[0])(x, group)


def low_rank(
    x: jax.Array, groups: jax.Array, first: jax.Array, second: jax.Array, sizes: tuple[int, int], onto: jax.Array
) -> jax.Array:
    """See `layers.low_rank`."""
    (rank, outputs), group = sizes, jnp.minimum(groups, len(first) - 1)
    y = jax.vmap(lambda row, of: linear(linear(row[None], first[of], rank), second[of], outputs)[0])(x, group)
    return onto + jnp.where((groups < len(first))[:, None], y, 0)


def convolve_blocks(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    states: jax.Array,
    slots: jax.Array,
    starts: jax.Array,
    counts: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """See `states.convolve_blocks`."""

    def one(before: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        window = jnp.concatenate([before, x[None]])
        y = jnp.sum(window * weight.T, axis=0)
        return window[1:], y if bias is None else y + bias

    return _by_token(one, states, slots, starts, counts, x)


def convolve_rows(
    x: jax.Array, weight: jax.Array, bias: jax.Array | None, states: jax.Array, slots: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """See `states.convolve_rows`."""
    ones = jnp.ones_like(slots)
    y, states = convolve_blocks(x[:, None], weight, bias, states, slots, ones, ones)
    return y[:, 0], states


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
    """See `states.recur_blocks`."""
    group = v.shape[2] // q.shape[2]

    def one(state: jax.Array, token: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, d, decay, *beta = token
        q, k = jnp.repeat(q, group, axis=0), jnp.repeat(k, group, axis=0)
        state = state * jnp.exp(decay)[:, :, None]
        if beta:
            d = beta[0][:, None] * (d - jnp.einsum("hk,hkv->hv", k, state))
        state = state + k[:, :, None] * d[:, None, :]
        return state, jnp.einsum("hk,hkv->hv", q, state)

    tokens = (q, k, v, decay.reshape(*v.shape[:3], -1), *(() if beta is None else (beta,)))
    return _by_token(one, states, slots, starts, counts, tokens)


def recur_rows(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decay: jax.Array,
    beta: jax.Array | None,
    states: jax.Array,
    slots: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """See `states.recur_rows`."""
    ones, betas = jnp.ones_like(slots), None if beta is None else beta[:, None]
    o, states = recur_blocks(q[:, None], k[:, None], v[:, None], decay[:, None], betas, states, slots, ones, ones)
    return o[:, 0], states


def _by_token(
    one: Callable[[jax.Array, Any], tuple[jax.Array, jax.Array]],
    states: jax.Array,
    slots: jax.Array,
    starts: jax.Array,
    counts: jax.Array,
    tokens: Any,
) -> tuple[jax.Array, jax.Array]:
    """Update the states of slots by one token after the other; padding changes nothing and gives zeros.

    Args:
        one: returns a state after a token, and the token's result.
        states, slots, starts, counts: see `states.recur_blocks`.
        tokens: arrays (blocks, block_tokens, ...).
    """
    first = jax.tree.leaves(tokens)[0]
    blocks, length = first.shape[:2]
    place = jnp.arange(length, dtype=jnp.int32)[None]
    real = (place < counts[:, None]) & (slots[:, None] != len(states) - 1)
    fresh = (place == 0) & (starts[:, None] == 0)

    def step(states: jax.Array, token: tuple[jax.Array, jax.Array, jax.Array, Any]) -> tuple[jax.Array, jax.Array]:
        slot, real, fresh, arrays = token
        before = states[slot]
        after, result = one(jnp.where(fresh, 0.0, before), arrays)
        return states.at[slot].set(jnp.where(real, after, before)), jnp.where(real, result, 0.0)

    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (real, fresh, tokens))
    states, results = lax.scan(step, states, (jnp.repeat(slots, length), *flat))
    return results.reshape(blocks, length, *results.shape[1:]), states
