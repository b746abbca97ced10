"""The text model of a config with several models: vision, audio, and a language model under a key of its own."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from rekindle.formats.families.quantization import KEYS as QUANTIZATION_KEYS

NESTED: Final = ("text_config", "thinker_config", "llm_config", "language_config")
"""Keys of a nested text model. "thinker_config" has a "text_config" again."""
FAMILY_OF_TEXT: Final[Mapping[str, str]] = {
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "gemma4_unified_text": "gemma4_text",
    "glm4v_text": "glm4",
    "kimi_k2": "deepseek_v3",
}
"""Families of text models with another "model_type". Text has equal positions in all sections of their ropes."""
_FLAT: Final = frozenset({"qwen2_vl", "qwen2_5_vl"})
"""Models with older configs without nesting: the keys of the text model are beside the others."""
_TEXT_OF: Final[Mapping[str, str]] = {
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm4v": "glm4v_text",
    "got_ocr2": "qwen2",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "janus": "llama",
    "kimi_k25": "deepseek_v3",
    "lfm2-vl": "lfm2",
    "lfm2_vl": "lfm2",
    "lighton_ocr": "qwen3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "ovis2": "qwen2",
    "paligemma": "gemma",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "smolvlm": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}
"""Text models by the outer "model_type", for nested configs without one; as in transformers' code."""
PREFIX_ATTENTION: Final = frozenset({"paligemma"})
"""Models with attention in both directions over a prompt, unlike their text model's family."""
_OTHER_MODELS: Final = re.compile(
    r"(?:^|_)(?:"
    r"vision|visual|vit|image|images|img|video|audio|speech|sound|pixel|patch|patches|tile|tiles|fps|crop|resampler|"
    r"perceiver|projector|multimodal|modal|mm|qformer|tower|adapter|adaptor|boi|eoi|boa|eoa|downsample|spatial|"
    r"talker|token2wav|code2wav|vq|newline|encoder|connector|ps|preprocessor|processor|mtp|"
    r"token_id|token_index|token_ids|position_id_per_seconds|select_layer|dynamic_size|thumbnail"
    r")(?:_|$)"
)
"""Words in the keys of other models, of their tokens, and of their connection with the text model."""
_OUTER: Final = frozenset(
    {"ignore_index", "is_composition", "pad2square", "projection_dim", "scale_factor", "template", *NESTED}
)
"""Other keys outside of a text model's config without an effect on text."""


_SHARED: Final = ("tie_word_embeddings", *QUANTIZATION_KEYS)
"""Keys around a nested config for the text model too, unless it has them itself."""


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The config of a text model, alone or inside of another model.

    Attributes:
        settings: the config as if the text model were alone.
        place: the keys of the nested config, such as "text_config"; empty for a text model alone.
        architectures: the architectures of the model around it; its own if it is alone.
        model_type: the "model_type" of the model around it, or None if it is alone.
        unknown: the keys around it with unknown effects.
        configs: the whole config, and the nested one as it is in the file.
    """

    settings: Mapping[str, Any]
    place: str = ""
    architectures: tuple[str, ...] = ()
    model_type: str | None = None
    unknown: tuple[str, ...] = ()
    configs: tuple[Mapping[str, Any], ...] = ()


def text_config_of(config: Mapping[str, Any]) -> TextConfig:
    """Return the config of the text model in a `config.json`.

    Missing keys of a nested config have the values of transformers' code, which does not write them.
    """
    architectures, outer_type = _architectures(config), config.get("model_type")
    inner, place = _nested(config)
    if place:
        kind = inner.get("model_type") or _TEXT_OF.get(str(outer_type))
        shared = {key: config[key] for key in _SHARED if key in config}
        own = {key: value for key, value in inner.items() if value is not None or key not in shared}
        settings = {**_text_defaults().get(str(kind), {}), **shared, **_of_text(own), "model_type": _family(kind)}
        outer = _of_text(config)
        unknown = tuple(sorted(key for key in outer if outer[key] and key not in inner and key not in shared))
        return TextConfig(settings, place, architectures, str(outer_type), unknown, (config, inner))
    if outer_type in _FLAT:
        flat = {key: value for key, value in _of_text(config).items() if key != "architectures"}
        return TextConfig({**flat, "model_type": _family(outer_type)}, "", architectures, outer_type, configs=(config,))
    return TextConfig(config, "", architectures, configs=(config,))


@cache
def _text_defaults() -> Mapping[str, Mapping[str, Any]]:
    """Return the default sizes in transformers' code, by model type: a nested config is saved without them."""
    table: dict[str, dict[str, Any]] = json.loads(
        files(__package__).joinpath("text_defaults.json").read_text(encoding="utf-8")
    )
    return table


def may_be_tied(config: Mapping[str, Any]) -> bool:
    """Return True if a model without a stored head may use its embedding as its head, by the flags of its config."""
    flags = tie_flags(config)
    return True in flags or False not in flags


def tie_flags(config: Mapping[str, Any]) -> list[Any]:
    """Return "tie_word_embeddings" of a config and of the text model in it."""
    inner, _ = _nested(config)
    return [level.get("tie_word_embeddings") for level in (config, inner)]


def end_tokens(config: Mapping[str, Any]) -> list[Any]:
    """Return the "eos_token_id" of a config and of the text model in it, as one list."""
    inner, _ = _nested(config)
    values = [level.get("eos_token_id") for level in (config, inner)]
    return [each for value in values if value is not None for each in (value if isinstance(value, list) else [value])]


def _nested(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the innermost text config and its keys, joined by dots."""
    place = ""
    while key := next((key for key in NESTED if isinstance(config.get(key), Mapping) and config[key]), ""):
        config, place = config[key], f"{place}.{key}" if place else key
    return config, place


def _of_text(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a config without those of other models."""
    return {key: value for key, value in config.items() if key not in _OUTER and not _is_of_others(key)}


def _is_of_others(key: str) -> bool:
    return bool(_OTHER_MODELS.search(key)) and key not in ("eos_token_id", "bos_token_id", "pad_token_id")


def _family(kind: Any) -> Any:
    return FAMILY_OF_TEXT.get(kind, kind) if isinstance(kind, str) else kind


def _architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(name) for name in config.get("architectures") or ())
