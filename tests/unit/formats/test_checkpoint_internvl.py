"""Files of InternVL in the form of OpenGVLab have the tower, the text and the images of those of transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.formats.checkpoints.huggingface.tokenizer import load_tokenizer
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.images.sources import image_source
from tests.engine.pictured import VISION
from tests.unit.formats.internvl_chat import write_internvl_chat
from tests.vision import RunningTower


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    return write_internvl_chat(tmp_path / "model")


def edit(directory: Path, **settings: Any) -> Path:
    """Write config.json anew, with other settings."""
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return directory


@pytest.mark.filterwarnings("error")
def test_both_forms_are_the_same_model(chat: Path) -> None:
    own, expected = open_checkpoint(chat), open_checkpoint(VISION / "internvl")
    assert own.config == expected.config
    assert own.images == expected.images
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(np.asarray(own.tensors[name]), np.asarray(tensor), err_msg=name)
    assert own.images is not None
    assert own.vision is not None
    assert expected.vision is not None
    patches = own.images.patches(image_source(chat / "image-0.png").pixels())
    ours, theirs = (RunningTower.of(each.vision).embed(patches) for each in (own, expected) if each.vision)
    assert np.abs(ours - theirs).max() < 2e-6 * np.abs(theirs).max()


def test_images_are_whole_where_the_config_says_so(chat: Path) -> None:
    images: Any = open_checkpoint(edit(chat, dynamic_image_size=False)).images
    assert (images.least, images.most) == (1, 1)


TEXTS: Any = {
    "What is on it?\n\nthe  test 123, it's\tthere": (
        *(54, 71, 285, 220, 417, 220, 390, 220, 287, 30, 256, 83, 264, 220, 220, 258, 289, 220, 16, 17, 18, 11, 220),
        *(287, 6, 82, 197, 83, 264, 265),
    ),
    "<|im_start|>user\n<img>Cafe\u0301</img> the<IMG_CONTEXT>": (
        *(506, 84, 263, 81, 198, 508, 34, 64, 69, 127, 102, 509, 220, 83, 264, 510),
    ),
}
"""Tokens by the Qwen2Tokenizer of transformers 5.19."""


@pytest.mark.parametrize("kind", ["Qwen2Tokenizer", "Qwen2TokenizerFast"])
def test_a_vocabulary_with_merges_is_a_tokenizer(tmp_path: Path, kind: str) -> None:
    """Check the files of a tokenizer in OpenGVLab's directories: added tokens behind the others."""
    whole = json.loads((VISION / "internvl" / "tokenizer.json").read_text())
    special, ids = [each["content"] for each in whole["added_tokens"]], whole["model"]["vocab"]
    plain = sorted(set(ids) - set(special), key=ids.get)
    (tmp_path / "vocab.json").write_text(json.dumps({token: place for place, token in enumerate(plain)}))
    merges = ["#version: 0.2", *(" ".join(pair) for pair in whole["model"]["merges"])]
    (tmp_path / "merges.txt").write_text("\n".join(merges))
    entries = {len(plain) + place: {"content": token, "special": True} for place, token in enumerate(special)}
    settings = {"tokenizer_class": kind, "added_tokens_decoder": entries, "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    for text, tokens in TEXTS.items():
        assert tuple(tokenizer.backend.encode(text).ids) == tokens
    (tmp_path / "merges.txt").write_text("#version: 0.2\nalone\n")
    with pytest.raises(CheckpointError, match=r"vocab\.json and merges\.txt are not a readable tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "OtherTokenizer"}))
    assert load_tokenizer(tmp_path) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ps_version": "v1"}, "ps_version 'v1' is not supported, only 'v2'"),
        ({"pad2square": True}, "pad2square True is not supported, only False"),
        ({"force_image_size": 64}, "force_image_size 64 is not supported, only 32"),
        ({"select_layer": -2}, "select_layer -2 is not supported, only -1"),
    ],
)
def test_other_forms_of_images_are_refused_by_name(chat: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(edit(chat, **settings))
