"""Encoders as llama.cpp's converter writes them, with their tokenizers; its rules were read from its source."""

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

NAMES = {
    "bert": "bert",
    "roberta": "bert",
    "xlm-roberta": "bert",
    "jina_bert": "jina-bert-v2",
    "nomic_bert": "nomic-bert",
    "modernbert": "modern-bert",
}
"""Architectures by "model_type"."""
_NORMAL, _UNKNOWN, _CONTROL = gguf.TokenType.NORMAL, gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL


def write_encoder(directory: Path, path: Path) -> Path:
    """Write a Hugging Face directory of an encoder as a file of float32 numbers."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    kind = "jina_bert" if config["architectures"][0].startswith("JinaBert") else config["model_type"]
    writer = gguf.GGUFWriter(path, NAMES[kind])
    # The rows before the first position are cut off.
    skipped = config["pad_token_id"] + 1 if "roberta" in kind else 0
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"] - skipped)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config.get("layer_norm_eps", config.get("norm_eps")))
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    if config.get("id2label"):
        writer.add_classifier_output_labels([label for _, label in sorted(config["id2label"].items())])
    if kind == "nomic_bert":
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if kind == "modernbert":
        ropes = config["rope_parameters"]
        writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
        writer.add_float32("modern-bert.rope.freq_base_swa", ropes["sliding_attention"]["rope_theta"])
        writer.add_sliding_window(config["local_attention"])
        writer.add_sliding_window_pattern(config["global_attn_every_n_layers"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_vocab_size(config["vocab_size"])
    _write_tokenizer(writer, directory, config)
    _write_tensors(writer, directory, config, skipped)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_tensors(writer: gguf.GGUFWriter, directory: Path, config: dict[str, Any], skipped: int) -> None:
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == writer.arch)
    library = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    for name, tensor in load_file(directory / "model.safetensors").items():
        stem = re.sub(r"^(bert|roberta|nomic_bert|model)\.", "", name)
        if stem.startswith(("pooler.", "cls.")) or "position_ids" in stem:
            continue
        values = tensor[skipped:] if stem.startswith("embeddings.position_embeddings") else tensor
        own = library.get_name(stem, try_suffixes=(".weight", ".bias"))
        assert own is not None, stem
        writer.add_tensor(own, np.ascontiguousarray(values, np.float32))


def _write_tokenizer(writer: gguf.GGUFWriter, directory: Path, config: dict[str, Any]) -> None:
    content = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    model, special = content["model"], {token["content"]: token["id"] for token in content["added_tokens"]}
    writer.add_token_type_count(config.get("type_vocab_size", 1))
    if model["type"] == "Unigram":
        tokens = [piece for piece, _ in model["vocab"]]
        writer.add_tokenizer_model("t5")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores([score for _, score in model["vocab"]])
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
    else:
        vocabulary = {**model["vocab"], **special}
        tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    types = [
        _UNKNOWN if token == "<unk>" else _CONTROL if token in special else _NORMAL  # as a SentencePiece model has it
        for token in tokens
    ]
    if model["type"] == "WordPiece":
        writer.add_tokenizer_model("bert")
        writer.add_tokenizer_pre("default")
        tokens = [
            token if kind == _CONTROL else token[2:] if token.startswith("##") else f"\u2581{token}"
            for token, kind in zip(tokens, types, strict=True)
        ]
    elif model["type"] == "BPE":
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("modern-bert" if config["model_type"] == "modernbert" else "roberta-bpe")
        merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
        writer.add_token_merges(list(merges))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    own = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        token, add = own.get(f"{name}_token"), getattr(writer, f"add_{name}_token_id", None)
        if token is not None and add is not None:
            add(special[token])
