"""FlexOLMo: an OLMo 2 with experts in every layer."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families import olmo2
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.olmoe import read_experts


def read(keys: Keys) -> ModelConfig:
    """Read a FlexOLMo."""
    model, experts = olmo2.read(keys), read_experts(keys, count=7, per_token=5)
    return replace(model, layers=tuple(replace(layer, feed_forward=experts) for layer in model.layers))
