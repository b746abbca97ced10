"""Draft heads in the files of models, by family."""

from typing import Final

from rekindle.core.models.config import DraftHeadConfig, ModelConfig
from rekindle.formats.families.wrapped import TextConfig

AFTER_THE_LAYERS: Final = ("deepseek_v3", "glm4_moe", "glm4_moe_lite")
"""The families with the tensors of a head in a layer after the last one, as DeepSeek-V3, by model_type."""
BESIDE_THE_MODEL: Final = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""The families with the tensors of a head beside those of the model, as Qwen3-Next, by model_type."""


def draft_head_of(text: TextConfig, config: ModelConfig) -> DraftHeadConfig | None:
    """Return a model's draft head, with a layer like the model's last one, or None without a supported head.

    Args:
        text: the config of the text model in config.json.
        config: the config of the model.
    """
    family, keys, layer = text.settings.get("model_type"), text.configs[-1], config.layers[-1]
    if family in AFTER_THE_LAYERS and (keys.get("num_nextn_predict_layers") or 0) > 0:
        prefix = f"{config.names.layers}.{config.num_layers}"
        return DraftHeadConfig(
            layer, prefix, f"{prefix}.enorm", f"{prefix}.hnorm", f"{prefix}.eh_proj", f"{prefix}.shared_head.norm"
        )
    # The config.json of Qwen3-Next has no number of such layers.
    has_layer = keys.get("mtp_num_hidden_layers", 1 if family == "qwen3_next" else 0) == 1
    is_supported = family in BESIDE_THE_MODEL and has_layer and not keys.get("mtp_use_dedicated_embeddings")
    return DraftHeadConfig(layer) if is_supported and layer.attention is not None else None
