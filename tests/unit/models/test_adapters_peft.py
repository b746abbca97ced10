"""Adapters in PEFT's format are read with their scales and names; anything beyond plain LoRA is refused by name."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import rekindle
from rekindle.core.models.adapters.products import products_of
from rekindle.core.models.config import ModelConfig
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.peft import given_adapter, read_adapter
from rekindle.formats.lora import Lora, LowRank
from tests.unit.lora import config_of, random_parts, saved, tensors_of

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def model(families: Path) -> ModelConfig:
    return open_checkpoint(families / "qwen2").config


@pytest.fixture(scope="module")
def parts(model: ModelConfig) -> dict[str, LowRank]:
    """Return summands of two projections, with a scale exact in any order of its factors."""
    return random_parts(model, 4, scale=0.5, selects=lambda name: name in (Q, DOWN))


def test_a_directory_and_arrays_in_memory_are_the_same_adapter(
    model: ModelConfig, parts: dict[str, LowRank], tmp_path: Path
) -> None:
    adapter = read_adapter(saved(tmp_path, parts), model)
    jax_arrays = {name: jnp.asarray(array) for name, array in tensors_of(parts, prefix="").items()}
    short = {name.replace(".weight", ""): array for name, array in tensors_of(parts, "base_model.model.").items()}
    defaults = {name.replace(".weight", ".default.weight"): array for name, array in tensors_of(parts).items()}
    lone: dict[str, Any] = {"r": 4, "lora_alpha": 2}
    others = [given_adapter(tensors, lone, model) for tensors in (jax_arrays, short, defaults)]
    assert adapter.rank == 4
    assert adapter.parts.keys() == {Q, DOWN}
    assert {each.digest for each in others} == {adapter.digest}
    for name, part in parts.items():
        np.testing.assert_array_equal(adapter.parts[name].a, part.a)
        np.testing.assert_array_equal(adapter.parts[name].b, part.b)
        assert adapter.parts[name].scale == 0.5


def test_every_number_is_in_the_digest(model: ModelConfig, parts: dict[str, LowRank]) -> None:
    q = parts[Q]
    a, b = q.a.copy(), q.b.copy()
    a[-1, -1] += 1
    b[0, 0] += 1
    variants = [LowRank(a, q.b, q.scale), LowRank(q.a, b, q.scale), LowRank(q.a, q.b, 1.0)]
    digests = {Lora("", parts).digest, *(Lora("", parts | {Q: each}).digest for each in variants)}
    digests |= {Lora("", {Q: q}).digest, Lora("", {Q: parts[DOWN], DOWN: q}).digest}
    assert len(digests) == 6
    assert Lora("elsewhere", dict(reversed(parts.items()))).digest in digests


def test_scales_follow_patterns_and_rank_stabilisation(model: ModelConfig, parts: dict[str, LowRank]) -> None:
    tensors = tensors_of(parts)
    patterns = {"alpha_pattern": {"q_proj": 12, r"layers\.1\..*": 20}, "rank_pattern": {"self_attn.q_proj": 4}}
    plain = given_adapter(tensors, {"r": 4, "lora_alpha": 8} | patterns, model)
    assert {name: part.scale for name, part in plain.parts.items()} == {Q: 3.0, DOWN: 5.0}
    stable = given_adapter(tensors, {"r": 4, "lora_alpha": 8, "use_rslora": True}, model)
    assert {part.scale for part in stable.parts.values()} == {4.0}
    with pytest.raises(rekindle.CheckpointError, match=r"has rank 4, and by adapter_config\.json it should be 2"):
        given_adapter(tensors, {"r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 2}}, model)
    given_adapter(
        tensors, {"r": 4, "lora_alpha": 8, "rank_pattern": {"_proj": 2}}, model
    )  # the end of a name is a whole part of it


@pytest.mark.parametrize("target", [["q_proj", "down_proj"], r".*\.(q_proj|down_proj)", "all-linear", None])
def test_targets_are_compared_with_the_tensors(model: ModelConfig, parts: dict[str, LowRank], target: Any) -> None:
    config = config_of(parts) | {"target_modules": target}
    assert given_adapter(tensors_of(parts), config, model).parts.keys() == {Q, DOWN}


@pytest.mark.parametrize(
    "wrong",
    [{"target_modules": ["proj"]}, {"target_modules": "q_proj"}, {"exclude_modules": ["q_proj"]}],
)
def test_tensors_of_another_target_are_refused(
    model: ModelConfig, parts: dict[str, LowRank], wrong: dict[str, Any]
) -> None:
    with pytest.raises(rekindle.CheckpointError, match=r"is no target by adapter_config\.json"):
        given_adapter(tensors_of(parts), config_of(parts) | wrong, model)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("peft_type", "LOHA"),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("modules_to_save", ["lm_head"]),
        ("use_dora", True),
        ("layer_replication", [[0, 1]]),
        ("trainable_token_indices", [3]),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("use_qalora", True),
        ("alora_invocation_tokens", [1]),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "lora_ga"),
        ("kasa_config", {"beta": 1e-4}),
        ("monteclora_config", {"num_samples": 4}),
        ("use_bdlora", {"nblocks": 2}),
        ("arrow_config", {"top_k": 3}),
        ("megatron_config", {"hidden_size": 4}),
        ("fan_in_fan_out", True),
    ],
)
def test_an_entry_that_is_more_than_lora_is_refused_by_name(
    model: ModelConfig, parts: dict[str, LowRank], entry: str, value: Any
) -> None:
    with pytest.raises(rekindle.UnsupportedModel, match=f"its {entry} is "):
        given_adapter(tensors_of(parts), config_of(parts) | {entry: value}, model)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (f"{Q}.lora_magnitude_vector", "it is DoRA"),
        (f"{Q}.lora_magnitude_vector.default.weight", "it is DoRA"),
        ("model.embed_tokens.lora_embedding_A", "it changes embeddings"),
        ("lm_head.modules_to_save.weight", "it replaces whole modules"),
        (f"{Q}.base_layer.weight", "weights of the model itself"),
        (f"{Q}.bias", "it changes biases"),
        (f"{Q}.lora_B.bias", "it changes biases"),
        ("model.embed_tokens.token_adapter.trainable_tokens_delta", "the embeddings of some tokens"),
        (f"{Q}.lora_E", "another kind of weight"),
        (f"{Q}.ia3_l", "no part of a LoRA"),
    ],
)
def test_a_tensor_that_is_more_than_lora_is_refused_by_name(
    model: ModelConfig, parts: dict[str, LowRank], tensor: str, reason: str
) -> None:
    tensors = tensors_of(parts) | {f"base_model.model.{tensor}": np.zeros((4, 4), np.float32)}
    with pytest.raises(rekindle.UnsupportedModel, match=f"{tensor.rpartition('.')[2]} is not supported: .*{reason}"):
        given_adapter(tensors, config_of(parts), model)


def test_what_does_not_fit_the_model_is_refused(model: ModelConfig, parts: dict[str, LowRank]) -> None:
    def check(parts: dict[str, LowRank], rank: int = 16) -> None:
        Lora("x", parts).check(model, products_of(model), rank)

    q = parts[Q]
    check(parts, 4)
    with pytest.raises(rekindle.UnsupportedModel, match=r"rank 4, and this session has room for rank 3: .*_rank=4"):
        check(parts, 3)
    with pytest.raises(rekindle.UnsupportedModel, match="trained for another model"):
        check({Q: LowRank(q.a[:, 1:], q.b, 1)})
    with pytest.raises(rekindle.UnsupportedModel, match="has numbers that are not finite"):
        check({Q: LowRank(q.a, np.full_like(q.b, np.nan), 1)})
    with pytest.raises(rekindle.UnsupportedModel, match="changes the embeddings"):
        check({"model.embed_tokens": q})
    with pytest.raises(rekindle.UnsupportedModel, match="has no counterpart in a model of the family qwen2"):
        check({"model.layers.9.self_attn.q_proj": q})


def test_experts_are_refused(families: Path) -> None:
    config = open_checkpoint(families / "qwen3-moe").config
    part = LowRank(np.zeros((1, 2), np.float32), np.zeros((2, 1), np.float32), 1.0)
    with pytest.raises(rekindle.UnsupportedModel, match="is for experts"):
        Lora("x", {"model.layers.0.mlp.experts.0.gate_proj": part}).check(config, products_of(config), 4)


def test_a_text_model_inside_of_another_has_its_own_names(families: Path) -> None:
    config = open_checkpoint(families / "gemma3-wrapped").config
    name = next(name for product in products_of(config) for name in product.parts if ".q_proj" in name)
    inside = "model.language_model." + name.removeprefix(config.names.base)
    array = np.zeros((4, 4), np.float32)
    tensors = {f"base_model.model.{inside}.lora_{side}.weight": array for side in "AB"}
    assert given_adapter(tensors, {"r": 4, "lora_alpha": 8}, config).parts.keys() == {name}


def test_an_incomplete_or_damaged_adapter_is_told(
    model: ModelConfig, parts: dict[str, LowRank], tmp_path: Path
) -> None:
    with pytest.raises(rekindle.ModelNotFound, match=r"has no adapter_config\.json and no adapter_model\.safetensors"):
        read_adapter(tmp_path / "nowhere", model)
    directory = saved(tmp_path / "half", parts)
    tensors = {name: array for name, array in tensors_of(parts).items() if "lora_A" in name}
    save_file(tensors, directory / "adapter_model.safetensors")
    with pytest.raises(rekindle.CheckpointError, match="has lora_A alone; the file is incomplete"):
        read_adapter(directory, model)
    (directory / "adapter_model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(rekindle.CheckpointError, match="truncated or corrupt"):
        read_adapter(directory, model)
    (directory / "adapter_config.json").write_text(json.dumps([1]))
    with pytest.raises(rekindle.CheckpointError, match="expected a JSON object"):
        read_adapter(directory, model)
    with pytest.raises(rekindle.CheckpointError, match="it has no tensors of a LoRA"):
        given_adapter({}, {"r": 4, "lora_alpha": 8}, model)
    for config, message in (
        ({"r": 0}, "ranks must be positive integers"),
        ({"r": 4, "lora_alpha": "much"}, "lora_alpha must be a number"),
        ({"r": 4, "alpha_pattern": {"(": 3}}, "no regular expression"),
        ({"r": 4, "target_modules": 3}, "must be names or a regular expression"),
        ({"r": 4, "rank_pattern": 3}, "must map patterns to numbers"),
        ({"r": True}, "ranks must be positive integers"),
        ({"r": 4, "lora_alpha": True}, "lora_alpha must be a number"),
        ({"use_rslora": "no"}, "use_rslora must be true or false, got 'no'"),
        ({"fan_in_fan_out": "no"}, "fan_in_fan_out must be true or false"),
        ({"layers_to_transform": [0]}, "is no target"),
        ({"layers_to_transform": 1, "layers_pattern": "layers"}, "is no target"),
    ):
        with pytest.raises(rekindle.CheckpointError, match=message):
            given_adapter(tensors_of(parts), {"r": 4, "lora_alpha": 8} | config, model)


@pytest.mark.parametrize(
    ("config", "missing"), [({"r": 4}, "no lora_alpha"), ({"lora_alpha": 8}, "no r;"), ({}, "no r and no lora_alpha")]
)
def test_rank_and_scale_are_required_since_another_default_would_scale_the_adapter_otherwise(
    model: ModelConfig, parts: dict[str, LowRank], config: dict[str, Any], missing: str
) -> None:
    with pytest.raises(rekindle.CheckpointError, match=f"{missing}.* at least r and lora_alpha"):
        given_adapter(tensors_of(parts), config, model)


def test_two_adapters_in_one_mapping_are_refused(model: ModelConfig, parts: dict[str, LowRank]) -> None:
    for other in ("", "base_model.model.language_model."):
        both = tensors_of(parts) | tensors_of(parts, prefix=other)
        with pytest.raises(rekindle.CheckpointError, match="is there twice, by two forms of its name"):
            given_adapter(both, config_of(parts), model)


@pytest.mark.parametrize("dtype", [np.complex64, np.bool_, "U3"])
def test_numbers_that_are_not_real_are_refused(model: ModelConfig, parts: dict[str, LowRank], dtype: Any) -> None:
    tensors = tensors_of(parts)
    name = next(iter(tensors))
    with pytest.raises(rekindle.CheckpointError, match=r"lora_A\.weight must have real numbers, and is "):
        given_adapter(tensors | {name: np.zeros(tensors[name].shape, dtype)}, config_of(parts), model)


def test_the_layers_of_an_adapter_are_compared_with_its_tensors(model: ModelConfig, parts: dict[str, LowRank]) -> None:
    for layers in ({"layers_to_transform": [0, 1]}, {"layers_to_transform": [1, 0], "layers_pattern": ["layers"]}, {}):
        assert given_adapter(tensors_of(parts), config_of(parts) | layers, model).parts.keys() == {Q, DOWN}


def test_an_unknown_entry_is_refused_by_name_unless_it_is_off(model: ModelConfig, parts: dict[str, LowRank]) -> None:
    off: dict[str, Any] = {"new_config": None, "use_new": False, "new_layers": []}
    assert given_adapter(tensors_of(parts), config_of(parts) | off, model).rank == 4
    with pytest.raises(rekindle.UnsupportedModel, match="its use_new is True, and this entry is unknown"):
        given_adapter(tensors_of(parts), config_of(parts) | {"use_new": True}, model)


def test_every_entry_that_peft_writes_is_known(model: ModelConfig, parts: dict[str, LowRank]) -> None:
    """Check this with the defaults of LoraConfig in PEFT 0.21.2, as `to_dict` writes them."""
    config = json.loads(Path(__file__).with_name("peft_defaults.json").read_text())
    assert given_adapter(tensors_of(parts), config | config_of(parts), model).rank == 4


@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "lm_head.weight", "model.embed_tokens.base_layer.weight"]
)
def test_whole_embeddings_are_refused_with_the_way_to_leave_them_out(
    model: ModelConfig, parts: dict[str, LowRank], name: str
) -> None:
    tensors = tensors_of(parts) | {f"base_model.model.{name}": np.zeros((4, 4), np.float32)}
    with pytest.raises(rekindle.UnsupportedModel, match=r"PEFT adds by itself .*save_embedding_layers=False"):
        given_adapter(tensors, config_of(parts), model)
