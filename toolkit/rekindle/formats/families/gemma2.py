"""Gemma 2: four norms per layer, caps of scores and logits, and a window in every other layer."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Names
from rekindle.formats.families.gemma import read_gemma
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, with_windows

NAMES = Names(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)


def read(keys: Keys) -> ModelConfig:
    """Read a Gemma 2. Even layers have the window, unless the config has `layer_types`."""
    attention = replace(
        read_attention(keys),
        scale=keys.number("query_pre_attn_scalar", 256) ** -0.5,
        soft_cap=keys.number_or_none("attn_logit_softcapping"),
    )
    model = read_gemma(keys, attention)
    return replace(
        model,
        layers=with_windows(keys, model.layers, lambda i: i % 2 == 0),
        logit_cap=keys.number_or_none("final_logit_softcapping"),
        names=NAMES,
    )
