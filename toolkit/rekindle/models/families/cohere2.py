"""Cohere's Command R7B and A: windowed layers have positions, and the others none."""

from dataclasses import replace

from rekindle.models.config import ModelConfig
from rekindle.models.families.cohere import read_cohere
from rekindle.models.families.keys import Keys
from rekindle.models.families.reading import Family, windowed


def read(keys: Keys) -> ModelConfig:
    """Read a Cohere of the second generation."""
    model = read_cohere(keys)
    pattern = keys.get("sliding_window_pattern", keys.get("_sliding_window_pattern", 4))
    rope, unturned = model.layers[0].rope, tuple(replace(layer, rope=None) for layer in model.layers)
    return replace(model, layers=windowed(keys, unturned, lambda i: (i + 1) % pattern > 0, rope=rope))


COHERE2 = Family("Cohere2ForCausalLM", read, "cohere2")
