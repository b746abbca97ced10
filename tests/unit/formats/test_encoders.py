"""Files of encoders: vocabularies in text, names from TensorFlow, lengths, types and lower case."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.open import open_checkpoint

MODELS = Path(__file__).parents[2] / "goldens" / "encoders"
Change = Callable[[Path], Any]


def changed(name: str, path: Path, *changes: Change) -> Checkpoint:
    """Open a copy of a model with some changes of its files."""
    shutil.copytree(MODELS / name, path)
    for change in changes:
        change(path)
    return open_checkpoint(path)


def put(name: str, **entries: Any) -> Change:
    """Return the change of some entries of a file of JSON."""

    def change(path: Path) -> None:
        own = json.loads((path / name).read_text()) if (path / name).exists() else {}
        (path / name).write_text(json.dumps(own | entries))

    return change


def renamed(pattern: str, replacement: str) -> Change:
    """Return the change of the names of tensors."""

    def change(path: Path) -> None:
        tensors = load_file(path / "model.safetensors")
        save_file(
            {re.sub(pattern, replacement, name): each for name, each in tensors.items()}, path / "model.safetensors"
        )

    return change


def tokenizer_of(model: Checkpoint) -> Tokenizer:
    assert model.tokenizer is not None
    return model.tokenizer


def vocabulary(path: Path) -> None:
    """Write the vocabulary of tokenizer.json as vocab.txt."""
    pieces = json.loads((path / "tokenizer.json").read_text())["model"]["vocab"]
    (path / "vocab.txt").write_text("\n".join(sorted(pieces, key=pieces.__getitem__)) + "\n")
    (path / "tokenizer.json").unlink()


def test_a_vocabulary_in_text_gives_the_tokens_of_tokenizer_json(tmp_path: Path) -> None:
    facts = json.loads((MODELS / "bert-mean" / "golden.json").read_text())
    own = tokenizer_of(
        changed("bert-mean", tmp_path / "a", vocabulary, put("tokenizer_config.json", tokenizer_class=None))
    )
    assert [own.encode(text) for text in facts["texts"]] == facts["ids"]
    whole = tokenizer_of(open_checkpoint(MODELS / "bert-mean"))
    assert own.encode_pair("a cat [MASK]", "the mat") == whole.encode_pair("a cat [MASK]", "the mat")
    cased = put("tokenizer_config.json", do_lower_case=False, tokenizer_class="BertTokenizer")
    other = tokenizer_of(changed("bert-mean", tmp_path / "b", vocabulary, cased))
    assert other.encode("Cat") != own.encode("Cat") == own.encode("cat") == other.encode("cat")


def test_a_vocabulary_without_a_special_token_is_refused(tmp_path: Path) -> None:
    def lose(path: Path) -> None:
        (path / "vocab.txt").write_text((path / "vocab.txt").read_text().replace("[SEP]", "[END]"))

    with pytest.raises(CheckpointError, match=r"vocab\.txt: the vocabulary has no \[SEP\]"):
        changed("bert-mean", tmp_path / "a", vocabulary, put("tokenizer_config.json", tokenizer_class=None), lose)


@pytest.mark.parametrize(
    "change",
    [renamed(r"LayerNorm\.weight", "LayerNorm.gamma"), renamed("^", "bert."), renamed("^(?!pooler)", "bert.")],
)
def test_names_of_other_files_are_those_of_the_model(tmp_path: Path, change: Change) -> None:
    own, other = open_checkpoint(MODELS / "bert-mean"), changed("bert-mean", tmp_path / "a", change)
    assert other.config == own.config
    for name, tensor in own.tensors.items():
        np.testing.assert_array_equal(other.tensors[name], tensor)


@pytest.mark.parametrize(
    ("changes", "longest"),
    [
        ([], 128),
        ([put("sentence_bert_config.json", max_seq_length=None)], 128),
        (
            [
                put("sentence_bert_config.json", max_seq_length=None),
                put("tokenizer_config.json", model_max_length=1e30),
            ],
            160,
        ),
        ([put("sentence_bert_config.json", max_seq_length=32)], 32),
        ([put("sentence_bert_config.json", max_seq_length=512)], 160),
    ],
)
def test_texts_are_cut_at_the_length_of_the_files(tmp_path: Path, changes: list[Change], longest: int) -> None:
    own = tokenizer_of(changed("bert-mean", tmp_path / "a", *changes))
    ids = own.encode("a " * 200)
    assert [len(ids), ids[0], ids[-1], own.is_cut("a " * 200), own.is_cut("a")] == [longest, 2, 3, True, False]
    pair, types, is_cut = own.encode_pair("a " * 200, "cat")
    assert [len(pair), pair[-1], types[-1], types[0], is_cut] == [longest, 3, 1, 0, True]


def test_positions_after_the_padding_token_bound_the_length() -> None:
    for name, most in (("roberta-mean", 160), ("mpnet-mean", 160), ("bert-mean", 160)):
        assert open_checkpoint(MODELS / name).config.max_context == most


def test_the_files_may_ask_for_lower_case(tmp_path: Path) -> None:
    whole = tokenizer_of(open_checkpoint(MODELS / "roberta-mean"))
    lower = tokenizer_of(changed("roberta-mean", tmp_path / "a", put("sentence_bert_config.json", do_lower_case=True)))
    assert lower.encode("The CAT") == lower.encode("the cat") == whole.encode("the cat") != whole.encode("The CAT")


@pytest.mark.parametrize(
    ("name", "changes", "has_types"),
    [
        ("bert-mean", [], True),
        ("bert-mean", [put("tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])], False),
        ("nomic-bert-mean", [], False),
        ("nomic-bert-mean", [put("tokenizer_config.json", tokenizer_class="BertTokenizer")], True),
        ("distilbert-mean", [put("tokenizer_config.json", tokenizer_class="BertTokenizer")], False),
        ("electra-mean", [], True),
    ],
)
def test_pairs_have_types_where_the_tokenizer_gives_them(
    tmp_path: Path, name: str, changes: list[Change], has_types: bool
) -> None:
    _, types, _ = tokenizer_of(changed(name, tmp_path / "a", *changes)).encode_pair("a", "cat")
    assert (max(types) == 1) is has_types


@pytest.mark.parametrize(
    ("name", "change", "error", "reason"),
    [
        (
            "bert-mean",
            put("config.json", position_embedding_type="relative_key"),
            UnsupportedModel,
            "position_embedding",
        ),
        ("bert-mean", put("config.json", is_decoder=True), UnsupportedModel, "is_decoder True"),
        ("bert-mean", put("config.json", hidden_act="mish"), UnsupportedModel, "hidden_act 'mish' is not supported"),
        ("nomic-bert-mean", put("config.json", num_experts=8), UnsupportedModel, "num_experts 8"),
        (
            "bert-mean",
            put("config.json", architectures=["BertForQuestionAnswering"]),
            UnsupportedModel,
            r"BertForQuestionAnswering\) is not supported: it is an encoder.*another head.*such as all-MiniLM and bge",
        ),
        (
            "bert-mean",
            put("config.json", architectures=["BertForSequenceClassification"]),
            CheckpointError,
            "missing classifier.weight of the head",
        ),
        (
            "bert-cross",
            put("config.json", id2label={"0": "a", "1": "b"}),
            CheckpointError,
            r"classifier.weight must have the shape \(2, 32\) by the config, got \(1, 32\)",
        ),
        (
            "bert-mean",
            put("sentence_bert_config.json", max_seq_length="long"),
            CheckpointError,
            "must be numbers of tokens, got 'long'",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(
    tmp_path: Path, name: str, change: Change, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        changed(name, tmp_path / "a", change)


def test_a_nomic_bert_with_the_keys_of_its_authors_is_the_same_model(tmp_path: Path) -> None:
    def older(path: Path) -> None:
        authors = {
            "architectures": ["NomicBertModel"],
            "model_type": "nomic_bert",
            "activation_function": "swiglu",
            "causal": False,
            "fused_bias_fc": True,
            "layer_norm_epsilon": 1e-12,
            "max_trained_positions": 2048,
            "mlp_fc1_bias": False,
            "n_embd": 32,
            "n_head": 4,
            "n_inner": 56,
            "n_layer": 2,
            "n_positions": 160,
            "prenorm": False,
            "qkv_proj_bias": False,
            "rotary_emb_base": 1000,
            "rotary_emb_fraction": 1.0,
            "rotary_scaling_factor": None,
            "type_vocab_size": 2,
            "use_rms_norm": False,
            "vocab_size": 323,
        }
        (path / "config.json").write_text(json.dumps(authors))

    assert (
        changed("nomic-bert-mean", tmp_path / "a", older).config == open_checkpoint(MODELS / "nomic-bert-mean").config
    )
    with pytest.raises(UnsupportedModel, match="prenorm True is not supported"):
        changed("nomic-bert-mean", tmp_path / "b", older, put("config.json", prenorm=True))


def test_a_modernbert_with_older_keys_is_the_same_model(tmp_path: Path) -> None:
    def older(path: Path) -> None:
        config = json.loads((path / "config.json").read_text())
        for key in ("rope_parameters", "layer_types"):
            del config[key]
        config |= {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "global_attn_every_n_layers": 3}
        (path / "config.json").write_text(json.dumps(config))

    own = open_checkpoint(MODELS / "modernbert-mean").config
    assert changed("modernbert-mean", tmp_path / "a", older).config == own
    assert [layer.attention_norm for layer in own.layers] == [False, True, True, True]
    windows = [layer.attention and (layer.attention.window, layer.attention.ahead) for layer in own.layers]
    assert windows == [(None, None), (17, 16), (17, 16), (None, None)]


def test_a_sentencepiece_model_alone_is_the_tokenizer_of_an_xlm_roberta(tmp_path: Path) -> None:
    model_pb2 = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")

    def as_sentencepiece(path: Path) -> None:
        vocabulary = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
        model = model_pb2.ModelProto()
        model.trainer_spec.model_type = 1
        for kind, piece in ((2, "<unk>"), (3, "<s>"), (3, "</s>")):
            model.pieces.add(piece=piece, score=0.0, type=kind)
        for piece, score in vocabulary[5:]:
            model.pieces.add(piece=piece, score=score)
        (path / "sentencepiece.bpe.model").write_bytes(model.SerializeToString())
        (path / "tokenizer.json").unlink()

    own = tokenizer_of(changed("xlm-roberta-mean", tmp_path / "a"))
    alone = tokenizer_of(changed("xlm-roberta-mean", tmp_path / "b", as_sentencepiece))

    def moved(ids: list[int]) -> list[int]:
        return [each - (each > 4) for each in ids]  # the golden's mask is its token 4, and the last one in the family

    for text in ("the quick brown fox", "Привет, мир", "naïve"):
        assert alone.encode(text) == moved(own.encode(text))
    assert alone.encode("  two   spaces ") == alone.encode("two spaces")
    assert alone.encode("a <mask>") == [*alone.encode("a")[:-1], alone.vocab_size - 1, 2]
    ids, types, is_cut = own.encode_pair("a cat", "a dog")
    assert alone.encode_pair("a cat", "a dog") == (moved(ids), types, is_cut)
    assert alone.longest == own.longest


def test_buffers_of_integers_beside_the_weights_are_left_alone(tmp_path: Path) -> None:
    """Older transformers wrote the numbers of positions too."""

    def with_positions(path: Path) -> None:
        tensors = load_file(path / "model.safetensors")
        tensors["embeddings.position_ids"] = np.arange(160)[None]
        save_file(tensors, path / "model.safetensors")

    assert (
        changed("bert-mean", tmp_path / "model", with_positions).config == open_checkpoint(MODELS / "bert-mean").config
    )
