"""A branch begins like another generation, goes on with the chosen token, and is a generation like any other."""

import gc
import pickle
import weakref
from dataclasses import replace
from typing import Any

import pytest

import rekindle
from rekindle.core.request.params import SamplingOptions
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import VOCAB_SIZE, expected_of, fake_limits, fake_loaded_engine, fake_session
from tests.unit.stages import request_of
from tests.waiting import until_blocking

PROMPT = (3, 1, 4, 1, 5)
OPTIONS: dict[str, SamplingOptions] = {
    "greedy": {"max_tokens": 12},
    "drawn": {"max_tokens": 12, "temperature": 0.8, "seed": 9},
    "penalized": {"max_tokens": 12, "repetition_penalty": 2.0, "presence_penalty": 0.5},
    "scored": {"max_tokens": 12, "logprobs": 3},
    "banned": {"max_tokens": 12, "bad_words": [[7, 8]], "min_tokens": 8, "stop_token_ids": [11, 12, 13]},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("at", [0, 5, 11])
def test_the_same_token_gives_the_same_generation(session: Session, name: str, at: int) -> None:
    whole = session.generate_sync(token_ids=PROMPT, **OPTIONS[name])
    again = whole.branch(at, whole.token_ids[at]).result()
    assert again.begun == at + 1
    assert again.token_ids == whole.token_ids
    for field in ("text", "logprobs", "finish_reason", "stopped_by", "prompt_token_ids", "seed", "usage", "end_token"):
        assert getattr(again, field) == getattr(whole, field), field


@pytest.mark.parametrize("name", OPTIONS)
def test_another_token_is_followed_by_what_follows_it(session: Session, name: str) -> None:
    options = OPTIONS[name]
    whole = session.generate_sync(token_ids=PROMPT, **options)
    token = whole.logprobs[4].top[2].token_id if whole.logprobs else (whole.token_ids[4] + 100) % VOCAB_SIZE
    prefix = (*whole.token_ids[:4], token)
    other = whole.branch(at=4, token=token).result()
    request = request_of(PROMPT, options, capacity=100)
    assert other.token_ids == expected_of(replace(request, output_prefix=prefix))
    assert other.token_ids[:5] == prefix
    if whole.logprobs is not None and other.logprobs is not None:
        assert other.logprobs[:4] == whole.logprobs[:4]
        assert [each.token_id for each in other.logprobs] == list(other.token_ids)
        assert other.logprobs[4].top == whole.logprobs[4].top


def test_a_branch_can_be_branched_streamed_and_asked_for_something_else(session: Session) -> None:
    whole = session.generate_sync(token_ids=PROMPT, max_tokens=12)
    branch = whole.branch(2, 9, max_tokens=20).result()
    assert len(branch.token_ids) == 20
    pieces = list(rekindle.Stream(branch.branch(6, 8)))  # type: ignore[arg-type]
    assert pieces[0].token_ids == (*branch.token_ids[:6], 8)
    assert len(pieces) == 1 + 13
    sample = branch.branch(6, 8, temperature=1.0, seed=3).result()
    assert sample.seed == 3
    assert sample.token_ids[:7] == pieces[0].token_ids
    assert sample.token_ids[7:] != tuple(token for piece in pieces[1:] for token in piece.token_ids)


def test_the_text_of_a_branch_is_whole(texts: Session, byte_tokenizer: Tokenizer) -> None:
    whole = texts.generate_sync("One day", max_tokens=10, logprobs=4)
    assert whole.logprobs is not None
    alternative = whole.logprobs[3].top[1]
    branch = whole.branch(3, alternative.text)
    text = "".join(piece.text for piece in rekindle.Stream(branch))  # type: ignore[arg-type]
    generation = branch.result()
    assert generation.token_ids[3] == alternative.token_id
    assert generation.text == text == byte_tokenizer.decode(generation.token_ids)
    plain = texts.generate_sync("One day", max_tokens=10)
    assert plain.branch(3, "x").result().token_ids[3] == byte_tokenizer.encode("x")[0]


def test_a_chosen_end_token_ends_it_without_computing_anything(byte_tokenizer: Tokenizer) -> None:
    with fake_session(fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer, eos_ids=[7])) as session:
        whole = session.generate_sync(token_ids=PROMPT, max_tokens=12, ignore_eos=True)
        ticks = session.stats.scheduler.ticks
        ended = whole.branch(5, 7, ignore_eos=False).result()
        assert session.stats.scheduler.ticks == ticks
        assert (ended.token_ids, ended.finish_reason, ended.stopped_by) == ((*whole.token_ids[:5], 7), "stop", 7)
        assert ended.prompt_token_ids == PROMPT
        assert session.generate_sync(token_ids=PROMPT, max_tokens=1).text == whole.text[:1], "it serves on"


def test_a_branch_at_the_last_token_that_is_allowed_ends_with_it(session: Session) -> None:
    whole = session.generate_sync(token_ids=PROMPT, max_tokens=4)
    other = whole.branch(3, 9).result()
    assert (other.token_ids, other.finish_reason) == ((*whole.token_ids[:3], 9), "length")
    assert other.usage.completion_tokens == 4


def test_what_comes_before_the_fork_is_found_in_the_cache() -> None:
    with fake_session(page_size=16, num_pages=17) as session:
        whole = session.generate_sync(token_ids=[1] * 40, max_tokens=40)
        branch = whole.branch(30, 9).result()
        assert branch.cached_tokens == 64, "70 tokens are given, and 4 whole pages are of them"
        assert branch.usage.prompt_tokens == 40


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"at": 12, "token": 1}, "at must be an integer from 0 to 11, got 12"),
        ({"at": -1, "token": 1}, "at must be an integer from 0 to 11, got -1"),
        ({"at": 0, "token": VOCAB_SIZE}, f"token must be an integer from 0 to {VOCAB_SIZE - 1}"),
        ({"at": 0, "token": "a"}, "the model has no tokenizer, so token must be a token id; got 'a'"),
        ({"at": 3, "token": 1, "max_tokens": 3}, "max_tokens counts all tokens of a branch, including the 4 up to"),
        ({"at": 3, "token": 1, "logprobs": 2}, "the generation has none: leave out logprobs"),
        ({"at": 3, "token": 1, "max_token": 9}, "max_tokens"),
    ],
)
def test_what_cannot_be_branched_is_said_at_once(session: Session, arguments: Any, expected: str) -> None:
    whole = session.generate_sync(token_ids=PROMPT, max_tokens=12)
    with pytest.raises(rekindle.InvalidRequest, match=expected):
        whole.branch(**arguments)


def test_without_tokens_there_is_no_place(session: Session) -> None:
    with pytest.raises(rekindle.InvalidRequest, match="no position to branch at"):
        session.generate_sync(token_ids=PROMPT, max_tokens=0).branch(0, 1)


def test_a_token_whose_probability_is_not_known_needs_no_logprobs(session: Session) -> None:
    whole = session.generate_sync(token_ids=PROMPT, max_tokens=12, logprobs=2)
    assert whole.logprobs is not None
    token = (whole.token_ids[3] + 50) % VOCAB_SIZE
    with pytest.raises(rekindle.InvalidRequest, match=f"probability of token {token} at position 3 was not returned"):
        whole.branch(3, token)
    branch = whole.branch(3, token, logprobs=None).result()
    assert (branch.token_ids[3], branch.logprobs) == (token, None)


def test_a_generation_of_nowhere_cannot_be_branched(session: Session) -> None:
    whole = session.generate_sync(token_ids=PROMPT, max_tokens=3)
    stored = pickle.loads(pickle.dumps(whole))
    assert stored == whole
    with pytest.raises(rekindle.SessionError, match="not created by a session of this process"):
        stored.branch(0, 1)
    session.close_sync()
    with pytest.raises(rekindle.SessionClosed):
        whole.branch(0, 1)


def test_a_generation_keeps_nothing_of_its_session(byte_tokenizer: Tokenizer) -> None:
    loaded_engine = fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer)
    session = fake_session(loaded_engine)
    whole = session.generate_sync(token_ids=PROMPT, max_tokens=3)
    engine_ref = weakref.ref(loaded_engine)
    session.close_sync()
    del session, loaded_engine

    def is_gone() -> bool:
        gc.collect()
        return engine_ref() is None

    until_blocking(is_gone, "the engine's thread, which ends, had let go of the loaded engine")
    with pytest.raises(rekindle.SessionClosed, match="is closed; open it again"):
        whole.branch(0, 1)


def test_a_branch_has_the_cut_prompt_for_any_number_of_tokens() -> None:
    with fake_session(fake_loaded_engine(fake_limits(max_context=32))) as session:
        whole = session.generate_sync(token_ids=range(3, 40), max_tokens=4, truncate_prompt_tokens=-1)
        branch = whole.branch(1, 9, max_tokens=16).result()
        assert branch.prompt_token_ids == whole.prompt_token_ids == tuple(range(12, 40))
