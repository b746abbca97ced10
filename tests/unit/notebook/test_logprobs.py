"""Log-probabilities of tokens and prompts come in full, once and in order, whatever becomes of their request."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.core.errors import InvalidRequest, PromptTooLong
from rekindle.core.request.params import SamplingOptions
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.text.token_bytes import token_bytes
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import expected_of, expected_tokens, fake_limits, fake_loaded_engine, fake_session, score_of
from tests.unit.limits import WAYS
from tests.unit.stages import Stages, request_of, shuffled

PROMPT = tuple(range(100, 140))
ROOMY: dict[str, Any] = {}
IN_CHUNKS: dict[str, Any] = {"page_size": 16, "prefill_chunk": 16}
COMBINED: dict[str, Any] = {"page_size": 16, "prefill_chunk": 16, "ticks": "combined", "max_prefill_tokens": 32}
SHORT_OF_PAGES: dict[str, Any] = {"page_size": 16, "num_pages": 8, "max_running": 4, "prefill_chunk": 16}


def scores(tokens: tuple[int, ...], alternatives: int) -> tuple[TokenLogprob, ...]:
    return tuple(score_of(token, alternatives) for token in tokens)


@pytest.mark.parametrize("limits", [ROOMY, IN_CHUNKS, COMBINED], ids=["roomy", "in chunks", "combined"])
@pytest.mark.parametrize("alternatives", [0, 1, 5, 20])
def test_each_token_has_its_own(limits: dict[str, Any], alternatives: int) -> None:
    with fake_session(**limits) as session:
        generation = session.generate_sync(
            token_ids=PROMPT, max_tokens=7, logprobs=alternatives, prompt_logprobs=alternatives
        )
    assert generation.token_ids == expected_tokens(PROMPT, 7)
    assert generation.logprobs == scores(generation.token_ids, alternatives)
    assert generation.prompt_logprobs == (None, *scores(PROMPT[1:], alternatives))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 33])
@pytest.mark.parametrize("limits", [ROOMY, IN_CHUNKS], ids=["roomy", "in chunks"])
def test_every_length_of_a_prompt_is_scored_but_for_its_first_token(limits: dict[str, Any], length: int) -> None:
    with fake_session(**limits) as session:
        generation = session.generate_sync(token_ids=PROMPT[:length], max_tokens=1, prompt_logprobs=2)
    assert generation.prompt_logprobs == (None, *scores(PROMPT[1:length], 2))


def test_what_is_not_asked_for_is_none(session: Session) -> None:
    neither = session.generate_sync(token_ids=PROMPT, max_tokens=3)
    assert (neither.logprobs, neither.prompt_logprobs) == (None, None)
    assert [piece.logprobs for piece in session.stream_sync(token_ids=PROMPT, max_tokens=2)] == [None, None]
    tokens = session.generate_sync(token_ids=PROMPT, max_tokens=3, logprobs=0)
    assert (tokens.logprobs, tokens.prompt_logprobs) == (scores(tokens.token_ids, 0), None)
    prompt = session.generate_sync(token_ids=PROMPT, max_tokens=3, prompt_logprobs=0)
    assert (prompt.logprobs, prompt.prompt_logprobs) == (None, (None, *scores(PROMPT[1:], 0)))


def test_pieces_carry_those_of_their_tokens(session: Session) -> None:
    pieces = [*session.stream_sync(token_ids=PROMPT, max_tokens=5, logprobs=3)]
    assert [piece.logprobs for piece in pieces] == [scores(piece.token_ids, 3) for piece in pieces]
    assert sum(len(piece.token_ids) for piece in pieces) == 5


def test_neighbours_with_and_without_them_share_a_batch(session: Session) -> None:
    counts: list[int | None] = [None, 3, 0, None, 20]
    handles = [session.submit(token_ids=PROMPT, max_tokens=9, logprobs=k, prompt_logprobs=k) for k in counts]
    for alternatives, handle in zip(counts, handles, strict=True):
        generation = handle.result()
        assert generation.token_ids == expected_tokens(PROMPT, 9)
        if alternatives is None:
            assert (generation.logprobs, generation.prompt_logprobs) == (None, None)
        else:
            assert generation.logprobs == scores(generation.token_ids, alternatives)
            assert generation.prompt_logprobs == (None, *scores(PROMPT[1:], alternatives))


def test_texts_are_those_of_the_tokens_by_themselves(texts: Session, byte_tokenizer: Tokenizer) -> None:
    """Check also the text of a part of a character alone: its bytes."""
    generation = texts.generate_sync("né", max_tokens=3, logprobs=4, prompt_logprobs=4)
    assert generation.logprobs is not None
    assert generation.prompt_logprobs is not None
    first, *prompt = generation.prompt_logprobs
    assert first is None
    assert [entry.text for entry in prompt if entry is not None] == ["\\xc3", "\\xa9"]
    for entry in (*generation.logprobs, *prompt):
        assert entry is not None
        for one in (entry, *entry.top):
            assert one.text == one.bytes.decode(errors="backslashreplace")
            assert one.bytes == token_bytes(byte_tokenizer, one.token_id)
            assert one.logprob == -one.token_id
        assert [one.rank for one in entry.top] == [1, 2, 3, 4]
        assert all(one.top == () for one in entry.top)


def test_they_end_with_the_token_that_completes_a_stop(texts: Session, byte_tokenizer: Tokenizer) -> None:
    (newline,) = byte_tokenizer.encode("\n")
    generation = texts.generate_sync("x", allowed_token_ids=[newline], max_tokens=9, stop="\n\n\n", logprobs=0)
    assert generation.text == ""
    assert generation.logprobs == (TokenLogprob(newline, "\n", -float(newline), 1, (), b"\n"),) * 3


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_as_many_alternatives_are_given_as_the_session_was_opened_for(name: str) -> None:
    ask: Any = {"token_ids": [1], "max_tokens": 1, name: 4}
    for most in (3, 0):
        refused = pytest.raises(InvalidRequest, match=f"{name} must be at most {most}, got 4")
        with fake_session(max_logprobs=most) as session, refused:
            session.submit(**ask)
    with fake_session(max_logprobs=4) as session:
        assert session.generate_sync(**ask).token_ids == expected_tokens([1], 1)


ASKS = st.lists(
    st.tuples(
        st.integers(1, 70),
        st.fixed_dictionaries(
            {
                "max_tokens": st.sampled_from([1, 2, 20, 40]),
                "logprobs": st.sampled_from([None, 0, 2]),
                "prompt_logprobs": st.sampled_from([None, 0, 2]),
            }
        ),
    ),
    min_size=1,
    max_size=5,
)
LIMITS = st.fixed_dictionaries(
    WAYS
    | {
        "num_pages": st.integers(6, 10),
        "max_running": st.integers(1, 4),
        "prefill_chunk": st.sampled_from([512, 32, 16]),
        "max_prefill_tokens": st.sampled_from([512, 48, 16]),
    }
).filter(lambda limits: limits["prefill_chunk"] in (512, 16) or limits["max_prefill_tokens"] > 16)


def check(asks: list[tuple[int, SamplingOptions]], limits: dict[str, Any], order: int) -> int:
    """Check the log probabilities of each request against its options; return the number of preemptions."""
    stages = Stages(**limits)
    prompts = [tuple(range(length)) for length, _ in asks]
    handles = [stages.ask(prompt, **options) for prompt, (_, options) in zip(prompts, asks, strict=True)]
    stages.run(shuffled(order))
    for prompt, (_, options), handle in zip(prompts, asks, handles, strict=True):
        generation = handle.result(timeout=0)
        expected = expected_of(request_of(prompt, options, stages.limits.max_context))
        assert generation.token_ids == expected
        count = options["logprobs"]
        assert generation.logprobs == (None if count is None else scores(expected, count))
        count = options["prompt_logprobs"]
        assert generation.prompt_logprobs == (None if count is None else (None, *scores(prompt[1:], count)))
    return stages.assert_nothing_is_left().preemptions


def test_a_preempted_request_gives_each_once() -> None:
    ask: SamplingOptions = {"max_tokens": 60, "logprobs": 1, "prompt_logprobs": 1}
    for ticks in ("alternate", "prefill-first", "combined"):
        assert check([(20, ask)] * 5, {**SHORT_OF_PAGES, "ticks": ticks}, order=1) > 0


@settings(max_examples=40)
@given(asks=ASKS, limits=LIMITS, order=st.integers(0, 2**32))
def test_they_are_complete_in_any_batch_and_order(
    asks: list[tuple[int, SamplingOptions]], limits: dict[str, Any], order: int
) -> None:
    check(asks, limits, order)


@pytest.mark.deep
@settings(max_examples=3000, derandomize=False)
@given(asks=ASKS, limits=LIMITS, order=st.integers(0, 2**32))
def test_they_are_complete_in_very_many_batches_and_orders(
    asks: list[tuple[int, SamplingOptions]], limits: dict[str, Any], order: int
) -> None:
    check(asks, limits, order)


def test_a_prompt_that_fills_the_context_is_scored_and_not_gone_on_with() -> None:
    prompt = [place % 90 for place in range(64)]
    with fake_session(page_size=16, max_context=64) as session:
        whole = session.generate_sync(token_ids=prompt, max_tokens=0, prompt_logprobs=0)
        assert whole.prompt_logprobs == (None, *scores(tuple(prompt[1:]), 0))
        with pytest.raises(PromptTooLong, match="at most 63 fit with one token of output"):
            session.generate_sync(token_ids=prompt, max_tokens=1)
        with pytest.raises(PromptTooLong, match="at most 64 fit"):
            session.generate_sync(token_ids=[*prompt, 1], max_tokens=0, prompt_logprobs=0)


def test_an_answer_cut_by_a_limit_names_the_limit_and_its_keyword() -> None:
    with fake_session(fake_loaded_engine(fake_limits(max_context=64))) as session:
        short = session.generate_sync(token_ids=[1, 2, 3], max_tokens=4, ignore_eos=True)
        full = session.generate_sync(token_ids=[1] * 60, max_tokens=None, ignore_eos=True)
        ended = session.generate_sync(token_ids=[1, 2, 3], max_tokens=4, stop_token_ids=list(range(128)))
    by_tokens, by_context = "after 4 tokens: max_tokens= allows more", "the context of 64 tokens is full: max_context="
    for answer, present, absent in ((short, by_tokens, by_context), (full, by_context, by_tokens)):
        bundle = answer._repr_mimebundle_()
        assert all(present in text and absent not in text for text in bundle.values())
    assert not any("cut" in text for text in ended._repr_mimebundle_().values())
