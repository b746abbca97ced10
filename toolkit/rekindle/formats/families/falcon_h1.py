"""Falcon-H1: attention and Mamba-2 side by side in each layer, with many multipliers."""

from dataclasses import replace

from rekindle.core.models.config import AttentionConfig, LayerConfig, Mamba2, ModelConfig
from rekindle.formats.families.bamba import NAMES
from rekindle.formats.families.hybrid import read_mamba
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama, read_norm

UNUSED = (
    "layer_types",
    "layers_block_type",
    "mlp_expansion_factor",
    "num_logits_to_keep",
    "time_step_floor",
    "time_step_max",
    "time_step_min",
    "time_step_rank",
)
"""Keys without an effect in transformers' code."""


def read(keys: Keys) -> ModelConfig:
    """Read a Falcon-H1."""
    for unused in UNUSED:
        keys.get(unused)
    norm, (gate, down) = read_norm(keys, default=1e-5), _multipliers(keys, "mlp_multipliers", 2)
    feed_forward = replace(read_feed_forward(keys), bias=keys.flag("mlp_bias"), gate_multiplier=gate, multiplier=down)
    attention = _attention(keys)
    model = read_llama(keys, attention=attention, feed_forward=feed_forward)
    layer = LayerConfig(attention, feed_forward, state=_mamba(keys))
    return replace(
        model,
        layers=(layer,) * model.num_layers,
        norm=norm,
        embedding_multiplier=keys.number("embedding_multiplier", 1.0),
        logit_multiplier=keys.number("lm_head_multiplier", 1.0),
        names=NAMES,
    )


def _attention(keys: Keys) -> AttentionConfig:
    """Read attention. The factor of its input and the one of keys become factors of scores and of the result."""
    keys.refuse("attention_bias", False)
    attention = read_attention(keys, kv_heads=8)
    before, after = keys.number("attention_in_multiplier", 1.0), keys.number("attention_out_multiplier", 1.0)
    scale = attention.scale * before * before * keys.number("key_multiplier", 1.0)
    return replace(attention, scale=scale, multiplier=before * after)


def _mamba(keys: Keys) -> Mamba2:
    """Read the Mamba-2. The factor of its input becomes one of each projection."""
    keys.refuse("mamba_proj_bias", False)
    keys.refuse("projectors_bias", False)
    norm = read_norm(keys, default=1e-5) if keys.flag("mamba_rms_norm") else None
    before = keys.number("ssm_in_multiplier", 1.0)
    factors = tuple(before * each for each in _multipliers(keys, "ssm_multipliers", 5))
    return replace(
        read_mamba(keys, norm),
        gate_first=not keys.flag("mamba_norm_before_gate", True) or norm is None,
        multipliers=() if set(factors) == {1.0} else factors,
        multiplier=keys.number("ssm_out_multiplier", 1.0),
    )


def _multipliers(keys: Keys, key: str, count: int) -> tuple[float, ...]:
    """Return a list of factors, all 1 if it is missing."""
    if keys.get(key) is None:
        return (1.0,) * count
    numbers = keys.numbers(key)
    if len(numbers) != count:
        raise keys.wrong(key, f"must have {count} numbers", list(numbers))
    return numbers
