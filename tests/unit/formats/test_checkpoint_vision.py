"""A model opens with its vision tower, from every form of its files."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import load_file, save_file

from rekindle.assembly.preparing.prompt_reader import PromptReader
from rekindle.core.errors import CheckpointError, ConfigError, InvalidRequest, ModelNotFound, UnsupportedModel
from rekindle.core.messages import Illustrated
from rekindle.core.models.config import AttentionConfig, FeedForwardConfig, LayerConfig, Norm
from rekindle.core.models.vision.tower import tower_shapes
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import Checkpoint, TowerFiles
from rekindle.formats.checkpoints.gguf.checkpoint import open_gguf
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.vision.mmproj import open_tower
from rekindle.formats.families.towers import tower_config
from rekindle.formats.images.sources import image_source
from rekindle.formats.rendering.chat import render
from rekindle.settings.engine import Settings
from tests.engine.pictured import Pictured
from tests.gguf_models.files import write_model
from tests.gguf_models.mmproj import write_further_mmproj, write_gemma_mmproj, write_mmproj, write_qwen_mmproj
from tests.vision import SMOLVLM, SMOLVLM_256M, Array, RunningTower, golden, patches_of

Tensors = dict[str, Array]
PATCHES = "model.vision_model.embeddings.patch_embedding.weight"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SMOLVLM, tmp_path / "SmolVLM-tiny", copy_function=shutil.copyfile))


def change(directory: Path, tensors: Callable[[Tensors], Tensors], **settings: Any) -> Path:
    """Write the files of a model anew, with other tensors and settings."""
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    save_file(tensors(load_file(SMOLVLM / "model.safetensors")), directory / "model.safetensors")
    return directory


def tower_of(checkpoint: Checkpoint) -> TowerFiles:
    assert checkpoint.vision is not None
    return checkpoint.vision


def assert_same(tower: TowerFiles) -> None:
    """Check a tower against that of the golden."""
    expected = tower_of(open_checkpoint(SMOLVLM))
    assert tower.config == expected.config
    assert list(tower.tensors) == list(expected.tensors)
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(np.asarray(tower.tensors[name]), tensor, err_msg=name)


def bare(tensors: Tensors) -> Tensors:
    """Return the tensors of a model without its head, as `SmolVLMModel` saves them."""
    return {name.removeprefix("model."): each for name, each in tensors.items() if not name.startswith("lm_head.")}


FORMS: Mapping[str, Callable[[Tensors], Tensors]] = {
    "from training": lambda tensors: {f"module.{name}": each for name, each in tensors.items()},
    "without a head": bare,
    "convolution of MLX": lambda tensors: tensors | {PATCHES: tensors[PATCHES].transpose(0, 2, 3, 1).copy()},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_tower_is_found_by_each_of_its_names(copy: Path, form: str) -> None:
    assert_same(tower_of(open_checkpoint(change(copy, FORMS[form]))))


def test_idefics3_has_the_same_tower(copy: Path) -> None:
    names = {"architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3"}
    assert_same(tower_of(open_checkpoint(change(copy, dict, **names))))


def test_bfloat16_stays_what_it_is(copy: Path) -> None:
    def narrow(tensors: Tensors) -> Tensors:
        return {name: each.astype(ml_dtypes.bfloat16) for name, each in tensors.items()}

    tower = tower_of(open_checkpoint(change(copy, narrow)))
    assert {np.asarray(each).dtype for each in tower.tensors.values()} == {np.dtype(ml_dtypes.bfloat16)}


def test_sizes_of_published_configs_are_read() -> None:
    config = tower_config(SMOLVLM_256M, 576, "config.json")
    assert config is not None
    attention = AttentionConfig(12, 12, 64, 0.125, qkv_bias=True, out_bias=True)
    layer = LayerConfig(attention, FeedForwardConfig(3072, "gelu_tanh", gated=False, bias=True))
    assert config.encoder.layers == (layer,) * 12
    assert config.encoder.norm == Norm(1e-6, centred=True, bias=True)
    assert (config.patch_width, config.merge, config.output_size) == (768, 4, 576)
    shapes = tower_shapes(config)
    assert shapes["model.vision_model.embeddings.position_embedding.weight"] == (1024, 768)
    assert shapes["model.connector.modality_projection.proj.weight"] == (576, 16 * 768)
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 93_510_912


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_act": "relu6"}, "hidden_act 'relu6' is not supported"),
        ({"num_attention_heads": 5}, "hidden_size must be a multiple of 5 heads, got 32"),
        ({"image_size": 24}, "image_size must have a multiple of 2 patches of 8 pixels, got 24"),
    ],
)
def test_wrong_settings_are_named(copy: Path, settings: dict[str, Any], message: str) -> None:
    vision = json.loads((SMOLVLM / "config.json").read_text())["vision_config"] | settings
    with pytest.raises((CheckpointError, UnsupportedModel), match=message):
        open_checkpoint(change(copy, dict, vision_config=vision))


def test_unknown_settings_are_told(copy: Path) -> None:
    vision = json.loads((SMOLVLM / "config.json").read_text())["vision_config"] | {"new_gate": 3, "size": {}}
    with pytest.warns(RuntimeWarning, match=r"vision_config has unknown keys that may change .*: new_gate$"):
        open_checkpoint(change(copy, dict, vision_config=vision))


def test_a_model_without_the_weights_of_its_tower_is_for_text(copy: Path) -> None:
    def text(tensors: Tensors) -> Tensors:
        return {name: each for name, each in tensors.items() if "vision" not in name and "connector" not in name}

    checkpoint = open_checkpoint(change(copy, text))
    assert checkpoint.vision is None
    assert checkpoint.tensors
    image = Illustrated("What?", ((SMOLVLM / "image-0.png", "auto"),))
    with pytest.raises(InvalidRequest, match="are those of the text model alone"):
        PromptReader.of(checkpoint, 64).read(image)
    with pytest.raises(InvalidRequest, match="image_bytes=0"):
        PromptReader.of(open_checkpoint(SMOLVLM), 64).read(image)


def test_a_missing_or_wrong_tensor_of_the_tower_is_named(copy: Path) -> None:
    def without(tensors: Tensors) -> Tensors:
        return {name: each for name, each in tensors.items() if "layers.1.mlp.fc2.bias" not in name}

    with pytest.raises(
        CheckpointError, match=r"missing model\.vision_model\..*layers\.1\.mlp\.fc2\.bias of its vision"
    ):
        open_checkpoint(change(copy, without))
    wrong = {"model.vision_model.post_layernorm.weight": np.ones(31, np.float32)}
    with pytest.raises(CheckpointError, match=r"post_layernorm\.weight must have the shape \(32,\) .* got \(31,\)"):
        open_checkpoint(change(copy, lambda tensors: tensors | wrong))


@pytest.fixture
def text_gguf(tmp_path: Path, copy: Path) -> Path:
    """Write the text model of the golden as a GGUF file."""
    config = json.loads((copy / "config.json").read_text())
    directory = tmp_path / "text"
    directory.mkdir()
    (directory / "config.json").write_text(
        json.dumps(config["text_config"] | {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False})
    )
    tensors = load_file(copy / "model.safetensors")
    text = {name.replace("text_model.", ""): each for name, each in tensors.items() if "vision" not in name}
    save_file({name: each for name, each in text.items() if "connector" not in name}, directory / "model.safetensors")
    (tmp_path / "gguf").mkdir()
    return write_model(directory, tmp_path / "gguf" / "SmolVLM-tiny-Q8_0.gguf")


def test_a_gguf_file_alone_is_for_text(text_gguf: Path) -> None:
    assert open_checkpoint(text_gguf).vision is None


@pytest.mark.parametrize("name", ["mmproj-SmolVLM-tiny-f16.gguf", "smolvlm-tiny-mmproj.gguf", "mmproj-F32.GGUF"])
def test_the_tower_beside_a_gguf_file_is_found(text_gguf: Path, name: str) -> None:
    path = write_mmproj(SMOLVLM, text_gguf.with_name(name))
    checkpoint = open_checkpoint(text_gguf)
    assert_same(tower_of(checkpoint))
    assert checkpoint.files == (text_gguf, path)


@pytest.fixture
def snapshot(text_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay out the cache of the hub with a model in two precisions, one of them in a folder, and its tower."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    commit, repository = "0123456789abcdef0123456789abcdef01234567", tmp_path / "hub" / "models--owner--SmolVLM-GGUF"
    tower = write_mmproj(SMOLVLM, tmp_path / "tower.gguf")
    files = {"SmolVLM-tiny-Q8_0.gguf": text_gguf, "BF16/SmolVLM-tiny-BF16.gguf": text_gguf, "mmproj-F16.gguf": tower}
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "blobs").mkdir()
    for name, source in files.items():
        blob = repository / "blobs" / hashlib.sha256(source.read_bytes()).hexdigest()
        shutil.copyfile(source, blob)
        link = repository / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return repository / "snapshots" / commit


@pytest.mark.parametrize("file", ["SmolVLM-tiny-Q8_0.gguf", "BF16/SmolVLM-tiny-BF16.gguf"])
def test_the_tower_in_a_snapshot_of_the_hub_is_found(snapshot: Path, file: str) -> None:
    name = f"owner/SmolVLM-GGUF/{file}"
    for model in (str(snapshot / file), name, f"{name}@main", f"huggingface:{name}"):
        checkpoint = open_checkpoint(model)
        assert_same(tower_of(checkpoint))
        assert checkpoint.files[-1].name == "mmproj-F16.gguf"
    (snapshot / "mmproj-F16.gguf").rename(snapshot / "tower.gguf")
    assert open_checkpoint(name).vision is None
    assert_same(tower_of(open_checkpoint(name, mmproj="owner/SmolVLM-GGUF/tower.gguf")))


def test_a_tower_that_the_cache_has_lost_is_none(snapshot: Path) -> None:
    (snapshot / "mmproj-F16.gguf").resolve().unlink()
    assert open_checkpoint("owner/SmolVLM-GGUF/SmolVLM-tiny-Q8_0.gguf").vision is None


@pytest.mark.parametrize("has_tower", [False, True])
def test_an_image_for_a_gguf_file_without_its_tower_names_mmproj(text_gguf: Path, has_tower: bool) -> None:
    if has_tower:  # of another model
        write_mmproj(SMOLVLM, text_gguf.with_name("mmproj-f32.gguf"), change=edited("clip.vision.projection_dim", 64))
    reader = PromptReader.of(open_checkpoint(text_gguf), 64, 64)
    with pytest.raises(InvalidRequest, match=r"such as SmolVLM2; .* give that as mmproj="):
        reader.read(Illustrated("What?", ((SMOLVLM / "image-0.png", "auto"),)))


def test_of_several_towers_the_most_precise_of_the_model_is_taken(text_gguf: Path) -> None:
    narrow = {f"v.blk.{layer}.{part}.weight": "F16" for layer in range(2) for part in ("attn_q", "ffn_up")}
    write_mmproj(SMOLVLM, text_gguf.with_name("mmproj-SmolVLM-tiny-Q8_0.gguf"), kinds=narrow)
    write_mmproj(SMOLVLM, text_gguf.with_name("mmproj-another-f32.gguf"))
    write_mmproj(SMOLVLM, text_gguf.with_name("mmproj-f32.gguf"))
    whole = write_mmproj(SMOLVLM, text_gguf.with_name("mmproj-SmolVLM-tiny-f32.gguf"))
    assert open_checkpoint(text_gguf).files[-1] == whole
    whole.unlink()
    assert open_checkpoint(text_gguf).files[-1].name == "mmproj-SmolVLM-tiny-Q8_0.gguf"


def exchange(writer: gguf.GGUFWriter) -> None:
    """Exchange the names of the two products of feed-forward layers, as older converters did."""
    names = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    stored = dict(writer.tensors[0])
    writer.tensors[0].clear()
    for name, info in stored.items():
        part = name.split(".")[-2]
        writer.tensors[0][name.replace(part, names[part]) if part in names else name] = info


def test_exchanged_names_of_older_files_are_put_right(text_gguf: Path, tmp_path: Path) -> None:
    path = write_mmproj(SMOLVLM, tmp_path / "older.gguf", change=exchange)
    assert_same(tower_of(open_gguf(text_gguf, path)))


def test_quantized_towers_are_read(text_gguf: Path) -> None:
    path = text_gguf.with_name("mmproj-q8_0.gguf")
    kinds = {f"v.blk.{layer}.{part}.weight": "Q8_0" for layer in range(2) for part in ("attn_q", "attn_out", "ffn_up")}
    write_mmproj(SMOLVLM, path, kinds=kinds)
    tower = tower_of(open_checkpoint(text_gguf))
    pixels, expected = golden(0)
    embeddings = RunningTower.of(tower).embed(patches_of(pixels, 8, 2))
    error = np.abs(embeddings - expected).max() / np.abs(expected).max()
    assert 1e-4 < error < 0.03


def edited(key: str, value: Any) -> Callable[[gguf.GGUFWriter], None]:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0][key].value = value

    return edit


def test_towers_of_other_kinds_are_for_text_unless_asked_for(text_gguf: Path) -> None:
    path = text_gguf.with_name("mmproj-f32.gguf")
    for key, value, message in (
        (
            "clip.projector_type",
            "ldpv2",
            "the projector 'ldpv2' is not supported, only gemma3, gemma4v, idefics3",
        ),
        ("clip.vision.projection_dim", 64, "for embeddings of 64 numbers, and those of the model have 32"),
    ):
        write_mmproj(SMOLVLM, path, change=edited(key, value))
        assert open_checkpoint(text_gguf).vision is None
        with pytest.raises(UnsupportedModel, match=message):
            open_gguf(text_gguf, path)


def edit(path: Path, **settings: Any) -> None:
    """Write a file of settings anew, with others."""
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.wide
@pytest.mark.parametrize("family", ["qwen2-vl", "qwen2_5-vl", "qwen3-vl", "qwen3_5"])
def test_towers_of_qwen_are_the_same_from_llama_cpp(family: str, tmp_path: Path) -> None:
    model = Pictured(family)
    checkpoint = open_checkpoint(model.path)
    path = write_qwen_mmproj(model.path, tmp_path / "mmproj-f32.gguf")
    tower = open_tower(path, checkpoint.config, checkpoint.tokenizer)
    directory = tmp_path / "published"
    shutil.copytree(model.path, directory, copy_function=shutil.copyfile)
    is_old = family.startswith("qwen2")
    least, most = (3136, 12_845_056) if is_old else (65_536, 16_777_216)
    edit(directory / "preprocessor_config.json", size={"shortest_edge": least, "longest_edge": most})
    videos, config = directory / "video_preprocessor_config.json", directory / "config.json"
    if is_old:  # the older two take the sizes of images, and two positions a second
        videos.unlink()
        own = json.loads(config.read_text())["vision_config"] | {"tokens_per_second": 2, "window_size": 112}
        edit(config, vision_config={key: own[key] for key in own if key != "window_size" or family == "qwen2_5-vl"})
    else:
        edit(videos, size={"shortest_edge": 4096, "longest_edge": 25_165_824})
    checkpoint = open_checkpoint(directory)
    assert tower.images == checkpoint.images, "llama.cpp's files have no sizes of images and videos"
    expected, other = tower_of(checkpoint), tower.files
    assert replace(other.config, encoder=expected.config.encoder) == expected.config
    pixels = image_source(model.path / "image-0.png").pixels()
    assert tower.images is not None
    patches = tower.images.patches(pixels)
    np.testing.assert_array_equal(RunningTower.of(other).embed(patches), RunningTower.of(expected).embed(patches))


@pytest.mark.parametrize(
    "family", ["lfm2-vl", "pixtral", *(pytest.param(each, marks=pytest.mark.wide) for each in ("internvl", "mistral3"))]
)
def test_further_towers_are_the_same_from_llama_cpp(family: str, tmp_path: Path) -> None:
    model = Pictured(family)
    checkpoint = open_checkpoint(model.path)
    directory = Path(shutil.copytree(model.path, tmp_path / "model", copy_function=shutil.copyfile))
    if family == "internvl":  # as published: the converter takes the numbers of tiles from there
        edit(directory / "config.json", min_dynamic_patch=1, max_dynamic_patch=4)
    path = write_further_mmproj(directory, tmp_path / "mmproj-f32.gguf")
    opened = open_tower(path, checkpoint.config, checkpoint.tokenizer)
    assert checkpoint.images is not None
    assert opened.images is not None
    assert (opened.images == checkpoint.images) == (family != "lfm2-vl"), "its files have no settings of images"
    assert opened.images.words.texts[:2] == checkpoint.images.words.texts[:2]
    patches = checkpoint.images.patches(image_source(model.path / "image-0.png").pixels())
    is_valid = patches.valid[:, :: opened.files.config.merge**2].reshape(-1)
    towers = RunningTower.of(opened.files), RunningTower.of(tower_of(checkpoint))
    ours, expected = (tower.embed(patches)[is_valid] for tower in towers)
    assert np.abs(ours - expected).max() < 5e-6 * np.abs(expected).max()


@pytest.mark.parametrize("family", ["internvl", "lfm2-vl", "mistral3", "paligemma"])
@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("encoder", ["vision_tower.vision_model.", "vision_tower."])
def test_towers_are_found_by_every_name_of_transformers(family: str, prefix: str, encoder: str, tmp_path: Path) -> None:
    model = Pictured(family)
    is_siglip = family in ("lfm2-vl", "paligemma")
    directory = tmp_path / "model"
    shutil.copytree(model.path, directory, copy_function=shutil.copyfile)

    def renamed(name: str) -> str:
        whole = name.removeprefix("model.").replace("language_model.model.", "language_model.")
        if is_siglip:
            whole = whole.replace("vision_tower.vision_model.", encoder)
        if whole.startswith("language_model."):
            return name if prefix else whole.replace("language_model.", "language_model.model.")
        return prefix + whole

    tensors = load_file(model.path / "model.safetensors")
    save_file({renamed(name): each for name, each in tensors.items()}, directory / "model.safetensors")
    tower, expected = tower_of(open_checkpoint(directory)), tower_of(open_checkpoint(model.path))
    assert tower.config == expected.config
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(np.asarray(tower.tensors[name]), np.asarray(tensor), err_msg=name)


@pytest.mark.parametrize("family", ["gemma3", "gemma4-dense", "gemma4-e"])
def test_towers_of_gemma_are_the_same_from_llama_cpp(family: str, tmp_path: Path) -> None:
    model = Pictured(family)
    checkpoint = open_checkpoint(model.path)
    own = tower_of(checkpoint)
    path = write_gemma_mmproj(model.path, tmp_path / "mmproj.gguf")
    tower = open_tower(path, checkpoint.config, checkpoint.tokenizer)
    assert tower.files.config.encoder == own.config.encoder
    assert type(tower.images) is type(checkpoint.images)
    for name, tensor in own.tensors.items():
        stored = np.asarray(tower.files.tensors[name], np.float32)
        expected = np.asarray(tensor, np.float32)
        if "soft_emb_norm" in name:  # llama.cpp's files have the 1 added
            expected = expected + 1
        elif "mm_input_projection" in name:  # in float16 in every file
            expected = expected.astype(np.float16).astype(np.float32)
        np.testing.assert_allclose(stored, expected, rtol=0, atol=1e-7, err_msg=name)


def test_a_flat_config_has_the_same_tower_and_coordinates(tmp_path: Path) -> None:
    """Check the published form of Qwen2.5-VL: keys of the text beside the others, older names, its own settings."""
    model = Pictured("qwen2_5-vl")
    expected = open_checkpoint(model.path)
    copy = Path(shutil.copytree(model.path, tmp_path / "flat", copy_function=shutil.copyfile))
    settings = json.loads((copy / "config.json").read_text())
    text, vision = settings.pop("text_config"), settings["vision_config"]
    rope = text.pop("rope_parameters")
    text |= {"rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]}, "rope_theta": 10000.0}
    vision["in_chans"] = vision.pop("in_channels")
    vision |= {"spatial_patch_size": 4, "tokens_per_second": 4, "model_type": "qwen2_5_vl"}
    del vision["rope_parameters"]
    flat = {key: each for key, each in text.items() if key not in ("model_type", "layer_types")} | settings
    (copy / "config.json").write_text(json.dumps(flat))
    processor = json.loads((copy / "preprocessor_config.json").read_text())
    size = processor.pop("size")
    bounds = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    (copy / "preprocessor_config.json").write_text(json.dumps(processor | bounds))
    checkpoint = open_checkpoint(copy)
    assert checkpoint.config == expected.config
    assert checkpoint.config.takes_coordinates
    assert checkpoint.images == expected.images
    assert tower_of(checkpoint).config == tower_of(expected).config


def test_sections_of_a_rope_are_read_with_the_tower(tmp_path: Path) -> None:
    model = Pictured("qwen3_5")
    expected, text = open_checkpoint(model.path).config, tmp_path / "text"
    text.mkdir()
    settings = json.loads((model.path / "config.json").read_text())["text_config"]
    (text / "config.json").write_text(json.dumps(settings | {"architectures": ["Qwen3_5ForCausalLM"]}))
    tensors = load_file(model.path / "model.safetensors")
    own = {name.replace("language_model.", ""): each for name, each in tensors.items() if "visual" not in name}
    save_file(own, text / "model.safetensors")
    assert not open_checkpoint(text).config.takes_coordinates, "the text model alone"
    sections = settings["rope_parameters"]["mrope_section"]
    path = write_model(
        text, tmp_path / "m.gguf", change=lambda writer: writer.add_rope_dimension_sections([*sections, 0])
    )
    assert not open_gguf(path).config.takes_coordinates
    mmproj = write_qwen_mmproj(model.path, tmp_path / "mmproj-f32.gguf")
    ropes = [each.rope and each.rope.axes for each in open_gguf(path, mmproj).config.attentions]
    assert ropes == [each.rope and each.rope.axes for each in expected.attentions]


def test_a_template_for_texts_alone_gets_places_for_images(text_gguf: Path, tmp_path: Path) -> None:
    def with_tokenizer(writer: gguf.GGUFWriter) -> None:
        tokenizer = json.loads((SMOLVLM / "tokenizer.json").read_text())
        special = {each["id"] for each in tokenizer["added_tokens"]}
        vocabulary = tokenizer["model"]["vocab"]
        writer.kv_data[0]["tokenizer.ggml.model"].value = "gpt2"
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(sorted(vocabulary, key=vocabulary.get))
        writer.add_token_types([3 if token in special else 1 for token in range(len(vocabulary))])
        writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
        writer.add_chat_template("{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}")

    path = write_model(tmp_path / "text", tmp_path / "with-tokenizer.gguf", with_tokenizer)
    checkpoint = open_gguf(path, write_mmproj(SMOLVLM, tmp_path / "tower.gguf"))
    parts = [{"type": "image"}, {"type": "text", "text": "What?"}]
    messages: Any = [{"role": "system", "content": "Look."}, {"role": "user", "content": parts}]
    assert checkpoint.tokenizer is not None
    assert render(messages, checkpoint.tokenizer.chat_template) == "system: Look.\nuser: <image>What?\n"


def test_files_in_each_others_place_are_named(text_gguf: Path) -> None:
    path = write_mmproj(SMOLVLM, text_gguf.with_name("mmproj-f32.gguf"))
    with pytest.raises(UnsupportedModel, match="is a vision tower: open the file of its model"):
        open_checkpoint(path)
    with pytest.raises(UnsupportedModel, match="is no vision tower: pass a file such as"):
        open_gguf(text_gguf, text_gguf)


def test_images_have_the_rules_of_the_towers_file(text_gguf: Path, copy: Path, byte_tokenizer: Tokenizer) -> None:
    path = write_mmproj(SMOLVLM, text_gguf.with_name("mmproj-f32.gguf"))
    images = open_tower(path, open_checkpoint(text_gguf).config, byte_tokenizer).images
    assert images == open_checkpoint(copy).images
    assert open_checkpoint(text_gguf).images is None, "the file has no tokenizer"


def test_a_tower_elsewhere_is_opened_by_its_path(text_gguf: Path, tmp_path: Path, copy: Path) -> None:
    path = write_mmproj(SMOLVLM, tmp_path / "elsewhere.gguf")
    checkpoint = open_checkpoint(text_gguf, mmproj=str(path))
    assert_same(tower_of(checkpoint))
    assert set(checkpoint.stamps) == {text_gguf, path}
    with pytest.raises(ModelNotFound, match=r"there is no file 'nowhere\.gguf', given as mmproj"):
        open_checkpoint(text_gguf, mmproj="nowhere.gguf")
    with pytest.raises(ConfigError, match=r"is a directory, whose vision tower is among its weights"):
        open_checkpoint(copy, mmproj=str(path))


def test_a_model_of_ollama_opens_with_its_projector(
    text_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    projector, layers = write_mmproj(SMOLVLM, tmp_path / "projector.gguf"), []
    manifest = tmp_path / "ollama" / "manifests" / "registry.ollama.ai" / "library" / "smolvlm" / "latest"
    for directory in (tmp_path / "ollama" / "blobs", manifest.parent):
        directory.mkdir(parents=True)
    for kind, path in (("model", text_gguf), ("projector", projector)):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copyfile(path, tmp_path / "ollama" / "blobs" / f"sha256-{digest}")
        layers.append({"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"})
    manifest.write_text(json.dumps({"layers": layers}))
    assert_same(tower_of(open_checkpoint("ollama:smolvlm")))
    manifest.write_text(json.dumps({"layers": layers[:1]}))
    assert open_checkpoint("ollama:smolvlm").vision is None


def test_a_path_as_a_setting_is_a_text() -> None:
    assert Settings(mmproj=Path("a") / "b.gguf").mmproj == str(Path("a") / "b.gguf")  # type: ignore[arg-type]
    wrong: Any = 3
    with pytest.raises(ConfigError, match="mmproj must be a path of a GGUF file, got 3"):
        Settings(mmproj=wrong)


def test_a_cut_tower_is_an_error(text_gguf: Path) -> None:
    path = write_mmproj(SMOLVLM, text_gguf.with_name("mmproj-f32.gguf"))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match=r"mmproj-f32\.gguf.*truncated"):
        open_checkpoint(text_gguf)
