"""A decoder over whole sequences: log-probabilities as over pages, and derivatives by the tensors of an adapter."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rekindle.assembly.training import adapt, token_logprobs
from rekindle.assembly.weights.load import load_decoder
from rekindle.core.errors import InvalidRequest
from rekindle.core.models.decoder import Decoder
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.lora import LowRank
from rekindle_kernels.api import Implementation
from tests.families import families_by_tier
from tests.unit.logits import logits_within
from tests.unit.lora import merged, random_parts, tensors_of

FEW = ("llama-tied",)
"""A family with pages alone, and one with states too."""


def loaded(directory: Path, implementation: Implementation = "xla") -> Decoder:
    checkpoint = open_checkpoint(directory)
    return load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"), implementation)


def arrays(parts: Mapping[str, LowRank]) -> dict[str, jax.Array]:
    return {name: jnp.asarray(array) for name, array in tensors_of(parts, "").items()}


def of_tokens(logits: np.ndarray[Any, Any], ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    logprobs = np.asarray(jax.nn.log_softmax(logits[:-1]))
    return np.take_along_axis(logprobs, ids[1:, None], axis=1)[:, 0]


@pytest.mark.parametrize("family", families_by_tier(FEW))
@pytest.mark.filterwarnings("ignore:.*separate head")
def test_log_probabilities_of_whole_sequences_are_those_over_pages(family: str, families: Path) -> None:
    decoder = loaded(families / family)
    ids = np.load(families / family / "golden.npz")["input_ids"]
    graph, state = nnx.split(decoder)
    result = jax.jit(lambda state, ids: token_logprobs(nnx.merge(graph, state), ids))(state, jnp.asarray(ids))
    paged, bound = logits_within(decoder, ids)
    for each, own, logits in zip(ids, result, paged, strict=True):
        np.testing.assert_allclose(own, of_tokens(logits, each), rtol=0, atol=2 * bound * np.abs(logits).max())


@pytest.mark.wide
@pytest.mark.parametrize("family", ["llama-tied", "deepseek-v3"])
def test_an_adapter_over_whole_sequences_is_that_of_merged_weights(family: str, families: Path) -> None:
    checkpoint = open_checkpoint(families / family)
    config = checkpoint.config
    parts = {name: part for name, part in random_parts(config, 3, 1).items() if name != config.names.head}
    (scale,) = {part.scale for part in parts.values()}
    decoder = load_decoder(config, checkpoint.tensors, jnp.dtype("float32"))
    other = load_decoder(config, merged(config, checkpoint.tensors, parts), jnp.dtype("float32"))
    ids = jnp.asarray(np.load(families / family / "golden.npz")["input_ids"])
    before, expected = token_logprobs(decoder, ids), token_logprobs(other, ids)
    assert adapt(decoder, arrays(parts), scale) is None
    result = token_logprobs(decoder, ids)
    assert jnp.abs(expected - before).max() > 1e-2
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-4)


@pytest.mark.wide
def test_the_head_has_a_summand_of_its_own(families: Path) -> None:
    decoder = loaded(families / "llama-tied")
    config = decoder.config
    head = {config.names.head: random_parts(config, 3, 1)[config.names.head]}
    ids = jnp.asarray(np.load(families / "llama-tied" / "golden.npz")["input_ids"])
    delta = adapt(decoder, arrays(head), 1.0)
    assert delta is not None
    assert jnp.abs(token_logprobs(decoder, ids, delta) - token_logprobs(decoder, ids)).max() > 1e-3


@pytest.mark.wide
@pytest.mark.parametrize(
    ("family", "implementation"),
    [("llama-tied", "xla"), ("qwen3-next", "reference")],
)
def test_gradients_by_an_adapter_are_those_of_small_steps(
    family: str, implementation: Implementation, families: Path
) -> None:
    """Check a plain model, and one with states and experts."""
    decoder = loaded(families / family, implementation)
    (graph, state), config = nnx.split(decoder), decoder.config
    ids = jnp.asarray(np.load(families / family / "golden.npz")["input_ids"])
    parts = random_parts(config, 3, 1)
    tensors = arrays({name: part for name, part in parts.items() if "layers.0." in name})

    @jax.jit
    def loss(tensors: dict[str, jax.Array]) -> jax.Array:
        merged = nnx.merge(graph, state)
        return token_logprobs(merged, ids, adapt(merged, tensors, 0.5)).mean()

    gradients = jax.jit(jax.grad(loss))(tensors)
    slope = sum(float(jnp.square(each).sum()) for each in gradients.values())
    step = 1e-2 / slope**0.5
    ends = [loss({name: each + sign * step * gradients[name] for name, each in tensors.items()}) for sign in (1, -1)]
    assert slope > 0
    assert all(float(jnp.abs(each).max()) > 0 for each in gradients.values())
    assert float(ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=0.05)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["model.layers.0.self_attn.q_proj.lora_A.weight"], "q_proj.lora_A.weight alone"),
        (["model.embed_tokens.lora_A.weight"], "embed_tokens.lora_A.weight, which no projection"),
    ],
)
def test_tensors_that_are_no_adapter_are_refused(names: list[str], message: str, families: Path) -> None:
    decoder = loaded(families / "llama-tied")
    with pytest.raises(InvalidRequest, match=message):
        adapt(decoder, {name: jnp.ones((3, 3)) for name in names}, 1.0)
