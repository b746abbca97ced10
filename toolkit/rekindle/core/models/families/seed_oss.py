"""Seed-OSS: a Llama with separate settings for the biases of attention's input and output projections."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family, read_llama


def read(keys: Keys) -> ModelConfig:
    """Read a Seed-OSS."""
    model = read_llama(keys)
    attention = replace(
        model.attention,
        qkv_bias=keys.flag("attention_bias", True),
        out_bias=keys.flag("attention_out_bias"),
    )
    return replace(model, attention=attention, feed_forward=replace(model.feed_forward, bias=keys.flag("mlp_bias")))


SEED_OSS = Family("SeedOssForCausalLM", read, "seed_oss")
