"""The real CUDA compiler takes programs of every kind for the GPUs of notebooks, by the kernels and dtypes of defaults.

A T4 has XLA's kernels and float16, since Pallas compiles from compute capability 8.0 on; an L4 has Pallas and bfloat16.
"""

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import jax
import pytest

from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.cli.models.targets import devices_of
from rekindle.core.buckets import Bucket
from rekindle.core.device.place import Place
from rekindle.core.device.programs.functions import ADAPT, Key, embeds
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.settings.engine import Settings
from tests.draft_heads import with_draft_head
from tests.two_steps import SETTINGS

pytestmark = pytest.mark.skipif(
    not any(point.name.startswith("xla_cuda") for point in metadata.entry_points(group="jax_plugins")),
    reason="the CUDA compiler, jax's plugin, is not installed",
)

PALLAS: Final = "__gpu$xla.gpu.triton"
"""The target of calls of Pallas's kernels."""
KINDS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "prompts and decoding": ("families/qwen3", {}),
    "adapters": ("families/llama-tied", {"max_adapters": 2}),
    "drafts by a head": ("families/glm4-moe", {"draft": "mtp"}),
    "drafts and states": ("families/lfm2", {"draft": "lookup"}),
    "states of Mamba-2": ("families/falcon-h1-norm", {}),
    "states of delta nets": ("families/qwen3-next", {}),
    "latents": ("families/deepseek-v3", {}),
    "experts and sinks": ("families/gpt-oss", {}),
    "windows and soft caps": ("families/gemma2", {}),
    "several streams": ("families/gemma3n", {}),
    "images": ("vision/qwen2_5-vl", {}),
    "int4 weights": ("families/qwen2", {"quantize": "int4"}),
    "int8 pages": ("families/llama-tied", {"kv_dtype": "int8"}),
}
"""A model and settings for each kind of program."""
FEW: Final = ("prompts and decoding", "states of delta nets", "latents", "images")
"""Kinds that the tier compiles each time; the deep run compiles all."""


@pytest.fixture(scope="module", params=["t4", "l4"])
def device(request: pytest.FixtureRequest) -> jax.Device:
    (device,) = devices_of(f"cuda:{request.param}")
    return device


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[] if kind in FEW else pytest.mark.deep) for kind in KINDS])
def test_programs_of_every_kind_compile(kind: str, device: jax.Device, families: Path, tmp_path: Path) -> None:
    (name, options), is_turing = KINDS[kind], device.device_kind == "Tesla T4"
    model = families.parent / name
    if options.get("draft") == "mtp":
        model = with_draft_head(model, tmp_path / "model", "echo")
    chosen: dict[str, Any] = {**SETTINGS, **options}
    settings = Settings(**chosen)
    blueprint = Blueprint.of(open_checkpoint(model), settings, Place((device,)))
    assert (blueprint.dtype.name, str(blueprint.programs.shapes.kernels)) == (
        ("float16", "xla kernels (Pallas needs compute capability 8.0, and this GPU has 7.5)")
        if is_turing
        else ("bfloat16", "gpu kernels")
    )
    for key in filter(_has_layers, blueprint.all_programs()):
        program: Any = blueprint.programs.compile(key)
        assert (PALLAS in program.as_text()) == (isinstance(key, Bucket) and not is_turing)


def _has_layers(key: Key) -> bool:
    return isinstance(key, Bucket) or key == ADAPT or embeds(key)
