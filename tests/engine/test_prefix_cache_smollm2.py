"""The prefix cache keeps the default model's goldens, chats of several turns, and handles of prefixes right."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import rekindle
from tests.engine.small import SMOLLM2
from tests.waiting import PATIENCE

pytestmark = pytest.mark.wide

PAGE_BYTES = 2 * 30 * 3 * 64 * 16 * 4
HOST_PAGES = 60
TEXT = (
    "The lighthouse keeper wrote in his journal every evening. He noted the wind, the height of the waves, and the "
    "names of the ships that passed. On the last day of October he saw a light far out at sea, where no ship could be."
)
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "top_p": 0.9, "seed": 5},
    {"temperature": 1.0, "top_k": 40, "seed": 6, "repetition_penalty": 1.2, "frequency_penalty": 0.4, "min_tokens": 9},
]
Golden = dict[str, Any]


@pytest.fixture(scope="module")
def session() -> Iterator[rekindle.Session]:
    with rekindle.open_sync(
        "smollm2-135m-instruct",
        progress=False,
        disk_cache_bytes=0,
        host_cache_bytes=HOST_PAGES * PAGE_BYTES,
        **SMOLLM2,
    ) as session:
        yield session
        assert session.stats.unexpected_compilations == 0


def crowd_out(session: rekindle.Session, seed: int, requests: int) -> None:
    """Let other requests use eight pages each, one after the other."""
    prompts = np.random.default_rng(seed).integers(0, 49_000, (requests, 128)).tolist()
    for prompt in prompts:
        session.generate_sync(token_ids=prompt, max_tokens=1)


def check_goldens(session: rekindle.Session, goldens: Sequence[Golden], new: int) -> None:
    """Check the tokens against the reference's, and the log-probabilities after a prompt to 1e-3."""
    prompts: Any = [golden.get("prompt") or golden["messages"] for golden in goldens]
    for answer, golden in zip(session.generate_sync(prompts, max_tokens=new, logprobs=5), goldens, strict=True):
        assert list(answer.token_ids) == golden["new_ids"][:new]
        assert answer.logprobs is not None
        top = answer.logprobs[0].top
        assert [each.token_id for each in top] == golden["first_top5_ids"]
        np.testing.assert_allclose([each.logprob for each in top], golden["first_top5_logprobs"], atol=1e-3)


def check_samplings(session: rekindle.Session, expected: Sequence[rekindle.Generation]) -> list[int]:
    """Check seeded tokens against a session without a cache; return the number of cached tokens of each prompt."""
    handles = [session.submit(TEXT, max_tokens=12, **sampling) for sampling in SAMPLINGS]
    answers = [handle.result(timeout=PATIENCE) for handle in handles]
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    return [answer.cached_tokens for answer in answers]


def test_goldens_and_seeded_tokens_are_the_same_wherever_the_pages_are(
    session: rekindle.Session, smollm2_goldens: list[Golden]
) -> None:
    alone = [
        session.generate_sync(TEXT, max_tokens=12, cache_salt=f"{place}", **sampling)
        for place, sampling in enumerate(SAMPLINGS)
    ]
    assert [answer.cached_tokens for answer in alone] == [0, 0, 0]
    crowd_out(session, 0, 6)  # the pages of other salts leave the device
    assert session.stats.scheduler.device_hit_tokens == 0

    check_goldens(session, smollm2_goldens, 24)
    assert check_samplings(session, alone) == [0, 48, 48]
    cold = session.stats.scheduler
    check_goldens(session, smollm2_goldens, 8)
    assert check_samplings(session, alone) == [48, 48, 48]
    warm = session.stats.scheduler
    assert warm.device_hit_tokens - cold.device_hit_tokens >= 4 * 32 + 3 * 48
    assert warm.host_hit_tokens == 0

    crowd_out(session, 1, 6)
    check_goldens(session, smollm2_goldens, 8)
    assert check_samplings(session, alone) == [48, 48, 48]
    onloaded = session.stats.scheduler
    assert onloaded.host_hit_tokens >= 32 + 48

    crowd_out(session, 2, 14)
    before = session.stats.scheduler
    check_goldens(session, smollm2_goldens, 8)
    assert check_samplings(session, alone) == [0, 48, 48], "pruned"
    after = session.stats.scheduler
    assert after.host_hit_tokens == before.host_hit_tokens
    assert after.prompt_tokens == after.device_hit_tokens + after.host_hit_tokens + after.computed_tokens


def test_log_probabilities_of_a_prompt_that_is_cached_are_the_reference_s(
    session: rekindle.Session, smollm2_goldens: list[Golden]
) -> None:
    golden = smollm2_goldens[0]
    for _ in range(2):
        answer = session.generate_sync(golden["messages"], max_tokens=1, prompt_logprobs=0)
        assert answer.prompt_logprobs is not None
        logprobs = [score.logprob for score in answer.prompt_logprobs if score]
        np.testing.assert_allclose(logprobs, golden["prompt_logprobs"], atol=1e-2)
        assert session.generate_sync(golden["messages"], max_tokens=1).cached_tokens == 32


def test_each_turn_of_a_chat_finds_the_turns_before_it_without_a_handle(session: rekindle.Session) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    computed = 0
    for place, question in enumerate(("And of Italy?", "And of Spain?", "")):
        answer = session.generate_sync(messages, max_tokens=12)
        assert answer.cached_tokens == computed // 16 * 16 or place == 0
        alone = session.generate_sync(messages, max_tokens=12, cache_salt=f"turn {place}")
        assert answer == alone
        assert alone.cached_tokens == 0
        computed = answer.usage.total_tokens - 1  # the last token was not put in
        messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": question}]


def test_a_held_conversation_goes_on_with_words_or_messages_and_a_text_with_text(session: rekindle.Session) -> None:
    system = [
        {"role": "system", "content": "You are a geographer who answers in one short sentence, and nothing else."}
    ]
    question = {"role": "user", "content": "What is the capital of France?"}
    whole = session.generate_sync([*system, question], max_tokens=10, cache_salt="whole")
    with session.prefix_sync(system) as geographer:
        assert 16 < geographer.tokens < whole.usage.prompt_tokens
        for more in (question["content"], [question]):
            answer = geographer.generate_sync(more, max_tokens=10)
            assert answer == whole
            assert answer.cached_tokens >= 16
        assert "geographer" in repr(session.cache)
    with session.prefix_sync(TEXT) as text:
        answer = text.generate_sync(max_tokens=10)
        assert answer == session.generate_sync(TEXT, max_tokens=10, cache_salt="text")
        assert (answer.cached_tokens, answer.usage.prompt_tokens) == (48, text.tokens)
        pieces = text.stream(" Then", max_tokens=10)
        followed = "".join(piece.text for piece in pieces)
        assert followed == session.generate_sync(TEXT + " Then", max_tokens=10, cache_salt="text").text
