"""Models in the layout of Mistral's own code open with their tower, under the names of transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.config import QueryGrowth
from rekindle.core.models.layers import halves_first
from rekindle.formats.checkpoints.huggingface.foreign import mistral_settings
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.families.registry import parse_config
from rekindle.formats.images.sources import image_source
from tests.engine.pictured import Pictured
from tests.mistral_layout import write_mistrals
from tests.vision import RunningTower


def with_silu(model: Pictured, directory: Path) -> Path:
    """Copy a model, with the activation of Mistral's own code in its tower."""
    shutil.copytree(model.path, directory, copy_function=shutil.copyfile)
    config = json.loads((directory / "config.json").read_text())
    config["vision_config"]["hidden_act"] = "silu"
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    "family", ["mistral3", *(pytest.param(each, marks=pytest.mark.wide) for each in ("ministral3", "pixtral"))]
)
def test_a_model_has_the_weights_and_the_tower_of_its_other_files(family: str, tmp_path: Path) -> None:
    model = Pictured(family)
    expected = open_checkpoint(with_silu(model, tmp_path / "other"))
    ours = open_checkpoint(write_mistrals(model.path, tmp_path / "own"))
    assert set(ours.tensors) == set(expected.tensors)
    for name, tensor in expected.tensors.items():
        own = np.asarray(ours.tensors[name])
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            size = expected.config.attentions[0].head_dim if "vision_tower" not in name else 16
            own = own[halves_first([len(own) // size, 0, 0], size, size)]
        np.testing.assert_array_equal(own, np.asarray(tensor), err_msg=name)
    assert all(attention.rope is not None and attention.rope.interleaved for attention in ours.config.attentions)
    assert ours.images is not None
    assert expected.images is not None
    assert ours.images.segments == expected.images.segments
    patches = expected.images.patches(image_source(model.path / "image-0.png").pixels())
    np.testing.assert_array_equal(
        ours.images.patches(image_source(model.path / "image-0.png").pixels()).values, patches.values
    )
    assert ours.vision is not None
    assert expected.vision is not None
    ours_embedded, embedded = (RunningTower.of(each).embed(patches) for each in (ours.vision, expected.vision))
    assert np.abs(ours_embedded - embedded).max() < 5e-6 * np.abs(embedded).max()


def params(directory: Path, **changes: Any) -> Path:
    """Write a params.json of a Ministral 3 without a tower."""
    values: dict[str, Any] = {"dim": 32, "n_layers": 2, "head_dim": 8, "hidden_dim": 48, "n_heads": 4, "n_kv_heads": 2}
    values |= {"norm_eps": 1e-5, "vocab_size": 64, "rope_theta": 1e6, **changes}
    (directory / "params.json").write_text(json.dumps(values))
    return directory


def test_a_rope_with_growth_is_that_of_a_ministral(tmp_path: Path) -> None:
    yarn = {"original_max_position_embeddings": 1024, "factor": 16, "apply_scale": False, "beta": 32, "alpha": 1}
    growth = {"original_max_position_embeddings": 1024, "beta": 0.1}
    settings = mistral_settings(params(tmp_path, yarn=yarn, llama_4_scaling=growth, tied_embeddings=True))
    config = parse_config(settings, "params.json")
    assert config.family == "ministral3"
    assert config.tied_embeddings
    assert {attention.growth for attention in config.attentions} == {QueryGrowth(0.1, 1024.0)}
    scaling = config.attentions[0].rope and config.attentions[0].rope.scaling
    assert getattr(scaling, "attention_factor", None) == 1.0


def test_what_is_not_supported_in_this_layout_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"params\.json: moe, quantization is not supported in this layout"):
        mistral_settings(params(tmp_path, quantization={"qformat_weight": "fp8"}, moe={"num_experts": 8}))
    (tmp_path / "consolidated-00001-of-00002.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"1 of 2 consolidated files"):
        open_checkpoint(params(tmp_path))
