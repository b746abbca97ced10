"""The config of a quantized checkpoint says how its tensors are read; a config at odds with its tensors is refused."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rekindle.__main__ import main
from rekindle.core.errors import CheckpointError, ModelError, UnsupportedModel
from rekindle.formats.checkpoints.huggingface.directory import _with_quantization
from rekindle.formats.checkpoints.huggingface.quantized.compressed_schemes import scheme_for, schemes_of
from rekindle.formats.checkpoints.huggingface.quantized.formats import FORMATS, formats_of, with_quantized
from rekindle.formats.checkpoints.huggingface.safetensors_file import SafetensorsFile
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.families.quantization import KEYS, METHODS, method_of
from tests.unit.formats.test_checkpoint_quantized import CASES, GOLDEN, GOLDENS, MODELS, case_of

WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}


def group(weights: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config with a single group of modules."""
    return {"config_groups": {"g": {"targets": ["Linear"], "weights": weights}}}


def test_the_methods_that_configs_may_name_are_those_with_a_format() -> None:
    assert set(METHODS) == set(FORMATS)
    assert {method_of(case_of(case)[1]).name for case in CASES} >= set(METHODS) - {"fbgemm_fp8", "mxfp4"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("compressed-w4-asym", group(WEIGHTS | {"num_bits": 8}),
            r"x\.weight_packed must have the shape \(20, 16\) by the quantization in its config, got \(20, 8\)"),
        ("compressed-w4-asym", group(WEIGHTS | {"group_size": 16}),
            r"x\.weight_packed must have the shape \(20, 4\) .*got \(20, 8\)"),
        ("compressed-int8", group(WEIGHTS),
            r"x\.weight must be of 4-bit integers by its config, got I8"),
        ("compressed-fp8", group({"num_bits": 8, "type": "int"}),
            r"x\.weight must be of 8-bit integers by its config, got F8_E4M3"),
        ("compressed-w4-asym", {"config_groups": 1}, "expected an object config_groups"),
        ("compressed-w4-asym", {"format": "marlin-24"}, r"'marlin-24' are not supported, but pack-quantized, int-"),
        ("compressed-w4-asym", {"transform_config": {"config_groups": {"R4": {"apply": [
            {"location": "weight_input"}, {"location": "input"}]}}}},
            r"transforms of activations \(input\) are not"),
        ("compressed-w4-asym", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity .*sparse-24-bitmask"),
        ("fp8-partial-blocks", {"weight_block_size": [128, 128]},
            r"x\.weight_scale_inv must have the shape \(1, 1\) .*got \(2, 2\)"),
        ("fp8-partial-blocks", {"weight_block_size": None}, r"must have the shape \(\) or \(1,\) or .*got \(2, 2\)"),
        ("fp8-partial-blocks", {"weight_block_size": [0]}, r"must be two positive integers, got \[0\]"),
        ("gptq-asym", {"bits": 8}, r"x\.qweight must have the shape \(8, 32\) .*got \(4, 32\)"),
        ("gptq-asym", {"group_size": 32}, r"x\.qzeros must have the shape \(1, 4\) .*got \(2, 4\)"),
        ("gptq-asym", {"bits": 5}, r"GPTQ of 5 bits in groups of 16 \(x\) is not supported; supported are 2, 3, 4, 8"),
        ("gptq-asym", {"checkpoint_format": "marlin"}, "the format 'marlin' is not supported, but gptq, gptq_v2"),
        ("awq-groups", {"version": "gemv"}, "layout 'gemv' is not supported, but 4 bits in the layout \"gemm\" are"),
        ("awq-groups", {"q_group_size": 64}, r"x\.qzeros must have the shape \(1, 3\) .*got \(4, 3\)"),
        ("mlx-8", {"bits": 4}, r"x\.scales must have the shape \(8, 4\) .*got \(8, 2\)"),
        ("mlx-8", {"group_size": 64}, r"x\.scales must have the shape \(8, 1\) .*got \(8, 2\)"),
        ("mlx-8", {"bits": 7}, "x in the mode 'affine' of MLX with 7 bits in groups of 32 is not supported"),
        ("mlx-8", {"mode": "ternary"}, "mode 'ternary' of MLX"),
    ],
)  # fmt: skip
def test_a_config_that_does_not_fit_to_the_tensors_is_refused(case: str, changes: dict[str, Any], message: str) -> None:
    file, settings = case_of(case)
    (key,) = settings
    with pytest.raises(ModelError, match=message):
        with_quantized([file], {key: settings[key] | changes}, case)


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "nvfp4", "mxfp8"])
@pytest.mark.parametrize(
    ("own", "scheme"),
    [
        ({"group_size": 32, "bits": 8}, "MLX (8 bits, groups of 32)"),
        ({"group_size": 32, "bits": 8, "mode": "affine"}, "MLX (8 bits, groups of 32)"),
        ({"group_size": 32, "bits": 8, "mode": None}, "MLX (8 bits, groups of 32)"),
        (True, {"affine": "MLX (8 bits, groups of 32)"}),
    ],
)
def test_a_module_of_mlx_with_an_entry_takes_nothing_of_the_models(mode: str, own: Any, scheme: Any) -> None:
    """Check against `nn.quantize`, which gives `to_quantized` the entry alone: affine, of 4 bits, groups of 64."""
    file, _ = case_of("mlx-8")
    sizes = {"affine": (32, 8), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}[mode]
    options = {"group_size": sizes[0], "bits": sizes[1], "mode": mode, "x": own}
    expected = scheme if isinstance(scheme, str) else scheme.get(mode)
    if expected is None:  # the module has the mode of the model, and other tensors
        with pytest.raises(ModelError):
            with_quantized([file], {"quantization": options}, "it")
        return
    (result,) = with_quantized([file], {"quantization": options}, "it")
    assert result.schemes == {expected: 1}
    with pytest.raises(CheckpointError, match=r"x\.scales must have the shape \(8, 1\) .*got \(8, 2\)"):
        with_quantized([file], {"quantization": options | {"x": {"bits": 8}}}, "it")


def test_a_pattern_gives_a_module_of_gptq_its_own_options() -> None:
    file, settings = case_of("gptq-8")
    options = settings["quantization_config"]
    for pattern in ("x", "+:.*", "-:y"):
        changed = options | {"bits": 4, "dynamic": {pattern: {"bits": 8}}}
        if pattern[0] == "-":
            with pytest.raises(CheckpointError, match="must have the shape"):
                with_quantized([file], {"quantization_config": changed}, "it")
        else:
            (result,) = with_quantized([file], {"quantization_config": changed}, "it")
            assert result.schemes == {"GPTQ (8 bits, groups of 32)": 1}


def test_a_module_of_compressed_tensors_has_the_first_group_with_its_name() -> None:
    groups = {
        "all": {"targets": ["Linear"], "weights": WEIGHTS},
        "down": {"targets": ["re:.*down_proj$", "lm_head"], "weights": WEIGHTS | {"num_bits": 8}},
        "inputs alone": {"targets": ["LayerNorm"], "weights": None},
    }
    schemes = schemes_of({"config_groups": groups, "format": "pack-quantized"}, "it")
    bits = [scheme_for(schemes, name, "it").bits for name in ("m.up_proj", "m.down_proj", "m.down_proj_2", "lm_head")]
    assert bits == [4, 8, 4, 8]
    del groups["all"]
    groups["up"] = {"targets": ["re:.*up_proj"], "weights": WEIGHTS}
    schemes = schemes_of({"config_groups": groups}, "it")
    with pytest.raises(
        CheckpointError, match=r"m\.gate is quantized, and no group of the config has it, but re:.*down"
    ):
        scheme_for(schemes, "m.gate", "it")


@pytest.mark.parametrize("model", MODELS)
def test_a_wrapped_config_may_have_the_quantization_inside(model: str, tmp_path: Path) -> None:
    settings = json.loads((GOLDENS / model / "config.json").read_text())
    (key,) = (key for key in KEYS if key in settings)
    assert method_of({"text_config": {key: settings[key]}}) == method_of(settings)
    assert method_of({"text_config": {"hidden_size": 1}, "quantization_config": None}) is None
    settings[key] |= {"quant_method": "unheard"}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UnsupportedModel, match=r"quantized by unheard.* are not supported, but awq, "):
        open_checkpoint(tmp_path)


def test_a_matrix_in_another_order_than_by_row_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    file, settings = case_of("bitsandbytes-int8")
    one = np.ones((), np.uint8)
    stored = type(file).stored
    monkeypatch.setattr(
        type(file), "stored", lambda s, name, *d: (lambda: one) if name.endswith("_format") else stored(s, name, *d)
    )
    with pytest.raises(UnsupportedModel, match=r"x\.weight is in another order than by row; save the model again"):
        with_quantized([file], settings, "it")


def test_info_names_the_format_and_its_dtype_in_a_session(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(GOLDENS / "fp8-block"), "--dtype", "bfloat16"]) == 0
    assert "\nfiles         FP8 (blocks of 16 x 32), read as bfloat16\n" in capsys.readouterr().out


def test_the_formats_of_a_checkpoint_are_in_order_of_their_tensors() -> None:
    assert open_checkpoint(GOLDENS / "mlx").formats == ("MLX (4 bits, groups of 32)",)
    file, settings = case_of("mlx-mixed")
    assert formats_of(with_quantized([file], settings, "it")) == (
        "MLX (8 bits, groups of 32)",
        "MLX (4 bits, groups of 64)",
    )
    assert formats_of([file]) == ()


@pytest.mark.parametrize("case", CASES)
def test_tensors_that_are_empty_or_of_other_ranks_are_refused_as_faults_of_the_file(case: str) -> None:
    file, settings = case_of(case)
    for name, shape in file.shapes.items():
        for other in ((), (0,), (*shape[:-1], 0), (1, *shape), (*shape, 1)):
            if not name.startswith(GOLDEN):
                read_or_refuse(replace(file, shapes={**file.shapes, name: other}), settings)


@pytest.mark.parametrize("case", CASES)
def test_options_of_other_kinds_are_refused_as_faults_of_the_file(case: str) -> None:
    file, settings = case_of(case)
    (key,) = settings
    extra = dict.fromkeys(("dynamic", "weight_block_size", "mode", "group_size", "bits", "sparsity_config"))
    values: tuple[Any, ...] = ("x", [1], {"(": {}}, {"x": 1}, -1, 0, 1.5)
    for option in {**extra, **settings[key]}:
        for value in values:
            if option != "quant_method":
                read_or_refuse(file, {key: settings[key] | {option: value}})


def read_or_refuse(file: SafetensorsFile, settings: dict[str, Any]) -> None:
    """Read all quantized tensors of a file of the shapes expected by a model, or accept a refusal of the file."""
    with suppress(ModelError):
        (changed,) = with_quantized([file], settings, "it")
        for name, load in changed.quantized.items():
            if file.shapes[GOLDEN + name] == changed.shapes[name]:
                np.asarray(load())


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("gptq-asym", {"dynamic": {"(": {}}}, r"its quantization has '\(', no regular expression"),
        ("gptq-asym", {"dynamic": {"x": 1}}, r"dynamic in its quantization must be an object of objects, got \{'x': 1"),
        (
            "compressed-int8",
            {"config_groups": {"g": {"targets": ["re:("], "weights": WEIGHTS}}},
            "no regular expression",
        ),
    ],
)
def test_patterns_of_modules_are_checked(case: str, changes: dict[str, Any], message: str) -> None:
    file, settings = case_of(case)
    (key,) = settings
    with pytest.raises(CheckpointError, match=message):
        with_quantized([file], {key: settings[key] | changes}, case)


def test_inputs_of_a_group_without_scales_are_refused_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    file, settings = case_of("gptq-asym")
    stored = type(file).stored
    monkeypatch.setattr(
        type(file), "stored", lambda s, name, *d: lambda: np.asarray(stored(s, name, *d)()) + 9 * name.endswith("g_idx")
    )
    (changed,) = with_quantized([file], settings, "it")
    with pytest.raises(
        CheckpointError, match=r"it: .*qweight has inputs of the groups 9 to \d+ by its g_idx, expected 0"
    ):
        np.asarray(next(iter(changed.quantized.values()))())


def test_a_block_of_bitsandbytes_has_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if "nf4" in case)
    file, settings = case_of(case)
    monkeypatch.setattr(
        "rekindle.formats.checkpoints.huggingface.quantized.bitsandbytes._state",
        lambda *_: {"shape": [2, 2], "blocksize": 0, "quant_type": "nf4", "dtype": "float16"},
    )
    with pytest.raises(CheckpointError, match="must have sizes above 0"):
        with_quantized([file], settings, case)


def test_transforms_of_weights_are_in_their_numbers() -> None:
    file, settings = case_of("compressed-w4-asym")
    (key,) = settings
    offline = {"transform_config": {"config_groups": {"R1": {"apply": [{"location": "weight_output"}]}}}}
    assert formats_of(with_quantized([file], {key: settings[key] | offline}, "it"))


def test_modelopt_may_have_its_config_in_a_file_of_its_own(tmp_path: Path) -> None:
    assert method_of(_with_quantization({"text_config": {"hidden_size": 1}}, tmp_path)) is None
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    method = method_of(_with_quantization({"text_config": {"hidden_size": 1}}, tmp_path))
    assert method is not None
    assert method.name == "modelopt"
    settings = case_of("gptq-asym")[1]
    assert method_of(_with_quantization(settings, tmp_path)) == method_of(settings)


def test_scales_of_inputs_are_refused() -> None:
    file, settings = case_of("modelopt-nvfp4")
    shapes = {**file.shapes, "x.pre_quant_scale": (16,)}
    with pytest.raises(
        UnsupportedModel, match=r"it: x\.pre_quant_scale scales the inputs of a product, .* not supported"
    ):
        with_quantized([replace(file, shapes=shapes)], settings, "it")
