"""Changes of logits before the temperature: bias, penalties and bans, as rows over the vocabulary, one a slot.

Most requests need none. For one that does, a small program writes the rows of its slot before its first token is
sampled. They stay on the device, where each sampled token is recorded.
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
    """The state of each slot. The rows of a request that adjusts nothing are stale and not read.

    Attributes:
        bias: (slots, vocabulary) float32, added to the logits; minus infinity bans a token.
        marks: (slots, vocabulary) int32, of the bits in `rekindle_kernels.penalties`.
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
        """Return the state of slots that no request has entered."""
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
        """Return views of an array that is as long as that of `no_adjustments`."""
        ends = np.cumsum([vocabulary, vocabulary, RECENT, _WORDS]).tolist()
        starts = [0, *ends]
        bias, marks, recent, words, args = (packed[start:end] for start, end in zip(starts, [*ends, None], strict=True))
        return cls(bias, marks, recent, words.reshape(MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), args)


def no_adjustments(vocabulary: int) -> Array:
    """Return the packed rows of a slot that change nothing, int32."""
    packed = np.zeros(2 * vocabulary + RECENT + _WORDS + MAX_PROCESSOR_ARGS, np.int32)
    slot = PackedSlot.of(packed, vocabulary)
    slot.recent[:] = slot.bad_words[:] = -1
    return packed


def enter_slot(adjustments: Adjustments, slot: jax.Array, packed: jax.Array) -> Adjustments:
    """Write the rows of one slot, () int32, as `pack_adjustments` packs them."""
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
    """Apply, in this order: logit bias, repetition penalty (Keskar et al., 2019, arXiv:1909.05858) over prompt and
    output, frequency and presence penalty over the output, min tokens, bad words. Allowed tokens are part of the bias:
    a banned token stays banned whatever follows.

    Args:
        columns: (vocabulary, rows) float32, the logits.
        positions: (rows,) int32, the position of the next token.
        adjustments: of all slots.
        owners: (rows,) int32, the slot of each row.
        implementation: of the kernels.

    Returns:
        (vocabulary, rows) float32; rows that adjust nothing stay as they are.
    """
    adjusted = (rows.adjusted & ADJUSTED) > 0
    penalties = Penalties(
        rows.repetition_penalty, rows.frequency_penalty, rows.presence_penalty, positions < rows.free_from
    )
    of_slots = jnp.where(adjusted, owners, -1)
    columns = sampling.adjust(
        columns, adjustments.bias, adjustments.marks, of_slots, penalties, implementation=implementation
    )
    words = adjustments.bad_words[owners]
    before, last = words[:, :, :-1], words[:, :, -1]
    complete = ((before == adjustments.recent[owners][:, None]) | (before < 0)).all(-1) & (last >= 0)
    banned = complete & adjusted[:, None]
    changed: jax.Array = lax.cond(banned.any(), _ban, lambda columns, *_: columns, columns, last, banned)
    return changed


def _ban(columns: jax.Array, tokens: jax.Array, banned: jax.Array) -> jax.Array:
    """Ban tokens (rows, any) of each row where `banned` is true."""
    row = lax.broadcasted_iota(jnp.int32, tokens.shape, 0)
    return columns.at[jnp.maximum(tokens, 0), row].min(jnp.where(banned, -jnp.inf, jnp.inf))


def record_tokens(adjustments: Adjustments, owners: jax.Array, tokens: jax.Array) -> Adjustments:
    """Record each slot's new token. All slots are written, which costs less than choosing those that need it."""
    recent = jnp.concatenate([adjustments.recent[owners, 1:], tokens[:, None]], axis=1)
    return replace(
        adjustments,
        marks=adjustments.marks.at[owners, tokens].add(GENERATED),
        recent=adjustments.recent.at[owners].set(recent),
    )
