"""On a real model: a logits processor of one's own is compiled into the step, and its programs come back from disk."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import rekindle
from rekindle.core.errors import ConfigError, NotRestored
from tests.compilations import COMPILED

pytestmark = pytest.mark.wide

SETTINGS: dict[str, Any] = {
    "page_size": 16,
    "num_pages": 13,
    "max_context": 128,
    "max_running": 4,
    "max_prefill_tokens": 64,
    "prefill_buckets": (64,),
    "decode_buckets": (4,),
    "precompile": "all",
}
"""Settings with pages for one request, or almost two."""
PROMPT = list(range(3, 40))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a cache directory for this module, without programs of a processor."""
    directory = tmp_path_factory.mktemp("cache")
    directory.chmod(0o700)
    return directory


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(cache))


def open_session(model: Path, strength: float, **settings: Any) -> rekindle.Session:
    """Open a session with a new function as its processor, which penalizes the tokens of the output."""

    def penalize(logits: jax.Array, row: rekindle.LogitsRow) -> jax.Array:
        return logits - strength * row.args[0] * (row.counts > 0).astype(jnp.float32)

    return rekindle.open_sync(model, progress=False, logits_processor=penalize, **(SETTINGS | settings))


def test_it_does_what_the_parameter_does_and_is_loaded_by_the_next_session(
    families: Path, compilations: list[str]
) -> None:
    model = families / "llama-tied"
    request: dict[str, Any] = {"token_ids": PROMPT, "max_tokens": 60, "ignore_eos": True}
    ways: list[dict[str, Any]] = [{"processor_args": [1.5]}, {"processor_args": [0.5], "temperature": 0.8, "seed": 5}]
    with open_session(model, strength=1.0) as session:
        programs = session.stats.compilations + session.stats.loads
        plain = session.generate_sync(**request, processor_args=None)
        same = [session.generate_sync(**request, **way) for way in ways]
        together = [session.submit(**request, **way) for way in [*ways, {"processor_args": None}]]
        assert [handle.result().token_ids for handle in together] == [
            *(answer.token_ids for answer in same),
            plain.token_ids,
        ]
        for way, answer in zip(ways, same, strict=True):
            penalty = {name: value for name, value in way.items() if name != "processor_args"}
            penalty |= {"presence_penalty": way["processor_args"][0], "processor_args": None}
            assert session.generate_sync(**request, **penalty).token_ids == answer.token_ids != plain.token_ids
        generation = session.generate_sync(**request, processor_args=[1.5], logprobs=2, logprobs_of="sampled")
        assert all(each.rank == 1 for each in generation.logprobs), "at temperature 0, ranks are of processed logits"
    compilations.clear()
    with open_session(model, strength=1.0, restore="require") as session:
        assert session.generate_sync(**request, **ways[0]).token_ids == same[0].token_ids
        assert (session.stats.loads, session.stats.compilations, compilations.count(COMPILED)) == (programs, 0, 0)
    with pytest.raises(NotRestored, match=r'"logits_processor": "penalize #[0-9a-f]{16}"'):
        open_session(model, strength=2.0, restore="require")
    with open_session(model, strength=2.0) as session:
        half = session.generate_sync(**request, processor_args=[0.75])
        assert half.token_ids == same[0].token_ids


def test_one_that_lost_its_pages_still_knows_what_it_generated(families: Path) -> None:
    options: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "processor_args": [1.5]}
    prompts = [[token + number for token in PROMPT] for number in range(4)]
    with open_session(families / "llama-tied", strength=1.0, prefix_cache=False) as session:
        alone = [session.generate_sync(token_ids=prompt, **options).token_ids for prompt in prompts]
        assert not session.stats.scheduler.preemptions
        assert [answer.token_ids for answer in session.generate_sync(token_ids=prompts, **options)] == alone
        assert session.stats.scheduler.preemptions


def test_a_wrong_one_is_refused_by_open_with_its_own_error_as_the_cause(families: Path) -> None:
    def branch(logits: jax.Array, row: rekindle.LogitsRow) -> jax.Array:
        return logits if row.position > 3 else jnp.zeros_like(logits)

    with pytest.raises(ConfigError, match="logits_processor branch must be traceable by JAX") as caught:
        rekindle.open_sync(families / "llama-tied", progress=False, logits_processor=branch)
    causes = [caught.value.__cause__, getattr(caught.value.__cause__, "__cause__", None)]
    assert any(isinstance(cause, jax.errors.TracerBoolConversionError) for cause in causes)
