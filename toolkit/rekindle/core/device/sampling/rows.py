"""Sampling parameters of a batch, stored as one packed int32 row per slot."""

from dataclasses import dataclass, fields
from typing import Final

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.core.buckets import MAX_END_IDS

OF_MODEL, OF_SAMPLED, OF_ALLOWED = 1, 2, 3
"""Source of requested log-probabilities: the model's distribution, the sampling distribution, or the model's again with
alternatives among the tokens that the changes allow."""
SOURCES: Final = {"model": OF_MODEL, "sampled": OF_SAMPLED, "allowed": OF_ALLOWED}
"""The sources by their names in `SamplingParams.logprobs_of`."""
ADJUSTED, PROCESSED, CONSTRAINED = 1, 2, 4
"""Bits of changes to the logits before the temperature, in order: adjustments, the session's processor, a mask."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The sampling parameters of each row of a batch, all (rows,) but the last.

    Attributes:
        temperature: float32; 0 is greedy.
        top_p: float32 in (0, 1]; 1 keeps all.
        min_p: float32 in [0, 1]; 0 keeps all.
        repetition_penalty, frequency_penalty, presence_penalty: float32; 1, 0 and 0 change nothing.
        top_k: int32; 0 keeps all.
        seed_low, seed_high: int32, the two words of a 64-bit seed.
        free_from: int32, the first position allowed for an end token.
        change_bits: int32, `ADJUSTED`, `PROCESSED` and `CONSTRAINED` bits; 0 for unchanged logits.
        logprobs_of: int32, `OF_MODEL`, `OF_SAMPLED` or `OF_ALLOWED`, or 0 without log-probabilities.
        ends: (rows, MAX_END_IDS) int32, the ids of its end tokens plus 1; 0 for none.
    """

    temperature: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    repetition_penalty: jax.Array
    frequency_penalty: jax.Array
    presence_penalty: jax.Array
    top_k: jax.Array
    seed_low: jax.Array
    seed_high: jax.Array
    free_from: jax.Array
    change_bits: jax.Array
    logprobs_of: jax.Array
    ends: jax.Array

    @classmethod
    def unpack(cls, packed: jax.Array) -> "SamplingRows":
        """Unpack (rows, COLUMNS) int32 from `pack_sampling`."""
        columns = {field.name: packed[:, place] for place, field in enumerate(fields(cls)[:-1])}
        floats = {name: lax.bitcast_convert_type(columns[name], jnp.float32) for name in FLOATS}
        return cls(**(columns | floats), ends=packed[:, -MAX_END_IDS:])

    def is_end(self, tokens: jax.Array) -> jax.Array:
        """Return True for each row whose token is one of its end tokens, (rows,) bool.

        Args:
            tokens: (rows,) int32, ids, or negative values in place of tokens.
        """
        return (tokens[:, None] + 1 == self.ends).any(1) & (tokens >= 0)


FLOATS = tuple(field.name for field in fields(SamplingRows))[:6]
COLUMNS = len(fields(SamplingRows)) - 1 + MAX_END_IDS
