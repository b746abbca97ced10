"""What `sampling.adjust` knows of the tokens of a request, and how it weighs them."""

from dataclasses import dataclass
from typing import Final

import jax

IN_PROMPT: Final = 1
END: Final = 2
GENERATED: Final = 4
"""The bits of a mark: the token is in the prompt; it ends the request; the other bits count how often it was
generated."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Penalties:
    """The weights that each row gives to the marks of its tokens, all (rows,).

    Attributes:
        repetition: float32, the divisor of positive logits and the factor of others, for tokens that are in the prompt
            or were generated; 1 changes nothing (Keskar et al., 2019, arXiv:1909.05858).
        frequency: float32, subtracted for each time that a token was generated.
        presence: float32, subtracted once from tokens that were generated.
        too_early: bool, whether the ends are banned.
    """

    repetition: jax.Array
    frequency: jax.Array
    presence: jax.Array
    too_early: jax.Array
