"""Qwen2 and Qwen2.5: queries, keys and values have biases, and later layers may see a window."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family, read_llama, windowed


def read(keys: Keys) -> ModelConfig:
    """Read a Qwen2."""
    model = read_llama(keys)
    first = keys.get("max_window_layers", 28)
    keys.get("attention_bias")  # queries, keys and values have biases whatever it says
    return replace(
        model,
        attention=replace(model.attention, qkv_bias=True),
        layers=windowed(keys, model.layers, lambda i: i >= first, switched_on=False),
    )


QWEN2 = Family("Qwen2ForCausalLM", read, "qwen2")
