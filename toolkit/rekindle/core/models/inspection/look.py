"""Functions of a decoder for those who look inside: its activations over a sequence, and the logit lens."""

from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.core.layer_parts import PARTS
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import Decoder
from rekindle.core.models.inspection.recording import PatternMixer, Recorder
from rekindle.core.models.sequence import empty_memory
from rekindle.core.models.taps.interventions import Interventions, RowInterventions
from rekindle.core.models.vision.embedded import Embedded

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


def look(decoder: Decoder, inputs: LookInputs, states: int) -> tuple[jax.Array, jax.Array]:
    """Compute a sequence, and return activations (states, tokens, hidden) and patterns (patterns, tokens, tokens).

    Args:
        decoder: a whole decoder with one residual stream.
        inputs: the inputs.
        states: the number of activations to keep.
    """
    config, tokens = decoder.config, inputs.tokens
    positions = jnp.arange(len(tokens), dtype=jnp.int32)
    before = RowInterventions(inputs.interventions, jnp.zeros_like(positions), positions)
    recorder = Recorder(inputs.places, states, len(tokens), config.hidden_size, before)
    mixer = PatternMixer(config, inputs.heads, len(tokens), _group_ends(config, inputs, positions))
    lengths = jnp.broadcast_to(inputs.length, positions.shape)
    pictured, pictures, places = inputs.pictured, None, positions
    if pictured is not None:
        pictures = Embedded(pictured.values, pictured.rows)
        places = positions if pictured.coordinates is None else pictured.coordinates
    decoder(tokens, places, empty_memory(config), mixer, lengths, recorder, pictures)
    return recorder.states, mixer.patterns


def _group_ends(config: ModelConfig, inputs: LookInputs, positions: jax.Array) -> jax.Array | None:
    """Return the end of the positions of each token's image or text, (tokens,) int32; None for causal attention."""
    if config.both_ways:
        return jnp.maximum(positions + 1, inputs.length)
    if inputs.pictured is None or not config.images_both_ways:
        return None
    after = jnp.where(inputs.pictured.rows >= 0, len(positions), positions)
    return jnp.maximum(positions + 1, lax.cummin(after, reverse=True))


def lens(decoder: Decoder, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute the likeliest next tokens as if rows of a residual stream came from the last layer.

    The logit lens is from nostalgebraist, "interpreting GPT: the logit lens" (2020).

    Args:
        hidden: (rows, hidden) float32.

    Returns:
        (rows, LENS_TOKENS) int32 ids, the likeliest first, and their float32 log-probabilities.
    """
    logits = decoder.logits(hidden if decoder.norm is None else decoder.norm(hidden))
    logprobs, ids = lax.top_k(jax.nn.log_softmax(logits), LENS_TOKENS)
    return ids.astype(jnp.int32), logprobs
