"""A model saved as safetensors has the session's codes, in the format that vLLM and transformers read."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from rekindle.assembly.loading.forms import weight_form
from rekindle.core.concurrency.progress import Progress, silent
from rekindle.core.device.place import Place
from rekindle.core.errors import StorageError, UnsupportedModel
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.saving.saving import save_model
from rekindle.settings.engine import Quantize, Settings
from rekindle_kernels.encode import encode
from rekindle_kernels.quantized import Quantized
from rekindle_kernels.storage import BlockRows
from tests.gguf_models.files import write_model

HERE = Place((jax.devices()[0],))


def kinds_of(checkpoint: Checkpoint, quantize: Quantize = "int4") -> dict[str, str]:
    form = weight_form(checkpoint, Settings(quantize=quantize, weights="dequantized"), jnp.dtype("float32"), HERE)
    return dict(form.kind_of)


@pytest.mark.parametrize("quantize", ["int4", "int8"])
@pytest.mark.parametrize("model", ["qwen2", "qwen3", "phimoe"])
def test_a_directory_has_the_codes_of_the_session(
    model: str, quantize: Quantize, families: Path, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(families / model)
    kinds = kinds_of(checkpoint, quantize)
    directory = save_model(checkpoint, kinds, tmp_path / "model", silent).path
    stored = open_checkpoint(directory)
    assert stored.config == checkpoint.config
    tables = {f"{checkpoint.config.names.embedding}.weight", f"{checkpoint.config.names.head}.weight"}
    count = 0
    for name, tensor in checkpoint.tensors.items():
        numbers, other = np.asarray(tensor), stored.tensors[name]
        if name not in kinds or name in tables:
            np.testing.assert_array_equal(np.asarray(other), numbers)
            continue
        assert isinstance(other, Quantized)
        codes, count = BlockRows.of(other), count + 1
        assert codes.kind == kinds[name]
        np.testing.assert_array_equal(codes.data, encode(numbers, kinds[name]).data)
    assert count > 5
    assert stored.formats


def test_the_config_has_one_scheme_for_linear_modules(families: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen3")
    kinds = kinds_of(checkpoint)
    assert set(kinds.values()) == {"int4:64", "int4:32", "int4:128", "int8:64"} & set(kinds.values())
    directory = save_model(checkpoint, kinds, tmp_path / "model", silent).path
    config = json.loads((directory / "config.json").read_text())
    options = config.pop("quantization_config")
    assert config == json.loads((families / "qwen3" / "config.json").read_text())
    assert (options["quant_method"], options["format"]) == ("compressed-tensors", "pack-quantized")
    assert options["ignore"] == ["lm_head", "model.embed_tokens"]
    targets = [target for group in options["config_groups"].values() for target in group["targets"]]
    assert len(targets) == len(set(targets)) == len([name for name in kinds if "layers" in name])
    shapes = load_file(directory / "model.safetensors")
    weight = shapes["model.layers.0.mlp.up_proj.weight_packed"]
    assert weight.dtype == np.int32
    assert weight.shape == (160, 8)
    assert shapes["model.layers.0.mlp.up_proj.weight_shape"].tolist() == [160, 64]


def test_small_files_are_copied_and_others_are_not(families: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(families / "llama-sharded", source)
    for name in (
        "tokenizer_config.json",
        "chat_template.jinja",
        "additional_chat_templates/tools.jinja",
        ".git/x.json",
    ):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("{}")
    (source / "golden.bin").write_bytes(b"1")
    save_model(open_checkpoint(source), {}, tmp_path / "model", silent)
    files = {str(each.relative_to(tmp_path / "model")) for each in (tmp_path / "model").rglob("*") if each.is_file()}
    assert files >= {"config.json", "model.safetensors", "chat_template.jinja", "additional_chat_templates/tools.jinja"}
    assert not files & {".git/x.json", "golden.bin", "golden.npz", "model.safetensors.index.json"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("gpt2", "is no linear module of its own"),
        ("gemma3-wrapped", "is a text model inside of another model"),
    ],
)
def test_what_the_format_has_not_is_refused_by_name(model: str, message: str, families: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(families / model)
    kinds = dict.fromkeys((name for name in checkpoint.tensors if "mlp" in name and "weight" in name), "int4:32")
    with pytest.raises(UnsupportedModel, match=message):
        save_model(checkpoint, kinds, tmp_path / "model", silent)
    assert not list(tmp_path.iterdir())


def test_a_gguf_file_has_no_config_for_a_directory(families: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(families / "qwen3", tmp_path / "source.gguf"))
    with pytest.raises(UnsupportedModel, match=r"is a GGUF file.*write a path with .gguf"):
        save_model(checkpoint, {}, tmp_path / "model", silent)


def test_an_interrupted_directory_leaves_nothing(families: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen3")

    def stop(progress: Progress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_model(checkpoint, kinds_of(checkpoint), tmp_path / "model", stop)
    assert not list(tmp_path.iterdir())


def test_only_a_model_directory_is_overwritten(families: Path, tmp_path: Path) -> None:
    checkpoint, path = open_checkpoint(families / "qwen3"), tmp_path / "model"
    path.mkdir()
    save_model(checkpoint, {}, path, silent)  # an empty directory is free
    with pytest.raises(StorageError, match=r"exists: .*overwrite=True"):
        save_model(checkpoint, {}, path, silent)
    (path / "old.txt").write_text("old")
    save_model(checkpoint, {}, path, silent, overwrite=True)
    assert not (path / "old.txt").exists()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.png").write_bytes(b"1")
    with pytest.raises(StorageError, match="is no model directory"):
        save_model(checkpoint, {}, tmp_path / "photos", silent, overwrite=True)
    with pytest.raises(StorageError, match="is the model itself"):
        save_model(open_checkpoint(path), {}, path, silent, overwrite=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model", "photos"]
