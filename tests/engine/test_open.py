"""The arguments of `open` choose the device and the kernels of a session; a refusal has its reason."""

from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
import pytest

import rekindle
from rekindle.core.device.programs.functions import DeviceProgram
from rekindle.core.errors import ConfigError
from rekindle.core.scheduler.limits import EXTRA_PROGRAMS
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.weights import weights_digest
from rekindle.settings.engine import Implementation, SettingsOptions
from rekindle_kernels import api
from tests.compilations import programs_of
from tests.engine.settings_child import opened


@pytest.fixture(scope="module")
def model(families: Path) -> Path:
    return families / "qwen3"


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", r"device 'gpu' does not exist; JAX has cpu:0"),
        ("cpu:7", r"device 'cpu:7' does not exist; JAX has 1 of 'cpu', counted from 0"),
        ("cpu:x", r"device 'cpu:x' does not exist"),
        (3, r'device must be a platform such as "gpu", "gpu:1", or a jax.Device; got 3'),
    ],
)
def test_a_device_that_is_not_there_is_refused(device: Any, message: str, model: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(model, device=device)


def test_a_device_can_be_named_or_given(model: Path) -> None:
    for device in ("cpu", "cpu:0", jax.devices()[0]):
        with opened(model, device=device) as session:
            assert session.device == jax.devices()[0]


def test_a_session_has_facts_about_its_model(model: Path) -> None:
    (file,) = model.glob("*.safetensors")
    with opened(model) as session:
        facts = session.model
        tensors = session._engine.facts.checkpoint.tensors
    assert (facts.family, facts.file_format, facts.numbers) == ("qwen3", "safetensors", "float32")
    assert facts.parameters == sum(np.asarray(tensor).size for tensor in tensors.values())
    assert facts.file_bytes == file.stat().st_size
    assert facts.modified == pytest.approx(file.stat().st_mtime, abs=1e-3)
    assert facts.digest == weights_digest(open_checkpoint(model))


@pytest.mark.wide
def test_the_kernels_can_be_named(model: Path) -> None:
    answers = {}
    short: SettingsOptions = {"max_prefill_tokens": 16, "prefill_chunk": 16, "prefill_buckets": (16,)}
    implementations: list[Implementation] = ["xla", "reference"]
    for implementation in implementations:
        with opened(model, **(short | SettingsOptions(implementation=implementation))) as session:
            programs = programs_of(session._engine.facts).executables[0].builder._programs
            assert programs.statics["kernels"] == implementation
            prepared = {key for key in programs._functions if isinstance(key, DeviceProgram)}
            assert len(prepared) == EXTRA_PROGRAMS
            answers[implementation] = session.generate_sync(token_ids=[1, 2, 3], max_tokens=5).token_ids
    assert answers["xla"] == answers["reference"]


def test_the_kernels_that_can_be_named_are_those_that_there_are() -> None:
    assert get_args(Implementation) == get_args(api.Implementation)


@pytest.mark.parametrize("implementation", ["tpu", "gpu"])
def test_kernels_of_another_platform_are_refused(implementation: Any, model: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf'implementation "{implementation}" cannot .* its kernels do not run on cpu'
    ):
        opened(model, implementation=implementation)


def test_a_pool_that_does_not_fit_is_refused_with_its_size(model: Path) -> None:
    message = r"out of memory: a pool of 9,999,999 pages needs \d+ GB, .* has [\d.]+ GB in all; lower"
    with pytest.raises(ConfigError, match=message):
        rekindle.open_sync(model, num_pages=10_000_000, precompile="lazy", progress=False)
