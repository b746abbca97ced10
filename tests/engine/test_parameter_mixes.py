"""Any mix of sampling parameters gives the same answers alone, in a batch, in chunks and after a restart."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle
from tests.waiting import PATIENCE

pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore::rekindle.ParametersIgnored"),  # some are mixed with temperature 0
]

Ask = tuple[list[int], dict[str, Any]]

TOKEN = st.integers(0, 511)
OPTIONS = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**64 - 1), "max_tokens": st.sampled_from([1, 7, 20])},
    optional={
        "temperature": st.sampled_from([0.0, 0.7, 1.5]),
        "top_k": st.sampled_from([0, 1, 40]),
        "top_p": st.sampled_from([0.1, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.05]),
        "repetition_penalty": st.sampled_from([0.8, 1.3]),
        "frequency_penalty": st.sampled_from([-0.5, 1.0]),
        "presence_penalty": st.sampled_from([-0.5, 1.0]),
        "logit_bias": st.dictionaries(TOKEN, st.sampled_from([-2.0, 3.0, float("-inf")]), max_size=5),
        "allowed_token_ids": st.lists(TOKEN, min_size=60, max_size=200, unique=True),
        "bad_words": st.lists(st.lists(TOKEN, min_size=1, max_size=3), max_size=4),
        "processor_args": st.none() | st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=1),
        "min_tokens": st.just(1),
        "stop_token_ids": st.lists(TOKEN, max_size=30),
        "ignore_eos": st.booleans(),
        "logprobs": st.integers(0, 5),
        "prompt_logprobs": st.integers(0, 5),
        "prompt_logprobs_from": st.integers(0, 80),
    },
)


def make_ask(prompt: list[int], options: dict[str, Any]) -> Ask:
    """Return a request; its first token with a score, if any, is in its prompt."""
    has_scores = options.get("prompt_logprobs") is not None
    first = min(options.get("prompt_logprobs_from", 0), len(prompt) - 1) if has_scores else 0
    return prompt, {**options, "prompt_logprobs_from": first}


ASK = st.builds(make_ask, st.lists(TOKEN, min_size=1, max_size=70), OPTIONS)
SMALL: dict[str, Any] = {"page_size": 16, "max_running": 4, "max_prefill_tokens": 64, "max_context": 128}


def penalize(logits: jax.Array, row: rekindle.LogitsRow) -> jax.Array:
    """Penalize the tokens of the request, and a token by the position and the last token."""
    there = row.in_prompt | (row.counts > 0)
    penalized = logits - row.args[0] * there.astype(jnp.float32)
    return penalized.at[(row.recent[-1] + row.position) % len(logits)].add(row.args[0])


@pytest.fixture(scope="module")
def roomy(families: Path) -> Iterator[rekindle.Session]:
    """Open a session with pages for all requests, a bucket for one row and a bucket for a batch."""
    ways: dict[str, Any] = {"max_running": 4, "decode_buckets": (1, 4), "logits_processor": penalize}
    ways |= {"max_prefill_tokens": 128, "prefill_buckets": (128,)}
    with rekindle.open_sync(families / "qwen2", progress=False, **ways) as session:
        yield session


@pytest.fixture(scope="module")
def crowded(families: Path) -> Iterator[rekindle.Session]:
    """Open a session with chunks of 16, prompts and decode rows in one tick, and pages for one request and a half."""
    ways: dict[str, Any] = {"prefill_chunk": 16, "ticks": "combined", "num_pages": 10, "prefill_buckets": (64,)}
    ways["logits_processor"] = penalize
    with rekindle.open_sync(families / "qwen2", progress=False, decode_buckets=(4,), **ways, **SMALL) as session:
        yield session


@pytest.fixture(scope="module")
def several(families: Path) -> Iterator[rekindle.Session]:
    """Open a session with up to 5 decode steps in one tick, on pages of 16."""
    ways: dict[str, Any] = {"decode_steps": 5, "logits_processor": penalize, "prefill_buckets": (64,)}
    with rekindle.open_sync(families / "qwen2", progress=False, decode_buckets=(4,), **ways, **SMALL) as session:
        yield session


@pytest.fixture(scope="module")
def lanes(families: Path) -> Iterator[rekindle.Session]:
    """Open a session of two lanes on one device, each with pages for one request and a half."""
    ways: dict[str, Any] = {"replicas": 2, "num_pages": 10, "prefill_buckets": (64,), "logits_processor": penalize}
    with rekindle.open_sync(families / "qwen2", progress=False, decode_buckets=(4,), **ways, **SMALL) as session:
        yield session


@pytest.fixture(scope="module")
def drafting(families: Path) -> Iterator[rekindle.Session]:
    """Open a session with drafts, in rows of padding or in a larger bucket."""
    ways: dict[str, Any] = {"draft": "lookup", "prefill_buckets": (64,), "logits_processor": penalize}
    with rekindle.open_sync(families / "qwen2", progress=False, decode_buckets=(1, 4), **ways, **SMALL) as session:
        yield session


def _check(roomy: rekindle.Session, others: Sequence[rekindle.Session], asks: list[Ask]) -> None:
    alone = [roomy.generate_sync(token_ids=prompt, **options) for prompt, options in asks]
    for session in (roomy, *others):
        handles = [session.submit(token_ids=prompt, **options) for prompt, options in asks]
        for handle, expected, (prompt, options) in zip(handles, alone, asks, strict=True):
            generation = handle.result(timeout=PATIENCE)
            assert generation.token_ids == expected.token_ids
            assert generation.stopped_by == expected.stopped_by
            _same_scores(generation.logprobs, expected.logprobs)
            _same_scores(generation.prompt_logprobs, expected.prompt_logprobs)
            assert generation.prompt_logprobs is None or len(generation.prompt_logprobs) == len(prompt)
            assert generation.logprobs is None or len(generation.logprobs) == len(generation.token_ids)
            banned = {t for t, bias in options.get("logit_bias", {}).items() if bias == float("-inf")}
            assert not banned & set(generation.token_ids)
            assert set(generation.token_ids) <= set(options.get("allowed_token_ids", range(512)))
        assert session.stats.unexpected_compilations == 0
        assert session.stats.scheduler.free_pages == session.stats.scheduler.pages


Scores = Sequence[rekindle.TokenLogprob | None] | None


def _same_scores(mine: Scores, theirs: Scores) -> None:
    assert (mine is None) == (theirs is None)
    for one, other in zip(mine or (), theirs or (), strict=True):
        assert (one is None) == (other is None)
        if one and other:
            assert (one.token_id, len(one.top)) == (other.token_id, len(other.top))
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


@settings(max_examples=25)
@given(st.lists(ASK, min_size=2, max_size=6))
def test_any_mix_is_the_same_everywhere(
    roomy: rekindle.Session,
    crowded: rekindle.Session,
    several: rekindle.Session,
    lanes: rekindle.Session,
    drafting: rekindle.Session,
    asks: list[Ask],
) -> None:
    _check(roomy, (crowded, several, lanes, drafting, drafting), asks)  # the second time, from finished outputs


@pytest.mark.deep
@settings(max_examples=300)
@given(st.lists(ASK, min_size=2, max_size=6))
def test_any_of_many_mixes_is_the_same_everywhere(
    roomy: rekindle.Session,
    crowded: rekindle.Session,
    several: rekindle.Session,
    lanes: rekindle.Session,
    drafting: rekindle.Session,
    asks: list[Ask],
) -> None:
    _check(roomy, (crowded, several, lanes, drafting, drafting), asks)  # the second time, from finished outputs


def test_the_crowded_session_did_start_requests_again(crowded: rekindle.Session) -> None:
    """Check the restarts of the tests above: without any they prove nothing."""
    prompts = [[i + 1] * 60 for i in range(4)]
    crowded.generate_sync(token_ids=prompts, max_tokens=60, ignore_eos=True)
    assert crowded.stats.scheduler.preemptions > 0


def test_the_session_of_several_steps_did_take_them(several: rekindle.Session) -> None:
    """Check the ticks of the tests above: some had several steps, also over the ends of pages."""
    before = several.stats.scheduler.ticks
    generation = several.generate_sync(token_ids=[1, 2, 3], max_tokens=41, ignore_eos=True)
    assert len(generation.token_ids) == 41
    assert several.stats.scheduler.ticks - before <= 1 + 40 // 5 + 2


def test_several_steps_fill_the_context_as_one_does(roomy: rekindle.Session, several: rekindle.Session) -> None:
    prompt = [5, 9, 2] * 7
    most = 128 - len(prompt)
    for _ in range(2):  # the second finds the pages of the first, to which nothing was written since
        generation = several.generate_sync(token_ids=prompt, max_tokens=most, ignore_eos=True)
        expected = roomy.generate_sync(token_ids=prompt, max_tokens=most, ignore_eos=True)
        assert generation.token_ids == expected.token_ids
    longer = [*prompt, *expected.token_ids[:80]]
    again = several.generate_sync(token_ids=longer, max_tokens=27, ignore_eos=True)
    assert again.cached.device >= 96
    assert again.token_ids == expected.token_ids[80:107]
