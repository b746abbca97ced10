"""Vision towers by the "model_type" of a `config.json`."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from rekindle.core.concurrency.warning import warn
from rekindle.core.models.vision.config import VisionConfig
from rekindle.formats.families.gemma_vision import read_gemma3, read_gemma4
from rekindle.formats.families.idefics3 import read_tower as read_idefics3
from rekindle.formats.families.internvl import read_tower as read_internvl
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.lfm2_vl import read_tower as read_lfm2_vl
from rekindle.formats.families.llava import read_tower as read_llava
from rekindle.formats.families.paligemma import read_tower as read_paligemma
from rekindle.formats.families.pixtral import read_tower as read_pixtral
from rekindle.formats.families.qwen_vl import read_qwen2, read_qwen2_5, read_qwen3

KINDS: Final[Mapping[str, str]] = {
    "gemma3/siglip_vision_model": "gemma3",
    "gemma4": "gemma4",
    "idefics3": "idefics3",
    "internvl/internvl_vision": "internvl",
    "internvl_chat/intern_vit_6b": "internvl",
    "lfm2-vl/siglip2_vision_model": "lfm2_vl",
    "lfm2_vl/siglip2_vision_model": "lfm2_vl",
    "llava/clip_vision_model": "llava",
    "llava/pixtral": "pixtral",
    "llava/siglip_vision_model": "llava",
    "llava_next/clip_vision_model": "llava",
    "llava_next/siglip_vision_model": "llava",
    "mistral3/pixtral": "pixtral",
    "paligemma/siglip_vision_model": "paligemma",
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen2_vl": "qwen2_vl",
    "qwen3_5": "qwen3_vl",
    "qwen3_5_moe": "qwen3_vl",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "smolvlm": "idefics3",
}
"""Kinds of towers by the "model_type" of a config, or by this and that of its "vision_config"."""
TOWERS: Final[Mapping[str, Callable[[Keys, Keys, int], VisionConfig]]] = {
    "gemma3": read_gemma3,
    "gemma4": read_gemma4,
    "idefics3": read_idefics3,
    "internvl": read_internvl,
    "lfm2_vl": read_lfm2_vl,
    "llava": read_llava,
    "paligemma": read_paligemma,
    "pixtral": read_pixtral,
    "qwen2_5_vl": read_qwen2_5,
    "qwen2_vl": read_qwen2,
    "qwen3_vl": read_qwen3,
}
"""Readers of the keys of a config and of its "vision_config" by kind, given the size of the text model's embeddings."""
# fmt: off
_WITHOUT_EFFECT: Final = frozenset({
    "capacity_factor", "drop_path_rate", "eval_capacity_factor", "head_dim", "hidden_dropout_prob", "image_size",
    "initializer_factor", "laux_allreduce", "layer_scale_init_value", "max_image_size", "moe_coeff_ratio",
    "moe_intermediate_size", "moe_output_scale", "noisy_gate_policy", "num_experts", "num_routed_experts",
    "num_shared_experts", "shared_expert_intermediate_size", "use_flash_attn", "use_moe", "use_residual", "use_rts",
    "use_weighted_residual",
    "projection_dim", "projection_dropout", "size", "tie_word_embeddings", "use_base_siglip", "use_mask_token",
    "vision_use_head", "vocab_size",
})
# fmt: on
"""Keys of images' processing, of other models, and of sizes that others give."""


def tower_kind(settings: Mapping[str, Any]) -> str | None:
    """Return the kind of the vision tower of a `config.json`; None for a text model, or a tower without support."""
    inner = settings.get("vision_config")
    if not isinstance(inner, Mapping):
        return None
    outer = settings.get("model_type")
    return KINDS.get(f"{outer}/{inner.get('model_type')}") or KINDS.get(str(outer))


def tower_config(settings: Mapping[str, Any], output_size: int, source: str) -> VisionConfig | None:
    """Read the vision tower of a `config.json`; None for a text model, or for a tower without support.

    Args:
        settings: the decoded JSON object.
        output_size: the size of the text model's embeddings.
        source: the origin of the config, for error messages.

    Raises:
        UnsupportedModel: a part of the tower's config is not implemented.
        CheckpointError: a number is wrong, or numbers do not fit together.
    """
    kind = tower_kind(settings)
    if kind is None:
        return None
    outer = Keys(settings, source)
    keys = outer.below("vision_config")
    config = TOWERS[kind](outer, keys, output_size)
    if unknown := ", ".join(key for key in keys.unread() if key not in _WITHOUT_EFFECT):
        warn(f"{keys.source} has unknown keys that may change the results of the model: {unknown}")
    return config
