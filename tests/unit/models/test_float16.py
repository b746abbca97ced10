"""Logits of float16 are as near to those of float32 as those of bfloat16, also where activations are large."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.assembly.weights.load import load_decoder
from rekindle.core.models.config import DualConfig, ExpertsConfig, ModelConfig
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle_kernels.xla import linear
from rekindle_kernels.xla.halves import halves
from tests.families import MODELS
from tests.unit.logits import Array, paged_logits

FEW: Final = ("gemma3",)
"""A family that is tried with every change: the one whose activations are known to leave the range."""
KINDS: Final = (
    "deepseek-v3",
    "falcon-h1-norm",
    "gemma3n",
    "gemma4-dense",
    "gpt-oss",
    "gpt2",
    "llama-tied",
    "mixtral",
    "nemotron-h",
    "olmo2",
    "phimoe",
    "qwen3-next",
)
"""Families that are tried with the wide tests, one of each kind of layer; the others are deep."""
PROMPTS: Final = 8
"""Enough for rounding to choose other experts now and then in each dtype, as this changes logits most."""
LARGEST_WEIGHT: Final = 6e4
"""The largest number of scaled matrices, within the range of float16."""
REACHED: Final = 8e5
"""What the residual stream of Gemma 3 reaches (unslothai/unsloth#4014)."""
BEYOND: Final = 4 * 65504
"""What an MLP without a gate reaches too, with weights in the range of float16."""
BOUNDED: Final = ("gpt-oss",)
"""Families whose activation functions have bounds."""

Tensors = Mapping[str, Any]


def prompts_of(golden: Mapping[str, Array]) -> list[Array]:
    """Return the prompts of a golden, and others of the same tokens."""
    ids, rng = golden["input_ids"], np.random.default_rng(0)
    further = (rng.permutation(ids.reshape(-1))[: ids.shape[1]] for _ in range(PROMPTS - len(ids)))
    return [*ids, *further]


def errors_of(config: ModelConfig, tensors: Tensors, prompts: Sequence[Array]) -> dict[str, float]:
    """Return the error of logits against float32, by dtype.

    It is the largest error, relative to the largest logit of a prompt. With experts, it is the root of the mean square,
    since the largest depends on which of two almost equal experts a token goes to.
    """

    def logits(dtype: str) -> list[Array]:
        return paged_logits(load_decoder(config, tensors, jnp.dtype(dtype)), prompts)

    def error(dtype: str) -> float:
        pairs = [(actual - own, own) for actual, own in zip(logits(dtype), expected, strict=True)]
        if any(isinstance(layer.feed_forward, ExpertsConfig | DualConfig) for layer in config.layers):
            squares, whole = (sum(float((each**2).sum()) for each in side) for side in zip(*pairs, strict=True))
            return math.sqrt(squares / whole)
        return max(float(np.abs(difference).max() / np.abs(own).max()) for difference, own in pairs)

    expected = logits("float32")
    assert np.isfinite(expected).all()
    return {dtype: error(dtype) for dtype in ("bfloat16", "float16")}


def every_family(*, but: Sequence[str] = ()) -> list[Any]:
    names = [name for name in MODELS if name not in but]
    marks = {**dict.fromkeys(FEW, ()), **dict.fromkeys(KINDS, (pytest.mark.wide,))}
    return [pytest.param(name, marks=marks.get(name, (pytest.mark.deep,))) for name in names]


@pytest.mark.parametrize("family", every_family())
@pytest.mark.filterwarnings("ignore:.*separate head")
def test_float16_is_as_near_to_float32_as_bfloat16(family: str, families: Path) -> None:
    checkpoint = open_checkpoint(families / family)
    prompts = prompts_of(np.load(families / family / "golden.npz"))
    errors = errors_of(checkpoint.config, checkpoint.tensors, prompts)
    assert errors["float16"] <= 2 * errors["bfloat16"], errors


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the largest number in each product with float16 weights."""
    peaks: list[float] = []

    def recorded(x: jax.Array) -> Any:
        jax.debug.callback(lambda peak: peaks.append(float(peak)), jnp.abs(x).max())
        return halves(x)

    monkeypatch.setattr(linear, "halves", recorded)
    return peaks


@pytest.mark.parametrize("family", every_family(but=BOUNDED))
@pytest.mark.filterwarnings("ignore:.*separate head")
def test_activations_beyond_the_range_are_as_near_to_float32(family: str, families: Path, largest: list[float]) -> None:
    checkpoint = open_checkpoint(families / family)
    tensors = enlarged(checkpoint.config, checkpoint.tensors)
    prompts = prompts_of(np.load(families / family / "golden.npz"))
    errors = errors_of(checkpoint.config, tensors, prompts)
    jax.effects_barrier()
    assert max(largest) >= BEYOND, "numbers of float16 end at 65,504"
    assert errors["float16"] <= 2 * errors["bfloat16"], errors


def enlarged(config: ModelConfig, tensors: Tensors) -> Tensors:
    """Return weights with which feed-forward layers, and the residual stream after them, have huge activations."""
    names = config.names
    widening = {names.gate_up[-1], names.shared_gate_up[-1], names.expert_gate_up[-1].removesuffix(".weight")}
    is_widening = _any_of(name for name in widening if name)
    after = (names.after_attention, names.after_mlp) if names.before_attention is not None else ()
    is_norm = _any_of(name for name in after if name)

    def one(name: str, tensor: Any) -> Array:
        numbers = np.asarray(tensor, np.float32)
        if is_widening(name) and numbers.ndim > 1:
            return numbers * np.float32(LARGEST_WEIGHT / np.abs(numbers).max())
        return numbers * np.float32(REACHED) if is_norm(name) else numbers

    return {name: one(name, tensor) for name, tensor in tensors.items()}


def _any_of(names: Iterator[str]) -> Callable[[str], bool]:
    """Return a predicate for the full names of tensors with one of these names in a layer."""
    patterns = [re.escape(name).replace(r"\{expert\}", r"\d+") for name in names]
    return lambda full: any(re.search(rf"\.{pattern}(\.weight)?$", full) for pattern in patterns)
