"""Draft heads in the files of models, by family."""

from collections.abc import Mapping
from typing import Any, Final

from rekindle.core.models.config import LayerConfig, ModelConfig

FAMILIES: Final = ("deepseek_v3", "glm4_moe", "glm4_moe_lite")
"""The families with a head like DeepSeek-V3's, by model_type. Its layer equals the last one of the model."""


def draft_layer_of(settings: Mapping[str, Any], config: ModelConfig) -> LayerConfig | None:
    """Return the layer of a model's draft head, or None for a model without a supported head.

    Args:
        settings: the content of config.json.
        config: the model.
    """
    is_supported = settings.get("model_type") in FAMILIES and (settings.get("num_nextn_predict_layers") or 0) > 0
    return config.layers[-1] if is_supported else None
