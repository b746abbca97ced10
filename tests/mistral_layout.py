"""Models in the layout of Mistral's own code, by its names, which are not read from our reader."""

import json
import re
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import load_file, save_file

_PARTS: Final = {
    "q_proj": "attention.wq",
    "k_proj": "attention.wk",
    "v_proj": "attention.wv",
    "o_proj": "attention.wo",
    "gate_proj": "feed_forward.w1",
    "down_proj": "feed_forward.w2",
    "up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}
_STEMS: Final = {
    "language_model.": "",
    "lm_head": "output",
    "vision_tower": "vision_encoder",
    "multi_modal_projector.linear_1": "vision_language_adapter.w_in",
    "multi_modal_projector.linear_2": "vision_language_adapter.w_out",
    "multi_modal_projector.norm": "pre_mm_projector_norm",
    "multi_modal_projector.": "",
    "model.": "",
    "embed_tokens": "tok_embeddings",
}


def write_mistrals(source: Path, directory: Path) -> Path:
    """Write a Pixtral or a Mistral 3 in the layout of Mistral's own code: rotary pairs are side by side."""
    directory.mkdir()
    config = json.loads((source / "config.json").read_text())
    text, vision = config["text_config"], config["vision_config"]
    keys = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "hidden_dim": "intermediate_size"}
    keys |= {"n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads", "norm_eps": "rms_norm_eps"}
    params = {own: text[key] for own, key in keys.items()}
    params |= {"head_dim": text["head_dim"], "vocab_size": text["vocab_size"], "rope_theta": 10000.0}
    names = "hidden_size num_channels image_size patch_size intermediate_size num_hidden_layers num_attention_heads"
    encoder = {name: vision[name] for name in names.split()}
    encoder |= {"image_token_id": config["image_token_index"], "adapter_bias": config["multimodal_projector_bias"]}
    if config["model_type"] == "mistral3":
        encoder |= {"mm_projector_id": "patch_merge", "spatial_merge_size": config["spatial_merge_size"]}
    params |= {"max_position_embeddings": text["max_position_embeddings"], "vision_encoder": encoder}
    (directory / "params.json").write_text(json.dumps(params))
    tensors = {}
    for name, values in load_file(source / "model.safetensors").items():
        of = vision if "vision_tower" in name else text
        heads = of["num_key_value_heads" if "k_proj" in name and of is text else "num_attention_heads"]
        tensors[_name(name)] = _paired(values, heads) if name.endswith(("q_proj.weight", "k_proj.weight")) else values
    save_file(tensors, directory / "consolidated.safetensors")
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(source / file, directory / file)
    return directory


def _paired(values: Any, heads: int) -> Any:
    """Return rows of heads with the halves of each pair side by side."""
    turned = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2)
    return np.ascontiguousarray(turned.reshape(values.shape))


def _name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    for own, other in _STEMS.items():
        stem = stem.replace(own, other)
    match = re.fullmatch(r"(.*layers\.\d+\.)(.*)", stem)
    last = stem.rpartition(".")[2]
    return f"{match[1]}{_PARTS[last]}.{kind}" if match and last in _PARTS else f"{stem}.{kind}"
