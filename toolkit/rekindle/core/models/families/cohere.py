"""Cohere's Command R: one LayerNorm before parallel attention and feed-forward layers."""

from dataclasses import replace

from rekindle.core.models.config import HeadNorm, ModelConfig, Names
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family, read_llama


def read(keys: Keys) -> ModelConfig:
    """Read a Cohere of the first generation. Each head's queries and keys may have separate norms."""
    model = read_cohere(keys)
    head_norm = HeadNorm(model.norm, over="own") if keys.flag("use_qk_norm") else None
    return replace(model, attention=replace(model.attention, head_norm=head_norm))


def read_cohere(keys: Keys) -> ModelConfig:
    """Read the common parts of both generations."""
    model, bias = read_llama(keys, eps="layer_norm_eps"), keys.flag("attention_bias")
    layers = tuple(replace(layer, rope=layer.rope and replace(layer.rope, interleaved=True)) for layer in model.layers)
    return replace(
        model,
        attention=replace(model.attention, qkv_bias=bias, out_bias=bias),
        layers=layers,
        norm=replace(model.norm, centred=True),
        parallel=True,
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        logit_multiplier=keys.number("logit_scale", 0.0625),
        names=Names(before_mlp=None),
    )


COHERE = Family("CohereForCausalLM", read, "cohere")
