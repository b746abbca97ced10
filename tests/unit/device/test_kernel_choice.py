"""A device's compute capability and the JAX at hand choose the kernels and the dtype of a model."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from rekindle.assembly.devices import default_dtype
from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.core.device.place import Place
from rekindle.core.errors import ConfigError
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.settings.engine import Settings
from rekindle_kernels.devices import default_device
from rekindle_kernels.gpu.target import current

TURING = "xla kernels (Pallas needs compute capability 8.0, and this GPU has 7.5)"


@pytest.fixture(scope="module")
def checkpoint(families: Path) -> Checkpoint:
    return open_checkpoint(families / "qwen3")


def gpu(capability: str) -> Place:
    """Return a place with a GPU that is absent."""
    device: Any = SimpleNamespace(
        platform="gpu", id=0, process_index=0, compute_capability=capability, memory_stats=lambda: None
    )
    return Place((device,))


@pytest.mark.parametrize(
    ("capability", "dtype", "kernels"),
    [
        ("7.0", "float16", TURING.replace("7.5", "7.0")),
        ("7.5", "float16", TURING),
        ("8.0", "bfloat16", "gpu kernels"),
        ("8.9", "bfloat16", "gpu kernels"),
        ("12.0", "bfloat16", "gpu kernels"),
        ("gfx942", "bfloat16", "gpu kernels"),
    ],
)
def test_a_gpu_gets_the_kernels_and_the_dtype_that_it_has(
    capability: str, dtype: str, kernels: str, checkpoint: Checkpoint
) -> None:
    blueprint = Blueprint.of(checkpoint, Settings(), gpu(capability))
    assert (blueprint.dtype.name, blueprint.kv_dtype.name) == (dtype, dtype)
    assert str(blueprint.programs.shapes.kernels) == kernels
    assert bool(blueprint.programs.shapes.kernels.reason) == (dtype == "float16")
    assert blueprint.resolve(Settings()).dtype == dtype


def test_the_dtype_can_be_another_one(checkpoint: Checkpoint) -> None:
    blueprint = Blueprint.of(checkpoint, Settings(dtype="float32", kv_dtype="float16"), gpu("7.5"))
    assert (blueprint.dtype.name, blueprint.kv_dtype.name) == ("float32", "float16")
    assert str(blueprint.programs.shapes.kernels) == TURING
    half = Blueprint.of(checkpoint, Settings(dtype="float16"), gpu("9.0"))
    assert (half.dtype.name, str(half.programs.shapes.kernels)) == ("float16", "gpu kernels")


@pytest.mark.parametrize(("platform", "dtype"), [("cpu", "float32"), ("tpu", "bfloat16"), ("gpu", "bfloat16")])
def test_a_device_without_a_capability_has_the_dtype_of_its_platform(platform: str, dtype: str) -> None:
    device: Any = SimpleNamespace(platform=platform)
    assert default_dtype(device) == dtype


def test_kernels_that_a_gpu_cannot_run_are_refused_with_what_to_do(checkpoint: Checkpoint) -> None:
    with pytest.raises(
        ConfigError,
        match=r'implementation "gpu" cannot serve .*: Pallas needs compute capability 8\.0, and this GPU has 7\.5\. '
        'Leave it out, or take "xla"',
    ):
        Blueprint.of(checkpoint, Settings(implementation="gpu"), gpu("7.5"))
    chosen = Blueprint.of(checkpoint, Settings(implementation="xla"), gpu("7.5"))
    assert str(chosen.programs.shapes.kernels) == "xla kernels", "they are the user's choice"


def test_without_the_triton_lowering_gpus_get_the_portable_kernels(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    blueprint = Blueprint.of(checkpoint, Settings(), gpu("9.0"))
    reason = f"JAX {jax.__version__} cannot compile Pallas kernels by Triton"
    assert (blueprint.dtype.name, str(blueprint.programs.shapes.kernels)) == ("bfloat16", f"xla kernels ({reason})")
    with pytest.raises(ConfigError, match="cannot compile Pallas kernels by Triton"):
        Blueprint.of(checkpoint, Settings(implementation="gpu"), gpu("9.0"))


def test_kernels_are_traced_for_the_default_device_of_the_thread() -> None:
    here = jax.local_devices()[0]
    assert default_device() == here
    with jax.default_device(here):
        assert default_device() == here
        assert current().device_kind == (here.device_kind if here.platform == "gpu" else "")
    with jax.default_device(here.platform):
        assert default_device() == here
