"""Mistral Small 4: DeepSeek's latent attention with queries that grow with their position, and experts by softmax."""

from dataclasses import replace
from typing import Any, Final

from rekindle.core.models.config import LayerConfig, ModelConfig, QueryGrowth, RouterConfig
from rekindle.formats.families.deepseek_v2 import read_latent
from rekindle.formats.families.experts import SHARED
from rekindle.formats.families.growth import GROWTH, rope_with_growth
from rekindle.formats.families.keys import Keys

NAMES = replace(SHARED, expert_gate_up=("mlp.experts.gate_up_proj",), expert_down="mlp.experts.down_proj")
RATE: Final = 0.1
"""The growth of queries in transformers' code, absent from some GGUF files."""
DEFAULT_ROPE: Final[dict[str, Any]] = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    GROWTH: RATE,
}
"""The rope of transformers' code, for files without one."""


def read(keys: Keys) -> ModelConfig:
    """Read a Mistral 4. Groups of experts compete by their best two."""
    rope, growth = rope_with_growth(keys, DEFAULT_ROPE, RATE)
    router = RouterConfig(
        keys.size("num_experts_per_tok", 4),
        normalised=keys.flag("norm_topk_prob", True),
        scale=keys.number("routed_scaling_factor", 1.0),
        groups=keys.size("n_group", 1),
        groups_per_token=keys.size("topk_group", 1),
        best_of_group=2,
    )
    interleaved = keys.flag("rope_interleave", True)
    model = read_latent(keys, router, interleaved=interleaved, shared=1, rope=_of_latents(keys, rope))
    return replace(model, layers=tuple(_growing(layer, growth) for layer in model.layers), names=NAMES)


def _of_latents(keys: Keys, rope: Keys) -> Keys:
    """Return the keys of a rope over the whole rotary part. Files name it as a fraction of the head, or of itself."""
    own, rotary = dict(rope.get("rope_parameters")), keys.size("qk_rope_head_dim")
    Keys(own, keys.source).refuse("partial_rotary_factor", rotary / (keys.size("qk_nope_head_dim") + rotary), 1.0)
    own.pop("partial_rotary_factor", None)
    context = {key: rope.get(key) for key in ("max_position_embeddings", "rope_theta")}
    return Keys({"rope_parameters": own, **context}, keys.source)


def _growing(layer: LayerConfig, growth: QueryGrowth | None) -> LayerConfig:
    assert layer.attention is not None
    return replace(layer, attention=replace(layer.attention, growth=growth))
