"""Llama 1 to 3, and models of the same form: SmolLM2, Yi, and many others."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family, read_llama


def read(keys: Keys) -> ModelConfig:
    """Read a Llama. All projections of attention have biases, or none; the same holds for the feed-forward layer."""
    model, bias = read_llama(keys), keys.flag("attention_bias")
    return replace(
        model,
        attention=replace(model.attention, qkv_bias=bias, out_bias=bias),
        feed_forward=replace(model.feed_forward, bias=keys.flag("mlp_bias")),
    )


LLAMA = Family("LlamaForCausalLM", read, "llama")
