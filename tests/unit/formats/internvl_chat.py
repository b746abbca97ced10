"""A tiny InternVL in the form of OpenGVLab's files."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.engine.pictured import VISION

_TOWER: Final = {
    "embeddings.cls_token": "embeddings.class_embedding",
    "embeddings.position_embeddings": "embeddings.position_embedding",
    "embeddings.patch_embeddings.projection": "embeddings.patch_embedding",
    "encoder.layer.": "encoder.layers.",
    "lambda_": "ls",
    "attention.projection_layer": "attn.proj",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
}
_PROJECTOR: Final = {"layer_norm": "0", "linear_1": "1", "linear_2": "3"}
TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""A template for texts alone."""


def write_internvl_chat(directory: Path, template: str = TEMPLATE) -> Path:
    """Write the tiny InternVL of the goldens in that form, with a chat template."""
    source = VISION / "internvl"
    shutil.copytree(source, directory, copy_function=shutil.copyfile)
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    tower = config["vision_config"]
    (directory / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["InternVLChatModel"],
                "downsample_ratio": config["downsample_ratio"],
                "dynamic_image_size": True,
                "force_image_size": tower["image_size"][0],
                "llm_config": {**config["text_config"], "architectures": ["Qwen2ForCausalLM"]},
                "max_dynamic_patch": 4,
                "min_dynamic_patch": 1,
                "model_type": "internvl_chat",
                "pad2square": False,
                "ps_version": "v2",
                "select_layer": -1,
                "template": "internvl2_5",
                "use_thumbnail": True,
                "vision_config": _tower_config(tower),
            }
        )
    )
    preprocessor: dict[str, Any] = {
        "crop_size": 32,
        "do_center_crop": True,
        "do_normalize": True,
        "do_resize": True,
        "resample": 3,
    }
    preprocessor |= {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "size": 32}
    (directory / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    (directory / "processor_config.json").unlink()
    (directory / "chat_template.jinja").write_text(template)
    save_file(dict(_tensors(load_file(source / "model.safetensors"))), directory / "model.safetensors")
    return directory


def _tower_config(tower: dict[str, Any]) -> dict[str, Any]:
    names = "hidden_act", "hidden_size", "intermediate_size", "layer_norm_eps", "norm_type", "num_attention_heads"
    return {
        **{key: tower[key] for key in (*names, "num_channels", "num_hidden_layers")},
        "architectures": ["InternVisionModel"],
        "drop_path_rate": 0.1,
        "image_size": tower["image_size"][0],
        "model_type": "intern_vit_6b",
        "patch_size": tower["patch_size"][0],
        "qk_normalization": tower["use_qk_norm"],
        "qkv_bias": tower["attention_bias"],
        "use_flash_attn": True,
        "use_moe": False,
    }


def _tensors(tensors: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors under names of OpenGVLab, with queries, keys and values as one."""
    for name, values in tensors.items():
        if name.startswith("multi_modal_projector."):
            _, part, kind = name.split(".")
            yield f"mlp1.{_PROJECTOR[part]}.{kind}", values
        elif not name.startswith("vision_tower."):
            yield name, values
        elif "attention.q_proj" in name:
            parts = [tensors[name.replace("q_proj", f"{side}_proj")] for side in "qkv"]
            yield _own(name).replace("attention.q_proj", "attn.qkv"), np.concatenate(parts)
        elif not re.search(r"attention\.[kv]_proj", name):
            yield _own(name), values


def _own(name: str) -> str:
    name = name.replace("vision_tower.", "vision_model.")
    for theirs, ours in _TOWER.items():
        name = name.replace(theirs, ours)
    return name
