"""FlexOLMo: an OLMo 2 with experts in every layer."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.core.models.families import olmo2
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.olmoe import read_experts
from rekindle.core.models.families.reading import Family


def read(keys: Keys) -> ModelConfig:
    """Read a FlexOLMo."""
    model, experts = olmo2.read(keys), read_experts(keys, count=7, per_token=5)
    return replace(model, layers=tuple(replace(layer, feed_forward=experts) for layer in model.layers))


FLEX_OLMO = Family("FlexOlmoForCausalLM", read, "flex_olmo")
