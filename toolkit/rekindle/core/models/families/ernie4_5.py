"""Ernie 4.5: a Llama with an interleaved rope, and with all biases or none."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family, read_llama


def read(keys: Keys) -> ModelConfig:
    """Read an Ernie 4.5."""
    model, bias = read_llama(keys, theta=500_000.0), keys.flag("use_bias")
    return replace(
        model,
        attention=replace(model.attention, qkv_bias=bias, out_bias=bias),
        feed_forward=replace(model.feed_forward, bias=bias),
        layers=tuple(
            replace(layer, rope=layer.rope and replace(layer.rope, interleaved=True)) for layer in model.layers
        ),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
    )


ERNIE4_5 = Family("Ernie4_5ForCausalLM", read, "ernie4_5")
