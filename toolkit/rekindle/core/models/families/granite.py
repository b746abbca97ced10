"""Granite: a Llama with four multipliers."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family, read_llama


def read(keys: Keys) -> ModelConfig:
    """Read a Granite. Its logits are divided by `logits_scaling`."""
    model, bias = read_llama(keys), keys.flag("attention_bias")
    attention = replace(model.attention, scale=keys.number("attention_multiplier", 1.0), qkv_bias=bias, out_bias=bias)
    return replace(
        model,
        attention=attention,
        feed_forward=replace(model.feed_forward, bias=keys.flag("mlp_bias")),
        embedding_multiplier=keys.number("embedding_multiplier", 1.0),
        residual_multiplier=keys.number("residual_multiplier", 1.0),
        logit_multiplier=1 / keys.number("logits_scaling", 1.0),
    )


GRANITE = Family("GraniteForCausalLM", read, "granite")
