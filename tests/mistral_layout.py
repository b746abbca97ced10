"""Models in the layout of Mistral's own code, by its names, which are not read from our reader."""

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import pre_tokenizers

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
    rope = text["rope_parameters"]
    params |= {"head_dim": text["head_dim"], "vocab_size": text["vocab_size"], "rope_theta": rope["rope_theta"]}
    params |= {"tied_embeddings": text["tie_word_embeddings"]} | _growing(rope)
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
    shutil.copyfile(source / "chat_template.jinja", directory / "chat_template.jinja")
    _write_tekken(source / "tokenizer.json", directory / "tekken.json")
    return directory


def _growing(rope: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a YaRN rope, and of queries that grow with their position."""
    if rope["rope_type"] != "yarn":
        return {}
    assert rope["mscale"] == rope["mscale_all_dim"] == 1
    length = {"original_max_position_embeddings": rope["original_max_position_embeddings"]}
    yarn = {"factor": rope["factor"], "beta": rope["beta_fast"], "alpha": rope["beta_slow"], "apply_scale": False}
    return {"yarn": length | yarn, "llama_4_scaling": length | {"beta": rope["llama_4_scaling_beta"]}}


def _write_tekken(source: Path, path: Path) -> None:
    """Write a tokenizer of bytes and merges, with its special tokens first, as a tekken.json."""
    content = json.loads(source.read_text())
    special = [
        {"rank": each["id"], "token_str": each["content"], "is_control": True} for each in content["added_tokens"]
    ]
    vocabulary = sorted(content["model"]["vocab"], key=content["model"]["vocab"].__getitem__)[len(special) :]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())  # a byte's own letter where it has one, others from 256 on
    byte_of = {letter: ord(letter) for letter in letters if ord(letter) < 256}
    byte_of |= dict(zip(letters[len(byte_of) :], sorted(set(range(256)) - {*byte_of.values()}), strict=True))
    pieces = [base64.b64encode(bytes(byte_of[letter] for letter in piece)).decode() for piece in vocabulary]
    config = {"pattern": r"[\s\S]+", "num_vocab_tokens": len(pieces), "version": "v3"}
    config |= {"default_num_special_tokens": len(special), "default_vocab_size": len(special) + len(pieces)}
    vocab = [{"rank": rank, "token_bytes": piece, "token_str": None} for rank, piece in enumerate(pieces)]
    path.write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special}))


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
