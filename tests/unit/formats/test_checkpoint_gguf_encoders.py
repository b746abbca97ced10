"""Encoders in GGUF files are those of their directories, with the same tokens."""

import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from rekindle.core.errors import CheckpointError
from rekindle.formats.checkpoints.gguf.encoder_tokenizers import unigram_of, wordpiece_of
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.gguf_models.encoders import write_encoder

MODELS = Path(__file__).parents[2] / "goldens" / "encoders"


def texts_of(model: str) -> list[str]:
    texts: list[str] = json.loads((MODELS / model / "golden.json").read_text(encoding="utf-8"))["texts"]
    return texts


@pytest.mark.parametrize(
    "model", ["bert-mean", "roberta-mean", "xlm-roberta-mean", "nomic-bert-mean", "modernbert-mean"]
)
def test_a_file_gives_the_encoder_of_the_directory(model: str, tmp_path: Path) -> None:
    expected = open_checkpoint(MODELS / model)
    actual = open_checkpoint(write_encoder(MODELS / model, tmp_path / "model.gguf"))
    config, own = actual.config, expected.config
    assert (config.layers, config.max_context, config.token_types) == (own.layers, own.max_context, own.token_types)
    assert (config.norm, config.embedding_norm, config.norm_sums) == (own.norm, own.embedding_norm, own.norm_sums)
    assert (config.both_ways, config.predicts) == (True, False)
    assert actual.uses.embedding.pooling == "mean"
    before = f"{own.names.layers.partition('.')[0]}."
    stored = {name.removeprefix(before): tensor for name, tensor in expected.tensors.items()}
    prefix = f"{config.names.layers.partition('.')[0]}."
    for name, tensor in actual.tensors.items():
        values = np.asarray(stored[name.removeprefix(prefix)])
        if name.endswith("position_embeddings.weight"):
            values = values[-len(tensor) :]
        np.testing.assert_array_equal(np.asarray(tensor), values, err_msg=name)
    assert actual.tokenizer is not None
    assert expected.tokenizer is not None
    assert actual.tokenizer.longest == own.max_context
    for text in filter(str.strip, texts_of(model)):
        if model.startswith("xlm"):
            # Files have another normalization, no tokens of spaces, and float32 scores, which split runs otherwise.
            text = " ".join(re.sub(r"(.)\1+", r"\1", unicodedata.normalize("NFKC", text)).split())
        ids, own_ids = (each.encode(text) for each in (actual.tokenizer, expected.tokenizer))
        assert (ids[: len(own_ids) - 1], ids[-1]) == (own_ids[:-1], own_ids[-1]), text
    assert actual.tokenizer.encode_pair("a cat", "a dog") == expected.tokenizer.encode_pair("a cat", "a dog")


def test_a_cross_encoder_has_its_head(tmp_path: Path) -> None:
    expected = open_checkpoint(MODELS / "xlm-roberta-cross").uses.classifier
    actual = open_checkpoint(write_encoder(MODELS / "xlm-roberta-cross", tmp_path / "model.gguf")).uses.classifier
    assert expected is not None
    assert actual is not None
    assert (actual.labels, actual.activation, actual.pooling) == (expected.labels, "sigmoid", "cls")
    states = np.random.default_rng(0).standard_normal((3, expected.weight.shape[1]))
    np.testing.assert_array_equal(actual.logits(states), expected.logits(states))


def test_lower_case_follows_the_vocabulary() -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581cat", "s"]
    types = [3, 3, 3, 3, 1, 1]
    assert wordpiece_of({}, tokens, types, "f").encode("Cats").ids == [2, 4, 5, 3]
    cased = wordpiece_of({}, [*tokens, "\u2581Cat"], [*types, 1], "f")
    assert cased.encode("Cats cats").ids == [2, 6, 5, 4, 5, 3]


def test_a_vocabulary_without_its_tokens_is_damaged() -> None:
    with pytest.raises(CheckpointError, match=r"none of \[CLS\], <s>, and no tokenizer\.ggml\.bos_token_id"):
        wordpiece_of({}, ["\u2581a"], [1], "f")
    with pytest.raises(CheckpointError, match=r"needs 1 scores in tokenizer\.ggml\.scores, got none"):
        unigram_of({}, ["\u2581a"], [1], "f")
