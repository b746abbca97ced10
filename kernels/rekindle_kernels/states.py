"""Operations of recurrent layers over the states of slots, with checks of arguments.

A request's tokens change the state of its slot. The last slot is the null slot, which only padding belongs to: its
content has no effect, not even NaN.
"""

from typing import Final

import jax

from rekindle_kernels.api import Implementation, operations_of

MOST_TAPS: Final = 16


def convolve_blocks(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    states: jax.Array,
    slots: jax.Array,
    starts: jax.Array,
    counts: jax.Array,
    *,
    implementation: Implementation,
) -> tuple[jax.Array, jax.Array]:
    """Convolve blocks of tokens causally with the inputs before them, each channel by itself, for prefill.

    `y[t] = bias + sum(weight[:, i] * x[t - (taps - 1) + i] for i in range(taps))`.

    Args:
        x: (blocks, block_tokens, channels) float32. Adjacent blocks of one slot continue one another.
        weight: (channels, taps) float32, of 2 to 16 taps; the last one multiplies the token itself.
        bias: (channels,) float32; None for none.
        states: (slots, taps - 1, channels) float32, the last inputs of each slot; updated in place if donated.
        slots: (blocks,) int32, the slot of each block; padding blocks are of the last slot.
        starts: (blocks,) int32, the position of a block's first token; with 0 the inputs before it are zeros.
        counts: (blocks,) int32, the real tokens of a block, before its padding.
        implementation: by name.

    Returns:
        y, like x, finite for padding; and the updated states.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    _check_convolution(x, weight, bias, states, 3)
    _check_places(len(x), slots, starts, counts)
    return operations_of(implementation).convolve_blocks(x, weight, bias, states, slots, starts, counts)


def convolve_rows(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    states: jax.Array,
    slots: jax.Array,
    *,
    implementation: Implementation,
) -> tuple[jax.Array, jax.Array]:
    """Convolve one more token of each row's slot, for decoding.

    Args and errors are those of `convolve_blocks`, except:
        x: (rows, channels) float32.
        slots: (rows,) int32; no slot occurs twice, except the last one.

    Returns:
        y, like x, finite for padding; and the updated states.
    """
    _check_convolution(x, weight, bias, states, 2)
    _check_places(len(x), slots)
    return operations_of(implementation).convolve_rows(x, weight, bias, states, slots)


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
    *,
    implementation: Implementation,
) -> tuple[jax.Array, jax.Array]:
    """Compute linear attention with decay over blocks of tokens and the states before them, for prefill.

    Each head has a matrix S as its state. A token changes it to `exp(decay) * S + outer(k, d)`, and gives `q @ S` with
    the changed S. Without beta, d is v, as in Mamba-2 (Dao and Gu, 2024, arXiv:2405.21060). With beta, d is
    `beta * (v - k @ (exp(decay) * S))`, the gated delta rule (Yang et al., 2024, arXiv:2412.06464), which Kimi Linear
    has with a decay of each row of S (2025, arXiv:2510.26692).

    Args:
        q, k: (blocks, block_tokens, key_heads, keys) float32. Adjacent blocks of one slot continue one another.
        v: (blocks, block_tokens, heads, values) float32. Adjacent heads share a key head; `key_heads` divides `heads`.
        decay: (blocks, block_tokens, heads) or (blocks, block_tokens, heads, keys) float32, finite logarithms <= 0.
        beta: (blocks, block_tokens, heads) float32; None for no delta rule.
        states: (slots, heads, keys, values) float32; updated in place if donated.
        slots: (blocks,) int32, the slot of each block; padding blocks are of the last slot.
        starts: (blocks,) int32, the position of a block's first token; with 0 the state before it is zeros.
        counts: (blocks,) int32, the real tokens of a block, before its padding.
        implementation: by name.

    Returns:
        (blocks, block_tokens, heads, values) float32, finite for padding; and the updated states.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    _check_recurrence(q, k, v, decay, beta, states, 4)
    _check_places(len(v), slots, starts, counts)
    return operations_of(implementation).recur_blocks(q, k, v, decay, beta, states, slots, starts, counts)


def recur_rows(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decay: jax.Array,
    beta: jax.Array | None,
    states: jax.Array,
    slots: jax.Array,
    *,
    implementation: Implementation,
) -> tuple[jax.Array, jax.Array]:
    """Compute linear attention with decay of one more token of each row's slot, for decoding.

    Args and errors are those of `recur_blocks`, except:
        q, k, v, decay, beta: (rows, ...), without `block_tokens`.
        slots: (rows,) int32; no slot occurs twice, except the last one.

    Returns:
        (rows, heads, values) float32, finite for padding; and the updated states.
    """
    _check_recurrence(q, k, v, decay, beta, states, 3)
    _check_places(len(v), slots)
    return operations_of(implementation).recur_rows(q, k, v, decay, beta, states, slots)


def _check_convolution(
    x: jax.Array, weight: jax.Array, bias: jax.Array | None, states: jax.Array, dimensions: int
) -> None:
    if x.ndim != dimensions or weight.ndim != 2 or len(weight) != x.shape[-1]:
        raise ValueError(f"a convolution over {x.shape} has weights (channels, taps), got {weight.shape}")
    channels, taps = weight.shape
    if not 2 <= taps <= MOST_TAPS:
        raise ValueError(f"a convolution has 2 to {MOST_TAPS} taps, got {taps}")
    if bias is not None and bias.shape != (channels,):
        raise ValueError(f"the bias of {channels} channels must be ({channels},), got {bias.shape}")
    _check_states(states, (taps - 1, channels))


def _check_recurrence(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decay: jax.Array,
    beta: jax.Array | None,
    states: jax.Array,
    dimensions: int,
) -> None:
    if q.shape != k.shape or {q.ndim, v.ndim} != {dimensions} or q.shape[:-2] != v.shape[:-2]:
        raise ValueError(f"queries {q.shape}, keys {k.shape} and values {v.shape} do not fit together")
    *tokens, heads, values = v.shape
    key_heads, keys = q.shape[-2:]
    if heads % key_heads:
        raise ValueError(f"{heads} heads cannot share {key_heads} key heads evenly")
    of_heads = (*tokens, heads)
    if decay.shape not in (of_heads, (*of_heads, keys)):
        raise ValueError(f"decay must be {of_heads} or {(*of_heads, keys)}, got {decay.shape}")
    if beta is not None and beta.shape != of_heads:
        raise ValueError(f"beta must be {of_heads}, got {beta.shape}")
    _check_states(states, (heads, keys, values))


def _check_states(states: jax.Array, shape: tuple[int, ...]) -> None:
    if len(states) < 1 or states.shape[1:] != shape:
        raise ValueError(f"states must be (slots, {', '.join(map(str, shape))}), got {states.shape}")


def _check_places(count: int, *places: jax.Array) -> None:
    if any(each.shape != (count,) for each in places):
        raise ValueError(f"slots, starts and counts must be ({count},), got {[each.shape for each in places]}")
