"""Inputs and sizes of looks inside a decoder, without the functions."""

from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from rekindle.core.layer_parts import PARTS
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.taps.interventions import Interventions

LENS_ROWS: Final = 64
"""Rows of `lens` in one run."""
LENS_TOKENS: Final = 10
"""The likeliest tokens from `lens`."""


class Look(NamedTuple):
    """The padded shape of one look at a sequence.

    Attributes:
        tokens: room for tokens.
        states: room for activations of all tokens.
        patterns: room for attention patterns.
        pictures: whether some tokens are images.
    """

    tokens: int
    states: int
    patterns: int
    pictures: bool = False


class Pictured(NamedTuple):
    """The images among the tokens of a look, as arrays.

    Attributes:
        values: (tokens, width) float32, rows as in `Embedded.buffer`; those of other tokens have no meaning.
        rows: (tokens,) int32, the index of each token of an image, -1 for other tokens.
        coordinates: (3, tokens) int32, the time, row and column of each token; None for positions by index.
    """

    values: jax.Array
    rows: jax.Array
    coordinates: jax.Array | None

    @classmethod
    def forms(cls, tokens: int, width: int, *, coordinates: bool) -> Any:
        """Return the shapes and dtypes of the arrays."""
        forms: Any = (
            jax.ShapeDtypeStruct((tokens, width), jnp.dtype(jnp.float32)),
            jax.ShapeDtypeStruct((tokens,), jnp.dtype(jnp.int32)),
            jax.ShapeDtypeStruct((3, tokens), jnp.dtype(jnp.int32)) if coordinates else None,
        )
        return cls(*forms)


class LookInputs(NamedTuple):
    """The inputs of a look, as arrays.

    Attributes:
        tokens: (tokens,) int32 ids, with any padding at the end.
        length: () int32, the number of tokens without padding.
        places: (layers + 1, parts) int32, see `Recorder`.
        heads: (patterns, 2) int32, see `PatternMixer`.
        interventions: those of the sequence, in one slot.
        pictured: the embeddings of images; None for a text.
    """

    tokens: jax.Array
    length: jax.Array
    places: jax.Array
    heads: jax.Array
    interventions: Interventions
    pictured: Pictured | None = None

    @classmethod
    def forms(cls, config: ModelConfig, shape: Look, width: int) -> "LookInputs":
        """Return the shapes and dtypes of the inputs, given the numbers of a token of an image."""

        def integers(*sizes: int) -> Any:
            return jax.ShapeDtypeStruct(sizes, jnp.dtype(jnp.int32))

        places = integers(len(config.layers) + 1, len(PARTS))
        interventions = Interventions.forms((1,), config.hidden_size)
        pictured = Pictured.forms(shape.tokens, width, coordinates=config.takes_coordinates) if shape.pictures else None
        return cls(integers(shape.tokens), integers(), places, integers(shape.patterns, 2), interventions, pictured)
