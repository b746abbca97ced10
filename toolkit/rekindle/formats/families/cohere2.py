"""Cohere's Command R7B and A: only windowed layers have positions."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.cohere import read_cohere
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import with_windows, without_positions


def read(keys: Keys) -> ModelConfig:
    """Read a Cohere of the second generation."""
    model = read_cohere(keys)
    for key in ("use_embedding_sharing", "use_gated_activation", "use_parallel_block"):
        keys.refuse(key, True)
    keys.refuse("order_of_interleaved_layers", "local_attn_first")
    keys.refuse("position_embedding_type", "rope_gptj")
    switch = keys.get("layer_switch", 4)
    pattern = keys.get("sliding_window_pattern", keys.get("_sliding_window_pattern", switch))
    rope, without_rope = model.attentions[0].rope, tuple(without_positions(layer) for layer in model.layers)
    layers = with_windows(keys, without_rope, lambda i: (i + 1) % pattern > 0, rope=rope, default_size=4096)
    return replace(model, layers=layers)
