"""Marks of a request's tokens, and their penalties, for `sampling.adjust`."""

from dataclasses import dataclass
from typing import Final

import jax

IN_PROMPT: Final = 1
END: Final = 2
GENERATED: Final = 4
"""The fields of a mark: a bit for prompt tokens, a bit for end tokens, then the count of the token in the output."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Penalties:
    """Each row's penalties by the marks of its tokens, all (rows,).

    Attributes:
        repetition: float32, the divisor of positive logits and the factor of others, for tokens of the prompt and the
            output; 1 changes nothing (Keskar et al., 2019, arXiv:1909.05858).
        frequency: float32, subtracted once per occurrence in the output.
        presence: float32, subtracted once from each token of the output.
        too_early: bool, whether end tokens are banned.
    """

    repetition: jax.Array
    frequency: jax.Array
    presence: jax.Array
    too_early: jax.Array
