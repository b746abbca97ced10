"""EXAONE 4: norms after branches and of each head; in models with windows, layers without one have no positions."""

from dataclasses import replace

from rekindle.core.models.config import HeadNorm, LayerConfig, ModelConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.olmo2 import NAMES
from rekindle.formats.families.reading import (
    read_attention,
    read_llama,
    read_norm,
    with_windows,
    without_positions,
)

WINDOW = 4096
"""The size of windows of configs without it."""


def read(keys: Keys) -> ModelConfig:
    """Read an EXAONE 4."""
    norm = read_norm(keys, default=1e-5)
    keys.get("layer_norm_epsilon")  # the same number again
    model = read_llama(keys, attention=replace(read_attention(keys), head_norm=HeadNorm(norm)))
    return replace(model, layers=hybrid_layers(keys, model.layers), norm=norm, names=NAMES)


def hybrid_layers(keys: Keys, layers: tuple[LayerConfig, ...]) -> tuple[LayerConfig, ...]:
    """Return layers with windows by `layer_types` or a pattern, such as 4 or "LLLG", and the rest without positions."""
    if not keys.get("sliding_window", None if keys.has("sliding_window") else WINDOW):
        for unused in ("layer_types", "sliding_window_pattern"):
            keys.get(unused)
        return layers
    pattern = keys.get("sliding_window_pattern", 4)
    pattern = pattern if isinstance(pattern, str) else "L" * (keys.layers("sliding_window_pattern", 4) - 1) + "G"
    assert layers[0].attention is not None
    rope, plain = layers[0].attention.rope, tuple(without_positions(layer) for layer in layers)
    return with_windows(keys, plain, lambda i: pattern[i % len(pattern)] == "L", rope=rope, default_size=WINDOW)
