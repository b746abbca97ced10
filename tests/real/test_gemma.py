"""Gemma 3 270M as published: heads of 256, a window of 512, 262,144 tokens, blocks of Q4_K, Q5_0, Q6_K and Q8_0."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rekindle
from rekindle.assembly.weights.load import load_decoder
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle_kernels.api import choose
from tests.real.gemma import gemma
from tests.unit.logits import paged_logits

GOLDENS = Path(__file__).parents[1] / "goldens" / "real"
TEXT: dict[str, Any] = json.loads((GOLDENS / "gemma_text.json").read_text())
"""900 tokens, and their log-probabilities by transformers over the dequantized weights."""
STRINGS: dict[str, Any] = json.loads((GOLDENS / "gemma_tokens.json").read_text())
"""Strings in many scripts, and their tokens by sentencepiece."""
IDS: list[int] = TEXT["ids"]
EXPECTED = np.asarray(TEXT["logprobs"][1:])
SOME = 256
"""Tokens with whole distributions, each of a megabyte."""
HTML = "<h1>Sale</h1>\n<p>Price: <s>$20</s> $15</p>\n<p>Price: <s>$30</s> $25</p>\n<p>Price: <s>$50"

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def model() -> Path:
    return gemma()


@pytest.fixture(scope="module")
def checkpoint(model: Path) -> Checkpoint:
    return open_checkpoint(model)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the programs and pages of these sessions in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REKINDLE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@contextmanager
def open_session(model: Path, **settings: Any) -> Iterator[rekindle.Session]:
    small: Any = {"progress": False, "max_context": 1024, "max_running": 4, "precompile": "lazy"}
    with rekindle.open_sync(model, **small, **settings) as session:
        yield session


def logprobs(session: rekindle.Session) -> Array:
    """Return the log-probabilities of the text's tokens."""
    answer = session.generate_sync(token_ids=IDS, max_tokens=0, prompt_logprobs=0)
    assert answer.prompt_logprobs is not None
    return np.asarray([each.logprob for each in answer.prompt_logprobs if each is not None])


def greedy(session: rekindle.Session) -> rekindle.Generation:
    return session.generate_sync(token_ids=IDS, max_tokens=16, temperature=0)


def test_a_turn_ends_at_control_tokens_alone(checkpoint: Checkpoint) -> None:
    assert checkpoint.tokenizer is not None
    ends = {checkpoint.tokenizer.backend.id_to_token(token) for token in checkpoint.eos_ids}
    assert ends == {"<eos>", "<end_of_turn>"}


def test_200_strings_have_the_tokens_of_sentencepiece(checkpoint: Checkpoint) -> None:
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None
    assert len(STRINGS["tokens"]) == 200
    for each in STRINGS["tokens"]:
        assert tokenizer.encode_chat(each["text"]) == each["ids"], each["text"]
        assert tokenizer.decode(each["ids"]) == each["text"].replace("▁", " "), "SentencePiece's sign is a space"


@pytest.mark.timeout(1200)
def test_packed_weights_restarts_and_html(model: Path) -> None:
    """Check one session and the next in turn: a model of this size takes a while to open."""
    with open_session(model) as session:
        packed = logprobs(session)
        assert np.abs(packed - EXPECTED).mean() < 2e-3, "inputs of packed products have 16 bits"
        first, again = greedy(session), greedy(session)
        assert again.token_ids == first.token_ids
        assert again.cached_tokens == 896, "all whole pages"
        answer = session.generate_sync(HTML, max_tokens=24, temperature=0)
        assert answer.text.startswith("</s> $40</p>\n<p>Price: <s>$"), "an HTML tag is text"
        assert answer.finish_reason == "length"
        session.save_sync()
    with open_session(model) as session:  # lazily, the first pages from disk compile their copy
        assert greedy(session).cached_tokens == 896
    with open_session(model) as session:
        restarted = greedy(session)
        assert restarted.token_ids == first.token_ids
        assert restarted.cached_tokens == 896
        assert (session.restored.compiled, session.restored.tokens >= 896) == (0, True)
        np.testing.assert_array_equal(logprobs(session), packed)
    with open_session(model, weights="dequantized", host_cache_bytes=0, disk_cache_bytes=0) as session:
        dequantized = logprobs(session)
        assert np.abs(dequantized - EXPECTED).max() < 2e-3
        assert np.abs(dequantized - packed).mean() < 2e-3
        assert greedy(session).token_ids == first.token_ids


def test_pages_of_int8_change_the_distributions_little(checkpoint: Checkpoint) -> None:
    """Check the divergence: a scale for each 64 numbers has 3.6e-3, one for each head of 256 had 8.2e-3."""
    implementation = choose("cpu", [(2, 2, 1, 64, 256)], jnp.dtype("float32")).implementation
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"), implementation=implementation)
    exact, rounded = (distributions(decoder, kv_dtype) for kv_dtype in ("float32", "int8"))
    divergence = (np.exp(exact) * (exact - rounded)).sum(-1)
    assert 1e-4 < divergence.mean() < 5e-3
    places = np.arange(SOME - 1), IDS[1:SOME]
    likelihoods = [math.exp(-each[places].mean()) for each in (exact, rounded)]
    assert likelihoods[1] == pytest.approx(likelihoods[0], rel=0.01)


def distributions(decoder: Any, kv_dtype: str) -> Array:
    """Return the log-probabilities of all tokens after each of the first tokens of the text."""
    (logits,) = paged_logits(decoder, [np.asarray(IDS[:SOME])], 64, kv_dtype)
    return np.asarray(jax.nn.log_softmax(logits[:-1], axis=-1))
