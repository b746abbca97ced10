"""SmolLM3: a Llama with some layers without positions, possibly windowed."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import (
    read_attention,
    read_feed_forward,
    read_llama,
    with_windows,
    without_positions,
)


def read(keys: Keys) -> ModelConfig:
    """Read a SmolLM3. In `no_rope_layers`, 1 stands for a layer with positions."""
    bias = keys.flag("attention_bias")
    attention = replace(read_attention(keys, theta=2_000_000.0), qkv_bias=bias, out_bias=bias)
    feed_forward = replace(read_feed_forward(keys), bias=keys.flag("mlp_bias"))
    model = read_llama(keys, attention=attention, feed_forward=feed_forward)
    every = keys.get("no_rope_layer_interval", 4)
    rotary = keys.get("no_rope_layers") or [(i + 1) % every > 0 for i in range(model.num_layers)]
    layers = tuple(
        layer if has_rope else without_positions(layer) for layer, has_rope in zip(model.layers, rotary, strict=True)
    )
    return replace(
        model,
        layers=with_windows(keys, layers, lambda i: not rotary[i], default_on=False),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
    )
