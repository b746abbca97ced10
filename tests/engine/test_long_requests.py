"""A request goes on beyond the length of plain positions as if it had always been so long."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rekindle
from rekindle.assembly.weights.load import load_decoder
from rekindle.core.models.mixing import LayerMemory, ScoreOptions
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.settings.engine import SettingsOptions

pytestmark = pytest.mark.wide

SETTINGS: SettingsOptions = {
    "page_size": 16,
    "num_pages": 24,
    "max_context": 128,
    "max_running": 2,
    "max_prefill_tokens": 32,
    "prefill_buckets": (32,),
    "decode_buckets": (2,),
    "precompile": "lazy",
}
NEW, ROOM = 16, 96


class Causal:
    """A causal mixer among the tokens of one call."""

    def attend(self, q: jax.Array, kv: jax.Array, pages: Any, scores: ScoreOptions) -> tuple[jax.Array, Any]:
        k, v = jnp.repeat(kv, q.shape[1] // kv.shape[2], axis=2).swapaxes(0, 1)
        places = jnp.arange(len(q))
        products = jnp.einsum("qhd,khd->hqk", q, k) * scores.scale
        weights = jax.nn.softmax(jnp.where(places[None, None] <= places[None, :, None], products, -jnp.inf), axis=-1)
        return jnp.einsum("hqk,khd->qhd", weights, v), pages


def greedy(model: Path, prompt: list[int], new: int, *, grows: bool) -> tuple[int, ...]:
    """Compute each token anew from all before it, rotated for the request's length or for its own."""
    checkpoint = open_checkpoint(model)
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"))
    mixer: Any = Causal()
    nothing = LayerMemory((None,) * checkpoint.config.num_layers)
    positions = jnp.arange(ROOM, dtype=jnp.int32)

    @jax.jit
    def following(tokens: jax.Array, count: jax.Array) -> jax.Array:
        lengths = jnp.maximum(positions + 1, len(prompt)) if grows else jnp.full(ROOM, count)
        hidden, _ = decoder(tokens, positions, nothing, mixer, lengths)
        return jnp.argmax(decoder.logits(hidden[count - 1][None])[0])

    tokens = list(prompt)
    for _ in range(new):
        padded = np.array(tokens + [0] * (ROOM - len(tokens)), np.int32)
        tokens.append(int(following(jnp.asarray(padded), jnp.int32(len(tokens)))))
    return tuple(tokens[len(prompt) :])


@pytest.mark.parametrize(
    ("family", "grows", "lengths"), [("phi3-longrope", False, (40, 47, 48, 60)), ("llama-dynamic", True, (56, 64, 70))]
)
def test_tokens_are_those_of_a_request_computed_anew(
    family: str, grows: bool, lengths: tuple[int, ...], families: Path
) -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 512, length).tolist() for length in lengths]
    expected = [greedy(families / family, prompt, NEW, grows=grows) for prompt in prompts]
    options: dict[str, Any] = {"max_tokens": NEW, "ignore_eos": True}
    with rekindle.open_sync(families / family, progress=False, **SETTINGS) as session:
        alone = [session.generate_sync(token_ids=prompt, **options).token_ids for prompt in prompts]
        together = [each.token_ids for each in session.generate_sync(token_ids=prompts, **options)]
        crossing = len(prompts[0]) + NEW - 1
        preempted = session.stats.scheduler.preemptions
        answer = session.generate_sync(token_ids=[*prompts[0], *expected[0]][:crossing], max_tokens=1, ignore_eos=True)
        assert session.stats.unexpected_compilations == 0
    assert alone == expected
    assert together == expected
    assert (preempted > 0) != grows, "a LongRoPE request is computed again when it becomes long"
    if not grows:
        assert answer.cached_tokens > 0, "the pages of the long form are published"
        assert answer.token_ids == expected[0][-1:], "and those of the short form are not found"
