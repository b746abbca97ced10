"""Tiny models in the forms of embedding models and classifiers, with a tokenizer of bytes."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
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


SCORE_TOKENS = (20, 30)
"""The tokens of yes and no in the files of a reranker with images."""
SYSTEM_PROMPT = "Represent the user's input."
RANK_PROMPT = "Find what answers."
RANK_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}<Instruct>: {% elif m.role == 'query' %}<Query>: "
    "{% elif m.role == 'document' %}\n<Document>: {% endif %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}<|im_end|>\n<|im_start|>assistant\n{% endif %}"
)


def illustrated_embedder(origin: Path, directory: Path, prompts: Mapping[str, Any]) -> Path:
    """Make a directory in the form of Qwen3-VL-Embedding of a tiny model: texts and images as conversations."""
    return _illustrated(origin, directory, MODULES, prompts, "feature-extraction", "token_embeddings")


def illustrated_ranker(origin: Path, directory: Path) -> Path:
    """Make a directory in the form of Qwen3-VL-Reranker of a tiny model, with a template of a query and a document."""
    score = {"idx": 1, "name": "1", "path": "1_LogitScore"}
    score["type"] = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    prompts = {"prompts": {"rank": RANK_PROMPT}, "default_prompt_name": "rank", "model_type": "CrossEncoder"}
    model = _illustrated(origin, directory, [MODULES[0], score], prompts, "any-to-any", "causal_logits")
    write(
        model / "1_LogitScore" / "config.json",
        dict(zip(("true_token_id", "false_token_id"), SCORE_TOKENS, strict=True)),
    )
    (model / "chat_template.jinja").write_text(RANK_TEMPLATE)
    return model


def text_ranker(origin: Path, directory: Path) -> Path:
    """Make a directory in the form of Qwen3-Reranker for sentence-transformers 5.4, with messages of texts."""
    score = {"path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}
    prompts = {"prompts": {"r": "Judge."}, "default_prompt_name": "r", "model_type": "CrossEncoder"}
    model = embedding_model(origin, directory, [MODULES[0], score], {}, prompts)
    write(model / "1_LogitScore" / "config.json", {"true_token_id": 65, "false_token_id": 66})
    method = {"method": "forward", "method_output_name": "logits"}
    form: dict[str, Any] = {"modality_config": {"text": method, "message": {**method, "format": "flat"}}}
    form["processing_kwargs"] = {"chat_template": {"add_generation_prompt": True}}
    write(model / "sentence_bert_config.json", {"transformer_task": "text-generation", **form})
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}<I>{% elif m.role == 'query' %}<Q>"
        "{% elif m['role'] == 'document' %}<D>{% endif %}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<A>{% endif %}"
    )
    write(model / "tokenizer_config.json", {"eos_token": "<end>", "chat_template": template})
    return model


def _illustrated(
    origin: Path, directory: Path, modules: object, prompts: Mapping[str, Any], task: str, output: str
) -> Path:
    shutil.copytree(origin, directory)
    settings = json.loads((directory / "preprocessor_config.json").read_text())
    write(directory / "preprocessor_config.json", settings | {"size": {"longest_edge": 40000, "shortest_edge": 400}})
    write(directory / "modules.json", modules)
    write(directory / "1_Pooling" / "config.json", {"embedding_dimension": 32, "pooling_mode": "lasttoken"})
    write(directory / "config_sentence_transformers.json", prompts)
    method = {"method": "forward", "method_output_name": "logits" if output == "causal_logits" else "last_hidden_state"}
    form = dict.fromkeys(("text", "image"), method) | {"message": {**method, "format": "structured"}}
    template = {"chat_template": {"add_generation_prompt": True}}
    names = ("transformer_task", "modality_config", "module_output_name", "processing_kwargs")
    write(directory / "sentence_bert_config.json", dict(zip(names, (task, form, output, template), strict=True)))
    return directory


def square_images(directory: Path) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return pictures that no processor resizes, of 96 x 64 and 64 x 96 pixels."""
    with Image.open(directory / "image-0.png") as first, Image.open(directory / "image-1.png") as second:
        parts = [np.asarray(image.convert("RGB"))[:32, :32] for image in (first, second)]
    return [np.tile(parts[0], (3, 2, 1)), np.tile(parts[1], (2, 3, 1))]
