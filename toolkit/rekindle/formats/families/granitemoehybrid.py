"""Granite 4: a Granite with Mamba-2 in most layers, with or without experts."""

from dataclasses import replace

from rekindle.core.models.config import AttentionConfig, ExpertsConfig, FeedForwardConfig, ModelConfig, RouterConfig
from rekindle.formats.families import granite, granitemoe
from rekindle.formats.families.hybrid import kinds_of, read_mamba, with_states
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_feed_forward

NAMES = replace(granitemoe.NAMES, gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear")
"""A model without experts names its feed-forward layer as a shared one."""


def read(keys: Keys) -> ModelConfig:
    """Read a Granite 4. Its attention has no positions, unless the config asks for a rope."""
    for unused in ("init_method", "rope_theta", "rope_scaling", "rope_parameters"):
        keys.get(unused)
    keys.refuse("normalization_function", "rmsnorm")
    keys.refuse("position_embedding_type", "rope", "nope")
    model = granite.read(keys)
    feed_forward = _feed_forward(keys)
    kinds = kinds_of(
        keys, model.num_layers, lambda _: False, "layers_block_type" if keys.has("layers_block_type") else "layer_types"
    )
    has_rope = keys.get("position_embedding_type") == "rope"
    layers = tuple(
        replace(layer, attention=_attention(layer.attention, has_rope), feed_forward=feed_forward)
        for layer in model.layers
    )
    state = read_mamba(keys, model.norm)
    return replace(model, layers=with_states(layers, kinds, state), names=NAMES)


def _attention(attention: AttentionConfig | None, has_rope: bool) -> AttentionConfig | None:
    return attention if attention is None or has_rope else replace(attention, rope=None)


def _feed_forward(keys: Keys) -> FeedForwardConfig | ExpertsConfig:
    each = read_feed_forward(keys)
    shared = replace(each, width=keys.size("shared_intermediate_size", 1024))
    count = keys.get("num_local_experts", 8)
    per_token = keys.get("num_experts_per_tok", 2)
    if not count:
        return replace(shared, bias=keys.flag("mlp_bias"))
    return ExpertsConfig(count, each, RouterConfig(per_token, scores="chosen"), shared)
