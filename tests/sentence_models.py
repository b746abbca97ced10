"""Tiny models in the forms of embedding models and classifiers, with a tokenizer of bytes."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from rekindle.core.text.tokenizer import wrap
from tests.unit.scripted import HERMES

END = 256
"""The tokenizer's token after every text."""
QUERY = "Instruct: Find it\nQuery:"
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
LAST = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_lasttoken": True}
MEAN = {"pooling_mode_mean_tokens": True, "include_prompt": True}
PROMPTS: dict[str, Any] = {
    "prompts": {"query": QUERY, "document": ""},
    "default_prompt_name": None,
    "similarity_fn_name": "cosine",
}


def write(path: Path, content: object) -> None:
    """Write a JSON file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def add_tokenizer(directory: Path) -> None:
    """Add a tokenizer of the 256 bytes; one more token ends each text."""
    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Backend(models.BPE({**vocabulary, "<end>": END}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    wrap(backend, None, "<end>")
    backend.save(str(directory / "tokenizer.json"))
    write(directory / "tokenizer_config.json", {"eos_token": "<end>"})


def embedding_model(
    origin: Path,
    directory: Path,
    modules: object = MODULES,
    pooling: Mapping[str, Any] = LAST,
    prompts: Mapping[str, Any] = PROMPTS,
) -> Path:
    """Make a directory in the form of Qwen3-Embedding of a tiny model."""
    shutil.copytree(origin, directory)
    add_tokenizer(directory)
    write(directory / "modules.json", modules)
    write(directory / "1_Pooling" / "config.json", pooling)
    write(directory / "config_sentence_transformers.json", prompts)
    return directory


def chat_model(families: Path, directory: Path) -> Path:
    """Make a directory of a tiny model that generates, with a chat template for tools and reasoning."""
    made = embedding_model(families / "qwen3-embed", directory)
    write(made / "tokenizer_config.json", {"eos_token": "<end>", "chat_template": HERMES})
    return made


def classifier(origin: Path, directory: Path, labels: int, **config: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Make a classifier of a tiny causal model, and return its head, (labels, hidden)."""
    shutil.copytree(origin, directory)
    add_tokenizer(directory)
    settings = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    (architecture,) = settings["architectures"]
    settings["architectures"] = [architecture.replace("CausalLM", "SequenceClassification")]
    settings["id2label"] = {str(label): f"class {label}" for label in range(labels)}
    write(directory / "config.json", {**settings, **config})
    tensors = load_file(directory / "model.safetensors")
    head = np.random.default_rng(0).standard_normal((labels, settings["hidden_size"])).astype(np.float32)
    body = {name: tensor for name, tensor in tensors.items() if not name.startswith("lm_head")}
    save_file({**body, "score.weight": head}, directory / "model.safetensors")
    return head
