"""Changes of logits before the temperature: bias, penalties and bans, with a row over the vocabulary per slot.

Most requests need none. For the others, a small program writes the rows of their slot before their first sampled token.
The rows stay on the device, where each sampled token is recorded.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rekindle.core.buckets import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, MAX_PROCESSOR_ARGS
from rekindle.core.device.sampling.rows import ADJUSTED, SamplingRows
from rekindle_kernels import sampling
from rekindle_kernels.api import Implementation
from rekindle_kernels.penalties import GENERATED, Penalties

RECENT = MAX_BAD_WORD_TOKENS - 1
_WORDS = MAX_BAD_WORDS * MAX_BAD_WORD_TOKENS

Array = np.ndarray[Any, np.dtype[np.int32]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Adjustments:
    """The state of each slot. The rows of a request without adjustments are stale and never read.

    Attributes:
        bias: (slots, vocabulary) float32, added to the logits; minus infinity bans a token.
        marks: (slots, vocabulary) int32, the bits and counts of `rekindle_kernels.penalties`.
        recent: (slots, RECENT) int32, the newest tokens of the request, oldest first; -1 before its start.
        bad_words: (slots, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS) int32, aligned to the right and padded with -1.
        processor_args: (slots, MAX_PROCESSOR_ARGS) float32, for the session's logits processor.
    """

    bias: jax.Array
    marks: jax.Array
    recent: jax.Array
    bad_words: jax.Array
    processor_args: jax.Array

    @classmethod
    def empty(cls, slots: int, vocabulary: int) -> "Adjustments":
        """Return the state of unused slots."""
        return cls(
            bias=jnp.zeros((slots, vocabulary), jnp.float32),
            marks=jnp.zeros((slots, vocabulary), jnp.int32),
            recent=jnp.full((slots, RECENT), -1, jnp.int32),
            bad_words=jnp.full((slots, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), -1, jnp.int32),
            processor_args=jnp.zeros((slots, MAX_PROCESSOR_ARGS), jnp.float32),
        )


@dataclass(frozen=True, slots=True)
class PackedSlot:
    """The rows of one slot: views of one int32 array, on the host or on the device.

    Attributes:
        bias: (vocabulary,), the bits of float32.
        marks: (vocabulary,).
        recent: (RECENT,).
        bad_words: (MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS).
        processor_args: (MAX_PROCESSOR_ARGS,), the bits of float32.
    """

    bias: Any
    marks: Any
    recent: Any
    bad_words: Any
    processor_args: Any

    @classmethod
    def of(cls, packed: Any, vocabulary: int) -> "PackedSlot":
        """Return views of an array with the layout of `no_adjustments`."""
        ends = np.cumsum([vocabulary, vocabulary, RECENT, _WORDS]).tolist()
        starts = [0, *ends]
        bias, marks, recent, words, args = (packed[start:end] for start, end in zip(starts, [*ends, None], strict=True))
        return cls(bias, marks, recent, words.reshape(MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), args)


def no_adjustments(vocabulary: int) -> Array:
    """Return the packed rows of a slot without adjustments, int32."""
    packed = np.zeros(2 * vocabulary + RECENT + _WORDS + MAX_PROCESSOR_ARGS, np.int32)
    slot = PackedSlot.of(packed, vocabulary)
    slot.recent[:] = slot.bad_words[:] = -1
    return packed


def enter_slot(adjustments: Adjustments, slot: jax.Array, packed: jax.Array) -> Adjustments:
    """Write the rows of one slot, () int32, from an array of `pack_adjustments`."""
    rows = PackedSlot.of(packed, adjustments.bias.shape[1])
    return Adjustments(
        bias=adjustments.bias.at[slot].set(lax.bitcast_convert_type(rows.bias, jnp.float32)),
        marks=adjustments.marks.at[slot].set(rows.marks),
        recent=adjustments.recent.at[slot].set(rows.recent),
        bad_words=adjustments.bad_words.at[slot].set(rows.bad_words),
        processor_args=adjustments.processor_args.at[slot].set(
            lax.bitcast_convert_type(rows.processor_args, jnp.float32)
        ),
    )


def adjust(
    columns: jax.Array,
    rows: SamplingRows,
    positions: jax.Array,
    adjustments: Adjustments,
    owners: jax.Array,
    implementation: Implementation = "xla",
) -> jax.Array:
    """Apply the adjustments of each row's slot to its logits.

    The order is: logit bias, repetition penalty (Keskar et al., 2019, arXiv:1909.05858) over prompt and output,
    frequency and presence penalty over the output, min tokens, bad words. Allowed tokens are part of the bias: a banned
    token stays banned in all later steps.

    Args:
        columns: (vocabulary, rows) float32, the logits.
        rows: the sampling parameters of the rows.
        positions: (rows,) int32, the position of the next token.
        adjustments: the adjustments of all slots.
        owners: (rows,) int32, the slot of each row.
        implementation: the kernel implementation.

    Returns:
        (vocabulary, rows) float32; rows without adjustments are unchanged.
    """
    has_adjustments = (rows.change_bits & ADJUSTED) > 0
    penalties = Penalties(
        rows.repetition_penalty, rows.frequency_penalty, rows.presence_penalty, positions < rows.free_from
    )
    slots = jnp.where(has_adjustments, owners, -1)
    columns = sampling.adjust(
        columns, adjustments.bias, adjustments.marks, slots, penalties, implementation=implementation
    )
    words = adjustments.bad_words[owners]
    before, last = words[:, :, :-1], words[:, :, -1]
    complete = ((before == adjustments.recent[owners][:, None]) | (before < 0)).all(-1) & (last >= 0)
    ban = complete & has_adjustments[:, None]
    result: jax.Array = lax.cond(ban.any(), _ban, lambda columns, *_: columns, columns, last, ban)
    return result


def _ban(columns: jax.Array, tokens: jax.Array, mask: jax.Array) -> jax.Array:
    """Ban the tokens (rows, any) of each row at the true entries of `mask`."""
    row = lax.broadcasted_iota(jnp.int32, tokens.shape, 0)
    return columns.at[jnp.maximum(tokens, 0), row].min(jnp.where(mask, -jnp.inf, jnp.inf))


def record_tokens(adjustments: Adjustments, owners: jax.Array, tokens: jax.Array) -> Adjustments:
    """Record each slot's new token. Writing all slots costs less than selecting some."""
    recent = jnp.concatenate([adjustments.recent[owners, 1:], tokens[:, None]], axis=1)
    return replace(
        adjustments,
        marks=adjustments.marks.at[owners, tokens].add(GENERATED),
        recent=adjustments.recent.at[owners].set(recent),
    )
