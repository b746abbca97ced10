"""The draft head in a tick: a guess of the token after each new one, to be verified in a later tick."""

import jax
import jax.numpy as jnp

from rekindle.core.device.inputs import TickInputs
from rekindle.core.models.decoder import Decoder
from rekindle.core.models.mixing import LayerMemory, Mixer
from rekindle_kernels.sampling import argmax


def propose(
    decoder: Decoder,
    memory: LayerMemory,
    mixer: Mixer,
    inputs: TickInputs[jax.Array],
    hidden: jax.Array,
    positions: jax.Array,
    lengths: jax.Array,
    tokens: jax.Array,
    null_slot: int,
) -> tuple[LayerMemory, jax.Array]:
    """Run the draft head on all tokens of a tick.

    The head sees each token with its successor: in prompts the next token, elsewhere the new one. Its keys and values
    lie in the same pages at the same positions as those of the layers. After a wrong draft they are written again.

    Args:
        decoder: a decoder with a draft head.
        memory, hidden: the results of its layers.
        mixer, positions, lengths: the arguments of its layers.
        inputs: the tick's.
        tokens: (samples + decode_rows,) int32, the new tokens; a negative value for none, as after a wrong draft.
        null_slot: the slot of padding.

    Returns:
        The memory, and (samples + decode_rows,) int32, the likeliest token after each new one.
    """
    samples, prefill = len(inputs.sample_slot), len(inputs.tokens)
    tokens = jnp.maximum(tokens, 0)
    places = jnp.where(inputs.sample_slot == null_slot, prefill, inputs.sample_index)
    in_prompts = inputs.following.at[places].set(tokens[:samples], mode="drop")
    following = jnp.concatenate([in_prompts, tokens[samples:]])
    hidden, memory = decoder.draft(following, positions, hidden, memory, mixer, lengths)
    last = jnp.concatenate([hidden[inputs.sample_index], hidden[prefill:]])
    columns = decoder.logits_by_token(last)
    return memory, argmax(columns, implementation=decoder.implementation)
