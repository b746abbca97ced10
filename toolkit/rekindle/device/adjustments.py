"""Changes of logits before the temperature: bias, penalties and bans, as rows over the vocabulary, one a slot.

Most requests need none. For one that does, a small program writes the rows of its slot before its first token is
sampled. They stay on the device, where each sampled token is recorded.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rekindle.buckets import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS
from rekindle.device.sampling_rows import SamplingRows

IN_PROMPT, END, GENERATED = 1, 2, 4
"""The bits of a mark: the token is in the prompt; it ends the request; the other bits count how often it was
generated."""
RECENT = MAX_BAD_WORD_TOKENS - 1

Array = np.ndarray[Any, np.dtype[np.int32]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Adjustments:
    """The state of each slot. The rows of a request that adjusts nothing are stale and not read.

    Attributes:
        bias: (slots, vocabulary) float32, added to the logits; minus infinity bans a token.
        marks: (slots, vocabulary) int32, see `IN_PROMPT`.
        recent: (slots, RECENT) int32, the newest tokens of the request, oldest first; -1 before its start.
        bad_words: (slots, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS) int32, aligned to the right and padded with -1.
    """

    bias: jax.Array
    marks: jax.Array
    recent: jax.Array
    bad_words: jax.Array

    @classmethod
    def empty(cls, slots: int, vocabulary: int) -> "Adjustments":
        """Return the state of slots that no request has entered."""
        return cls(
            bias=jnp.zeros((slots, vocabulary), jnp.float32),
            marks=jnp.zeros((slots, vocabulary), jnp.int32),
            recent=jnp.full((slots, RECENT), -1, jnp.int32),
            bad_words=jnp.full((slots, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), -1, jnp.int32),
        )


def no_adjustments(vocabulary: int) -> Array:
    """Return packed rows of one slot that change nothing."""
    packed = np.zeros(2 * vocabulary + RECENT + MAX_BAD_WORDS * MAX_BAD_WORD_TOKENS, np.int32)
    packed[2 * vocabulary :] = -1
    return packed


def unpack_adjustments(packed: Any, vocabulary: int) -> Any:
    """Return the bias, marks, recent tokens and bad words of packed rows, all one-dimensional and int32."""
    recent = 2 * vocabulary + RECENT
    return packed[:vocabulary], packed[vocabulary : 2 * vocabulary], packed[2 * vocabulary : recent], packed[recent:]


def enter_slot(adjustments: Adjustments, slot: jax.Array, packed: jax.Array) -> Adjustments:
    """Write the rows of one slot, () int32, as `pack_adjustments` packs them."""
    bias, marks, recent, bad_words = unpack_adjustments(packed, adjustments.bias.shape[1])
    return Adjustments(
        bias=adjustments.bias.at[slot].set(lax.bitcast_convert_type(bias, jnp.float32)),
        marks=adjustments.marks.at[slot].set(marks),
        recent=adjustments.recent.at[slot].set(recent),
        bad_words=adjustments.bad_words.at[slot].set(bad_words.reshape(MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS)),
    )


def adjust(
    logits: jax.Array, rows: SamplingRows, positions: jax.Array, adjustments: Adjustments, owners: jax.Array
) -> jax.Array:
    """Apply, in this order: logit bias, repetition penalty (Keskar et al., 2019, arXiv:1909.05858) over prompt and
    output, frequency and presence penalty over the output, bad words, min tokens. Allowed tokens are part of the bias:
    a banned token stays banned whatever follows.

    Args:
        logits: (rows, vocabulary) float32.
        positions: (rows,) int32, the position of the next token.
        adjustments: of all slots.
        owners: (rows,) int32, the slot of each row.

    Returns:
        (rows, vocabulary) float32.
    """
    marks = adjustments.marks[owners]
    logits = logits + adjustments.bias[owners]
    penalty = rows.repetition_penalty[:, None]
    repeated = jnp.where(logits > 0, logits / penalty, logits * penalty)
    logits = jnp.where((marks & ~END) != 0, repeated, logits)
    times = marks // GENERATED
    logits -= times.astype(jnp.float32) * rows.frequency_penalty[:, None]
    logits -= jnp.where(times > 0, rows.presence_penalty[:, None], 0.0)
    logits = _ban_words(logits, adjustments.bad_words[owners], adjustments.recent[owners])
    too_early = (positions < rows.free_from)[:, None]
    return jnp.where(too_early & ((marks & END) != 0), -jnp.inf, logits)


def _ban_words(logits: jax.Array, words: jax.Array, recent: jax.Array) -> jax.Array:
    """Ban the last token of each word whose other tokens are the newest ones of the request."""
    before, last = words[:, :, :-1], words[:, :, -1]
    complete = ((before == recent[:, None]) | (before < 0)).all(-1) & (last >= 0)
    row = lax.broadcasted_iota(jnp.int32, last.shape, 0)
    return logits.at[row, jnp.maximum(last, 0)].min(jnp.where(complete, -jnp.inf, jnp.inf))


def record_tokens(adjustments: Adjustments, owners: jax.Array, tokens: jax.Array) -> Adjustments:
    """Record each slot's new token. All slots are written, which costs less than choosing those that need it."""
    recent = jnp.concatenate([adjustments.recent[owners, 1:], tokens[:, None]], axis=1)
    return Adjustments(
        bias=adjustments.bias,
        marks=adjustments.marks.at[owners, tokens].add(GENERATED),
        recent=adjustments.recent.at[owners].set(recent),
        bad_words=adjustments.bad_words,
    )
