"""The sampling parameters of a batch as the step sees them: one packed row of int32 a slot."""

from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rekindle.request import Request

COLDEST = 1e-6
"""Temperatures above 0 and below this are taken as this: float32 has no room for what they would do."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The sampling parameters of each row of a batch, all (rows,).

    Attributes:
        temperature: float32; 0 is greedy.
        top_p: float32 in (0, 1]; 1 keeps all.
        min_p: float32 in [0, 1]; 0 keeps all.
        repetition_penalty, frequency_penalty, presence_penalty: float32; 1, 0 and 0 change nothing.
        top_k: int32; 0 keeps all.
        seed: int32.
        free_from: int32, the first position that an end token may take.
        adjusted: int32, 1 where the logits are changed before the temperature.
        scored: int32, 1 where log-probabilities are wanted.
    """

    temperature: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    repetition_penalty: jax.Array
    frequency_penalty: jax.Array
    presence_penalty: jax.Array
    top_k: jax.Array
    seed: jax.Array
    free_from: jax.Array
    adjusted: jax.Array
    scored: jax.Array

    @classmethod
    def unpack(cls, packed: jax.Array) -> "SamplingRows":
        """From (rows, COLUMNS) int32, as `packed_row` writes them."""
        columns = {field.name: packed[:, place] for place, field in enumerate(fields(cls))}
        floats = {name: lax.bitcast_convert_type(columns[name], jnp.float32) for name in FLOATS}
        return cls(**(columns | floats))


FLOATS = tuple(field.name for field in fields(SamplingRows))[:6]
COLUMNS = len(fields(SamplingRows))


def packed_row(request: Request) -> np.ndarray[Any, np.dtype[np.int32]]:
    """A request's row of `SamplingRows`: (COLUMNS,) int32 that holds the bits of the floats."""
    params = request.params
    row = np.zeros(COLUMNS, np.int32)
    row[: len(FLOATS)].view(np.float32)[:] = (
        max(params.temperature, COLDEST) if params.temperature > 0 else 0,
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.frequency_penalty,
        params.presence_penalty,
    )
    free_from = len(request.prompt) + params.min_tokens
    row[len(FLOATS) :] = (
        params.top_k,
        params.seed or 0,
        free_from,
        params.adjusts,
        params.logprobs is not None,
    )
    return row
