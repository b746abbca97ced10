"""A checkpoint with a SentencePiece model as its only tokenizer cuts texts into the pieces of SentencePiece."""

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.huggingface.tokenizer import load_tokenizer
from rekindle.formats.checkpoints.open import open_checkpoint

sentencepiece = pytest.importorskip("sentencepiece")

CORPUS = [line for line in Path(__file__).read_text(encoding="utf-8").splitlines() if line.strip()]
TEXTS = [
    "Hello world",
    " begins with a space",
    "  two,  and between,  and at the end  ",
    "tabs\tand\nlines\n\n",
    "naïve café, ﬁ and ①",
    "日本語のテキスト and 🙂🙃",
    "\u00a0no break",
    "a\u2581b",
    "",
    " ",
    "return" * 9,
    *CORPUS[:40],
]
BYTES = {"byte_fallback": True}
WAYS: dict[str, dict[str, Any]] = {
    "as Llama": BYTES | {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "as Gemma": BYTES
    | {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": False},
    "normalised": BYTES,
    "stripped": BYTES | {"normalization_rule_name": "identity"},
    "without bytes": {"vocab_size": 300},
}


def train(directory: Path, kind: str, vocab_size: int = 400, **options: Any) -> Any:
    """Train a small model, write it as tokenizer.model, and return it as SentencePiece reads it."""
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=buffer,
        model_type=kind,
        vocab_size=vocab_size,
        character_coverage=0.99,
        user_defined_symbols=["<|user|>"],
        minloglevel=2,
        **options,
    )
    (directory / "tokenizer.model").write_bytes(buffer.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=buffer.getvalue())


def loaded(directory: Path, **settings: Any) -> Tokenizer:
    if settings:
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(directory)
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_texts_are_cut_and_joined_as_by_sentencepiece(kind: str, way: str, tmp_path: Path) -> None:
    theirs = train(tmp_path, kind, **WAYS[way])
    ours = loaded(tmp_path)
    begins_anew = kind == "bpe" and WAYS[way].get("add_dummy_prefix", True)
    for text in TEXTS + ([] if begins_anew else ["one <|user|> two"]):
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == ids, text
        if WAYS[way].get("byte_fallback"):
            assert ours.decode(ids) == theirs.decode(ids), text


def test_special_tokens_stand_around_prompts_and_are_found_in_chats(tmp_path: Path) -> None:
    theirs = train(tmp_path, "bpe", **WAYS["as Llama"])
    ours = loaded(tmp_path)
    assert (ours.bos_token, ours.eos_token) == ("<s>", "</s>")
    assert ours.encode("one line") == [theirs.bos_id(), *theirs.encode("one line")]
    assert ours.special_ids == {theirs.unk_id(), theirs.bos_id(), theirs.eos_id()}
    chat = ours.encode_chat("<s>one</s>")
    assert (chat[0], chat[-1]) == (theirs.bos_id(), theirs.eos_id())
    assert ours.decode(chat) == "one"
    unwrapped = loaded(tmp_path, add_bos_token=False)
    assert unwrapped.encode("one line") == theirs.encode("one line")


def test_a_space_is_put_once_where_the_config_says_so(tmp_path: Path) -> None:
    theirs = train(tmp_path, "bpe", **WAYS["as Llama"])
    pieces = [theirs.id_to_piece(token) for token in loaded(tmp_path, legacy=False).encode_chat("<s>one")]
    assert "".join(pieces) == "<s>one"
    assert loaded(tmp_path, legacy=False).encode_chat("one") == theirs.encode("one")
    assert loaded(tmp_path, legacy=True).encode_chat("<s>one")[1:] == theirs.encode("one")


def test_tokens_that_were_added_later_have_their_ids(tmp_path: Path) -> None:
    size = train(tmp_path, "unigram", **WAYS["as Llama"]).vocab_size()
    later = {str(size): {"content": "<|end|>", "special": True}, str(size + 1): {"content": "<tool>"}}
    ours = loaded(tmp_path, added_tokens_decoder=later)
    assert ours.encode_chat("<|end|><tool>") == [size, size + 1]
    assert ours.decode([size, size + 1]) == "<tool>"
    apart = {str(size): {"content": "<|end|>"}, str(size + 9): {"content": "<tool>"}}
    with pytest.raises(CheckpointError, match=rf"'<tool>' should have the id {size + 9}, .* end at {size}"):
        loaded(tmp_path, added_tokens_decoder=apart)


def test_a_checkpoint_opens_with_its_sentencepiece_model(families: Path, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(families / "llama-tied", directory)
    (directory / "tokenizer.json").unlink(missing_ok=True)
    theirs = train(directory, "bpe", **WAYS["as Llama"])
    tokenizer = open_checkpoint(directory).tokenizer
    assert tokenizer is not None
    assert tokenizer.decode(theirs.encode("Checked")) == "Checked"


def test_without_the_library_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"any")
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    cure = r"tokenizer\.model is a SentencePiece model.*pip install 'rekindle-llm\["
    with pytest.raises(UnsupportedModel, match=cure):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\xff\xff\xff no model"])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.model: .* Fetch it again"):
        load_tokenizer(tmp_path)


def test_other_types_of_models_are_refused(tmp_path: Path) -> None:
    train(tmp_path, "char", vocab_size=60)
    with pytest.raises(UnsupportedModel, match="type BPE or unigram"):
        load_tokenizer(tmp_path)
