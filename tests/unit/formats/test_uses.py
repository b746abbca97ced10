"""The uses of a model beside generation are read from its files; unsupported ones are refused by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import load_file, save_file

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.uses import Embedding, Uses
from tests.sentence_models import LAST, MEAN, MODULES, PROMPTS, QUERY, classifier, embedding_model, write
from tests.unit.formats.test_checkpoint_gguf import write_gguf


def changed(origin: Path, directory: Path, drop: str = "", **config: Any) -> Checkpoint:
    """Open a copy of a model with another config, and without the tensors of a prefix."""
    shutil.copytree(origin, directory)
    settings = json.loads((origin / "config.json").read_text(encoding="utf-8"))
    write(directory / "config.json", {**settings, **config})
    tensors = load_file(origin / "model.safetensors")
    remaining = {name: tensor for name, tensor in tensors.items() if not drop or not name.startswith(drop)}
    save_file(remaining, directory / "model.safetensors")
    return open_checkpoint(directory)


def test_a_directory_of_sentence_transformers_says_how_it_embeds(families: Path, tmp_path: Path) -> None:
    origin = families / "qwen3-embed"
    assert open_checkpoint(origin).uses == Uses()
    own = open_checkpoint(embedding_model(origin, tmp_path / "last")).uses.embedding
    assert own == Embedding("last", True, {"query": QUERY, "document": ""}, None)
    without = open_checkpoint(embedding_model(origin, tmp_path / "mean", MODULES[:2], MEAN)).uses.embedding
    assert (without.pooling, without.normalize) == ("mean", False)
    newer = open_checkpoint(embedding_model(origin, tmp_path / "new", MODULES, {"pooling_mode": "lasttoken"}))
    assert newer.uses.embedding.pooling == "last"
    first = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    assert open_checkpoint(embedding_model(origin, tmp_path / "cls", MODULES, first)).uses.embedding.pooling == "cls"
    bare = embedding_model(origin, tmp_path / "bare")
    (bare / "modules.json").unlink()
    assert open_checkpoint(bare).uses.embedding == Embedding("last", None, PROMPTS["prompts"], None)


@pytest.mark.parametrize(
    ("form", "variables", "content"),
    [
        ("structured", {"add_generation_prompt": True}, [{"type": "text", "text": "x"}]),
        ("flat", {"enable_thinking": False, "restore_suffix": True}, "x"),
    ],
)
def test_texts_may_be_messages_with_the_variables_of_the_files(
    families: Path, tmp_path: Path, form: str, variables: dict[str, Any], content: Any
) -> None:
    path = embedding_model(families / "qwen3-embed", tmp_path / "model")
    method = {"method": "forward", "method_output_name": "last_hidden_state"}
    settings: dict[str, Any] = {"modality_config": {"text": method}, "processing_kwargs": {"chat_template": variables}}
    write(path / "sentence_bert_config.json", settings)
    assert open_checkpoint(path).uses.embedding.messages is None
    settings["modality_config"]["message"] = {**method, "format": form}
    write(path / "sentence_bert_config.json", settings)
    messages = open_checkpoint(path).uses.embedding.messages
    assert messages is not None
    expected = {name: value for name, value in variables.items() if name != "restore_suffix"}
    assert messages.variables == {"add_generation_prompt": False} | expected
    assert messages.message("query", "x") == {"role": "query", "content": content}
    settings["processing_kwargs"] |= {"image": {"max_pixels": 9}, "text": {}}
    write(path / "sentence_bert_config.json", settings)
    with pytest.warns(RuntimeWarning, match="processing_kwargs of image have no effect here"):
        open_checkpoint(path)


def test_a_model_may_rank_by_the_tokens_of_its_files(families: Path, tmp_path: Path) -> None:
    score = {"path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}
    cases: list[tuple[Any, Any, str]] = [
        ({"true_token_id": 9, "false_token_id": 4}, (9, 4), ""),
        ({"true_token_id": 9, "false_token_id": None}, None, "scores by one token alone"),
        (None, None, ""),  # as published once, with a wrong path: the words "yes" and "no" count
    ]
    for number, (settings, answers, reason) in enumerate(cases):
        path = embedding_model(families / "qwen3-embed", tmp_path / str(number), [MODULES[0], score])
        if settings is not None:
            write(path / "1_LogitScore" / "config.json", settings)
        uses = open_checkpoint(path).uses
        assert uses.answers == answers
        assert uses.embedding.pooling is None
        assert reason in uses.embedding.unsupported_reason
        assert bool(reason) == bool(uses.embedding.unsupported_reason)


@pytest.mark.parametrize(
    ("modules", "prompts", "expected"),
    [
        ({"a": 1}, PROMPTS, "expected a list of modules"),
        ([{"type": "x"}], PROMPTS, "expected a list of modules"),
        ("text", PROMPTS, "expected a list of modules"),
        (MODULES, {"prompts": ["query"]}, "prompts must be texts by name"),
        (MODULES, {"prompts": {"query": 1}}, "prompts must be texts by name"),
    ],
)
def test_files_of_another_form_are_refused(
    families: Path, tmp_path: Path, modules: Any, prompts: Any, expected: str
) -> None:
    path = embedding_model(families / "qwen3-embed", tmp_path / "model", modules, LAST, prompts)
    with pytest.raises(CheckpointError, match=expected):
        open_checkpoint(path)


@pytest.mark.parametrize(("number", "pooling"), [(None, None), (0, None), (1, "mean"), (2, "cls"), (3, "last")])
def test_a_gguf_file_says_its_pooling_by_a_number(
    families: Path, tmp_path: Path, number: int | None, pooling: str | None
) -> None:
    def change(writer: GGUFWriter) -> None:
        if number is not None:
            writer.add_uint32("llama.pooling_type", number)

    path = write_gguf(open_checkpoint(families / "llama-tied"), tmp_path / "model.gguf", change)
    assert open_checkpoint(path).uses.embedding.pooling == pooling


def test_a_pooling_of_a_gguf_file_that_is_not_served_is_named(families: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(
        open_checkpoint(families / "llama-tied"), path, lambda writer: writer.add_uint32("llama.pooling_type", 4)
    )
    assert "its pooling has the number 4" in open_checkpoint(path).uses.embedding.unsupported_reason


def test_a_base_model_opens_without_a_head_and_predicts_nothing(families: Path, tmp_path: Path) -> None:
    base = changed(families / "qwen3-embed", tmp_path / "base", architectures=["Qwen3Model"], tie_word_embeddings=False)
    assert not base.uses.generates
    assert base.config.tied_embeddings, "it has the tensors of a model whose head is its embedding"
    assert set(base.tensors) == set(open_checkpoint(families / "qwen3-embed").tensors)
    tied = changed(families / "qwen3-embed", tmp_path / "tied", architectures=["Qwen3Model"])
    assert tied.uses.generates
    with pytest.raises(CheckpointError, match=r"missing lm_head\.weight; its config says tie_word_embeddings is false"):
        changed(families / "qwen2", tmp_path / "causal", "lm_head", tie_word_embeddings=False)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"bidirectional": True}, "bidirectional is True, so the model reads its text in both directions"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        (
            {"architectures": ["LlamaBidirectionalModel"]},
            r"the architecture \(LlamaBidirectionalModel\) is not supported",
        ),
        ({"architectures": ["AlbertModel"]}, r"the architecture \(AlbertModel\) is not supported"),
    ],
)
def test_models_that_read_in_both_directions_are_refused(
    families: Path, tmp_path: Path, config: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UnsupportedModel, match=expected):
        changed(families / "llama-tied", tmp_path / "model", **config)


def test_a_classifier_has_its_head_and_its_labels(families: Path, tmp_path: Path) -> None:
    head = classifier(families / "llama-tied", tmp_path / "model", 3, num_labels=3, classifier_dropout=0.1)
    uses = open_checkpoint(tmp_path / "model").uses
    assert uses.classifier is not None
    np.testing.assert_array_equal(uses.classifier.weight, head)
    assert uses.classifier.labels == ("class 0", "class 1", "class 2")
    assert (uses.generates, uses.classifier.activation) == (False, "softmax")


TORCH = "torch.nn.modules."
REGRESSION = {"problem_type": "regression"}


@pytest.mark.parametrize(
    ("count", "config", "of_library", "activation"),
    [
        (1, {}, {}, "sigmoid"),
        (3, {}, {}, "softmax"),
        (1, REGRESSION, {}, "identity"),
        (3, REGRESSION, {}, "identity"),
        (3, {"problem_type": "multi_label_classification"}, {}, "sigmoid"),
        (1, {"problem_type": "single_label_classification"}, {}, "sigmoid"),
        (3, {"problem_type": None}, {}, "softmax"),
        (1, {"sbert_ce_default_activation_function": f"{TORCH}linear.Identity"}, {}, "identity"),
        (1, {"sbert_ce_default_activation_function": None}, {}, "sigmoid"),
        (1, {"sbert_ce_default_activation_function": f"{TORCH}activation.Tanh"}, {}, "tanh"),
        (1, {"sentence_transformers": {"activation_fn": f"{TORCH}linear.Identity", "version": "4.1"}}, {}, "identity"),
        (3, {"sentence_transformers": {"activation_fn": f"{TORCH}activation.Sigmoid"}, **REGRESSION}, {}, "sigmoid"),
        (1, {"sentence_transformers": {"version": "4.1"}}, {}, "sigmoid"),
        (1, {}, {"activation_fn": f"{TORCH}linear.Identity", "model_type": "CrossEncoder"}, "identity"),
        (1, {}, {"activation_fn": "torch.nn.Identity"}, "identity"),
        (1, {}, {"activation_fn": f"{TORCH}activation.Softmax"}, "sigmoid"),
    ],
)
def test_a_head_has_the_activation_of_its_files(
    families: Path, tmp_path: Path, count: int, config: dict[str, Any], of_library: dict[str, Any], activation: str
) -> None:
    classifier(families / "llama-tied", tmp_path / "model", count, **config)
    write(tmp_path / "model" / "config_sentence_transformers.json", of_library)
    uses = open_checkpoint(tmp_path / "model").uses
    assert uses.classifier is not None
    assert uses.classifier.activation == activation


@pytest.mark.parametrize("name", ["torch.nn.modules.activation.GELU", "custom.Identity"])
def test_an_activation_that_is_not_supported_is_refused_by_name(families: Path, tmp_path: Path, name: str) -> None:
    classifier(families / "llama-tied", tmp_path / "model", 1, sbert_ce_default_activation_function=name)
    with pytest.raises(UnsupportedModel, match=f"the activation of its scores is '{name}'"):
        open_checkpoint(tmp_path / "model")


def test_a_head_of_another_form_is_refused(families: Path, tmp_path: Path) -> None:
    classifier(families / "llama-tied", tmp_path / "model", 3)
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    head = tensors.pop("score.weight")
    for others, error, expected in (
        ({"score.weight": head[:2]}, CheckpointError, r"score.weight must have the shape \(3, 64\) by the config"),
        ({"score.weight": head, "score.bias": head[:, 0]}, CheckpointError, "and no bias"),
        ({"classifier.dense.weight": head}, UnsupportedModel, "supported, got classifier.dense.weight"),
        ({}, UnsupportedModel, "supported, got none"),
    ):
        arrays = {name: np.ascontiguousarray(tensor) for name, tensor in {**tensors, **others}.items()}
        save_file(arrays, tmp_path / "model" / "model.safetensors")
        with pytest.raises(error, match=expected):
            open_checkpoint(tmp_path / "model")
