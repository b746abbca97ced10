"""Directories in other layouts than a Hugging Face model's: Mistral's own, and advice for the others."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.config import LayerConfig, ModelConfig
from rekindle.formats.checkpoints.huggingface.safetensors_file import SafetensorsFile, open_safetensors
from rekindle.formats.checkpoints.huggingface.weight_files import PICKLED, pickled_files
from rekindle.formats.checkpoints.vision.names import is_tower
from rekindle.formats.model_file import is_present, read_json

_PARAMS: Final = "params.json"
_TEXT: Final[Mapping[str, str]] = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "head_dim": "head_dim",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "vocab_size": "vocab_size",
    "sliding_window": "sliding_window",
    "tied_embeddings": "tie_word_embeddings",
}
"""Keys of a text model's `config.json` by those of params.json."""
_OTHERS: Final = frozenset(
    {"max_position_embeddings", "max_seq_len", "model_type", "vision_encoder", "yarn", "llama_4_scaling"}
)
_PARTS: Final[Mapping[str, str]] = {
    "attention.wq": "q_proj",
    "attention.wk": "k_proj",
    "attention.wv": "v_proj",
    "attention.wo": "o_proj",
    "feed_forward.w1": "gate_proj",
    "feed_forward.w2": "down_proj",
    "feed_forward.w3": "up_proj",
}
"""The last parts of tensors' names in a layer."""
_OF_TEXT: Final[Mapping[str, str]] = {
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
}
_OF_IMAGES: Final[Mapping[str, str]] = {
    "vision_language_adapter.w_in": "model.multi_modal_projector.linear_1",
    "vision_language_adapter.w_out": "model.multi_modal_projector.linear_2",
    "pre_mm_projector_norm": "model.multi_modal_projector.norm",
    "patch_merger.merging_layer": "model.multi_modal_projector.patch_merger.merging_layer",
}
"""Names of tensors outside of layers, without their endings."""
_LAYER: Final = re.compile(r"layers\.(\d+)\.(.+)")


def is_mistrals(directory: Path) -> bool:
    """Return True for a directory in the layout of Mistral's own code, with its weights."""
    return is_present(directory / _PARAMS) and any(directory.glob("consolidated*.safetensors"))


def mistral_settings(directory: Path) -> dict[str, Any]:
    """Return the settings of an equivalent `config.json` for a directory in the layout of Mistral's own code.

    Raises:
        CheckpointError: params.json is damaged.
        UnsupportedModel: a part of the model is not supported in this layout.
    """
    params = read_json(directory / _PARAMS)
    if unknown := sorted(key for key, value in params.items() if value and key not in (*_TEXT, *_OTHERS)):
        raise UnsupportedModel(
            f"{directory / _PARAMS}: {', '.join(unknown)} is not supported in this layout: fetch config.json and "
            "model*.safetensors of the same repository"
        )
    is_tekken = is_present(directory / "tekken.json")
    context = params.get("max_position_embeddings") or params.get("max_seq_len") or (131_072 if is_tekken else 32_768)
    text = {own: params[key] for key, own in _TEXT.items() if key in params} | {"max_position_embeddings": context}
    text |= {"model_type": "mistral", "hidden_act": "silu", **_growing(params)}
    text.setdefault("tie_word_embeddings", False)
    vision = params.get("vision_encoder")
    if not vision:
        kind = text["model_type"].capitalize()
        return {**text, "architectures": [f"{kind}ForCausalLM"]}
    return _with_tower(text, vision)


def _growing(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a Ministral 3's rope; none without one."""
    yarn, growth = params.get("yarn"), params.get("llama_4_scaling")
    if not yarn:
        return {}
    rope = {
        "rope_type": "yarn",
        "rope_theta": params.get("rope_theta", 1_000_000.0),
        "factor": yarn["factor"],
        "original_max_position_embeddings": yarn["original_max_position_embeddings"],
        "beta_fast": yarn.get("beta", 32),
        "beta_slow": yarn.get("alpha", 1),
        **({} if yarn.get("apply_scale", True) else {"mscale": 1.0, "mscale_all_dim": 1.0}),
        **({"llama_4_scaling_beta": growth["beta"]} if growth else {}),
    }
    return {"model_type": "ministral3", "rope_parameters": rope}


def _with_tower(text: Mapping[str, Any], vision: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a text model with a tower. Its rows are as for ropes by pairs."""
    merge = vision.get("spatial_merge_size", 1) if vision.get("mm_projector_id") == "patch_merge" else None
    side = vision.get("max_image_size") or vision["image_size"]
    same = "hidden_size num_channels patch_size rope_theta intermediate_size num_hidden_layers num_attention_heads"
    tower = {key: vision[key] for key in same.split() if key in vision}
    tower |= {"model_type": "pixtral", "image_size": side, "hidden_act": "silu", "rope_interleave": True}
    kind = "llava" if merge is None else "mistral3"
    architecture = "LlavaForConditionalGeneration" if merge is None else "Mistral3ForConditionalGeneration"
    return {
        "architectures": [architecture],
        "model_type": kind,
        "text_config": dict(text),
        "vision_config": tower,
        "image_token_index": vision.get("image_token_id", 10),
        "multimodal_projector_bias": vision.get("adapter_bias", True),
        **({} if merge is None else {"spatial_merge_size": merge}),
    }


def with_pairs(model: ModelConfig) -> ModelConfig:
    """Return a text model whose rotary pairs are side by side in the file."""

    def paired(layer: LayerConfig) -> LayerConfig:
        attention = layer.attention
        if attention is None or attention.rope is None:
            return layer
        return replace(layer, attention=replace(attention, rope=replace(attention.rope, interleaved=True)))

    return replace(model, layers=tuple(map(paired, model.layers)))


def open_mistrals(directory: Path) -> list[SafetensorsFile]:
    """Open the weights of a directory in the layout of Mistral's own code, under the names of transformers.

    Raises:
        CheckpointError: a file is truncated or corrupt, or a shard is missing.
    """
    paths = sorted(directory.glob("consolidated*.safetensors"))
    whole = [path for path in paths if path.name == "consolidated.safetensors"] or paths
    for path in whole:
        match = re.search(r"-of-(\d+)\.safetensors$", path.name)
        if match is not None and int(match[1]) != len(whole):
            raise CheckpointError(
                f"{directory} has {len(whole)} of {int(match[1])} consolidated files: fetch the others"
            )
    return [open_safetensors(path).renamed(_own_name) for path in whole]


def _own_name(name: str) -> str:
    """Return the name of transformers for a tensor of Mistral's own files."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("vision_encoder."):
        return f"model.vision_tower.{_in_layers(stem.removeprefix('vision_encoder.'), _tower_part)}.{kind}"
    if stem in _OF_IMAGES:
        return f"{_OF_IMAGES[stem]}.{kind}"
    own = _OF_TEXT.get(stem) or f"model.{_in_layers(stem, _text_part)}"
    return f"{own}.{kind}"


def _in_layers(stem: str, rule: Callable[[str], str]) -> str:
    return _LAYER.sub(lambda match: f"layers.{match[1]}.{rule(match[2])}", stem)


def _tower_part(part: str) -> str:
    return f"{part.partition('.')[0]}.{_PARTS[part]}" if part in _PARTS else part


def _text_part(part: str) -> str:
    norms = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if part not in _PARTS:
        return norms.get(part, part)
    return f"{'self_attn' if part.startswith('attention') else 'mlp'}.{_PARTS[part]}"


def advice_for(directory: Path) -> str:
    """Return advice for a directory without config.json, by its other files; empty if they are not known."""
    if (directory / "adapter_config.json").is_file():
        base = read_json(directory / "adapter_config.json").get("base_model_name_or_path") or "another model"
        return (
            f"it is an adapter of {base}: merge the two with PEFT's merge_and_unload(), save the result with "
            "save_pretrained, and open that directory"
        )
    if (directory / _PARAMS).is_file():
        return (
            "it is in the layout of Mistral's or Meta's own code (params.json): fetch config.json and "
            "model*.safetensors of the same repository, or consolidated*.safetensors beside it, or open a GGUF file"
        )
    if (directory / "model_index.json").is_file():
        return "it is a pipeline of models for images (model_index.json), and only language models are read"
    if gguf_files := sorted(path for path in directory.glob("*.gguf") if not is_tower(path)):
        return f"to open the GGUF file in it, pass its path: {gguf_files[0]}"
    if others := pickled_files(directory):
        return f"it has {others[0]}, and {PICKLED}"
    owner, name = (*directory.name.removeprefix("models--").split("--", 1), "")[:2]
    if name and (directory / "snapshots").is_dir():
        return f"it is a model in the hub's cache: open {f'{owner}/{name}'!r}"
    if inner := sorted(path.parent for path in directory.glob("*/config.json")):
        return f"the folder {inner[0].name} in it has one: pass {inner[0]}"
    return ""
