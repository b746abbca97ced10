"""Functions of a decoder for those who look inside: its activations over a sequence, and the logit lens."""

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import Decoder
from rekindle.core.models.inspection.inputs import LENS_TOKENS, LookInputs
from rekindle.core.models.inspection.recording import PatternMixer, Recorder
from rekindle.core.models.sequence import empty_memory
from rekindle.core.models.taps.interventions import RowInterventions
from rekindle.core.models.vision.embedded import Embedded


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
