"""Drafts by lookup and by a head: the same tokens in fewer ticks, whatever is right or wrong about a guess."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.assembly.limits.resolution import resolve_limits
from rekindle.core.errors import ConfigError, InvalidRequest
from rekindle.core.messages import Plan, Withdraw
from rekindle.core.policy import DraftSource
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.scheduler.drafts.gain import LEAST_GAIN, Chances, Times, best_room, counts_of
from rekindle.core.scheduler.drafts.index import GAP, MOST_DRAFT, TokenIndex
from rekindle.core.scheduler.drafts.memory import MOST_NAMESPACES, MOST_TOKENS, FinishedOutputs
from rekindle.core.scheduler.requests.aspects.drafting import obstacle
from rekindle.settings.engine import Settings
from rekindle.testing import (
    FAKE_MODEL,
    FAKE_STATE_MODEL,
    VOCAB_SIZE,
    ByHand,
    FakeGrammar,
    device,
    expected_tokens,
    fake_limits,
    fake_session,
)

PROMPT = (3, 1, 4, 1, 5)


def last_of(tokens: list[int]) -> Any:
    """Return the last tokens as an array for a search."""
    return np.array(tokens[-MOST_DRAFT:], np.int32)


def longest_match(tokens: list[int], last: list[int]) -> int:
    """Return the length of the longest match of the last tokens with a token after it, by trying each place."""
    lengths = [0]
    for end in range(len(tokens) - 1):
        length = 0
        while length < min(len(last), MOST_DRAFT) and end >= length and tokens[end - length] == last[-1 - length]:
            length += 1
        lengths.append(length)
    return max(lengths)


@given(st.lists(st.integers(0, 3), max_size=80))
def test_the_index_finds_the_longest_match(tokens: list[int]) -> None:
    index = TokenIndex()
    for place in range(0, len(tokens), 7):  # in parts, as a request grows
        index.extend(tokens[place : place + 7])
    match, following = index.following(index.newest(MOST_DRAFT), own=True)
    longest = longest_match(tokens, tokens)
    assert match == (longest if longest >= 2 else 0)
    assert len(following) == match
    if match:
        period = next(at for at in range(1, len(tokens)) if tokens[-at - match : -at] == tokens[-match:])
        assert following == [([*tokens] * 20)[len(tokens) - period + place % period] for place in range(match)]


def test_a_gap_ends_what_followed_and_matches_nothing() -> None:
    index = TokenIndex([7, 8, 9, GAP, 9, 8, 7, 8, 9, 5, GAP])
    assert index.following(last_of([7, 8, 9]), own=False) == (3, [5])
    assert index.following(last_of([9, 5]), own=False) == (0, [])
    assert index.following(last_of([8, 7]), own=False) == (2, [8, 9])


def test_the_memory_keeps_namespaces_apart_and_within_bounds() -> None:
    memory = FinishedOutputs()
    memory.add("a", [1, 2, 3, 4, 5])
    assert memory.following("a", last_of([2, 3]))[1] == [4, 5]
    assert memory.following("b", last_of([2, 3])) == (0, [])
    for _ in range(3):
        memory.add("a", list(range(MOST_TOKENS)))
        assert len(memory._indices["a"]) <= MOST_TOKENS
    for number in range(MOST_NAMESPACES):
        memory.add(f"another {number}", [1, 2, 3, 4])
    assert memory.following("a", last_of([2, 3])) == (0, [])
    memory.forget()
    assert memory.following("another 3", last_of([2, 3])) == (0, [])


def measure(times: Times, rows: int, seconds: float) -> None:
    """Add two ticks of a size, the first of which does not count."""
    times.add(rows, 100 * seconds, 0.0)
    times.add(rows, seconds, 0.0)


def test_a_draft_is_as_long_as_its_cost_allows() -> None:
    times, sizes = Times(), (1, 4, 16)
    chances = [0.9**place for place in range(1, 16)]
    assert best_room(1, chances, times, sizes) == (0, 0.0), "nothing is measured"
    measure(times, 1, 10.0)
    assert best_room(1, chances, times, sizes)[0] == 15, "what is not measured costs nothing more"
    assert best_room(1, chances, times, sizes, unready=[16])[0] == 3
    measure(times, 16, 60.0)
    measure(times, 4, 15.0)
    room, saved = best_room(1, chances, times, sizes)
    assert room == 3
    assert saved == pytest.approx(10 * (1 + sum(chances[:3])) - 15, abs=1.0)
    assert best_room(1, [0.1, 0.01], times, sizes)[0] == 0
    assert best_room(4, chances, times, sizes)[0] == 0, "16 rows cost four times as much as 4"
    assert best_room(1, [0.5], times, sizes)[0] == 0, "1.5 tokens for the time of 1.5"
    assert best_room(1, [0.5 * LEAST_GAIN + 0.1], times, sizes)[0] == 1
    assert best_room(3, [0.2], times, sizes)[0] == 1, "a row of padding costs nothing"
    assert counts_of([(0.9, 0.8, 0.7), (0.75, 0.1), ()], 4) == [3, 1, 0]


def test_an_old_or_wrong_time_is_measured_again() -> None:
    times, sizes = Times(), (1, 4)
    measure(times, 1, 10.0)
    measure(times, 4, 100.0)
    assert best_room(1, [1.0] * 3, times, sizes)[0] == 0
    for _ in range(400):
        times.add(1, 10.0, 0.0)
    assert best_room(1, [1.0] * 3, times, sizes)[0] == 3
    times.add(1, 1000.0, 0.0)
    assert times.of(1) == pytest.approx(12.0), "a single slow tick counts as twice the mean"


def test_chances_follow_what_happens_in_a_request() -> None:
    of_all = Chances()
    one, other = Chances(of_all), Chances(of_all)
    for _ in range(100):
        one.add(5, same=True)
    assert one.of(5) > 0.9
    assert Chances().of(5) < other.of(5) < one.of(5)
    assert one.of_all(4, 3) == pytest.approx((one.of(4), one.of(4) * one.of(5), one.of(4) * one.of(5) * one.of(6)))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("grammar", [None, FakeGrammar(5, 60)])
def test_a_repeated_request_takes_fewer_ticks(overlap: bool, grammar: FakeGrammar | None) -> None:
    engine = ByHand(draft="lookup", overlap=overlap)
    expected = expected_tokens(PROMPT, 60, grammar=grammar)
    engine.admit(1, PROMPT, 60, grammar=grammar)
    engine.drain()
    before = engine.scheduler.stats.ticks
    engine.admit(2, PROMPT, 60, grammar=grammar)
    engine.drain()
    assert tuple(engine.tokens[1]) == tuple(engine.tokens[2]) == expected
    stats = engine.scheduler.stats
    assert stats.ticks - before < before / 2
    assert stats.accepted_tokens == sum(stats.accepted_at.values()) > len(expected) / 2
    assert stats.drafts == stats.accepted_at[1]


def test_wrong_drafts_change_nothing() -> None:
    engine = ByHand(draft="lookup", overlap=False)
    for number, begun in enumerate([(), (9,), (9, 9)]):
        engine.admit(number, PROMPT, 40, begun=begun)
        engine.drain()
        assert tuple(engine.tokens[number]) == expected_tokens(PROMPT, 40, begun=begun)
    beginning = expected_tokens(PROMPT, 40)[:20]
    for end in range(9, 14):  # the same output, and then another: the draft goes on as the first one
        engine.admit(end, PROMPT, 40, begun=(*beginning[:end], 9))
        engine.drain()
        assert tuple(engine.tokens[end]) == expected_tokens(PROMPT, 40, begun=(*beginning[:end], 9))
    prompts = [(other, 2, token, 9, other, 2) for other in range(40) for token in range(VOCAB_SIZE)]
    misled = next(prompt for prompt in prompts if expected_tokens(prompt, 1) == (prompt[2],))  # 9 does not follow again
    engine.admit(20, misled, 40)
    engine.drain()
    assert tuple(engine.tokens[20]) == expected_tokens(misled, 40)
    assert engine.scheduler.stats.drafted_tokens > engine.scheduler.stats.accepted_tokens


def test_outputs_of_another_namespace_or_other_weights_are_no_drafts() -> None:
    engine = ByHand(draft="lookup")
    for number, namespace in enumerate(["mine", "yours"]):
        engine.admit(number, PROMPT, 40, namespace=namespace)
        engine.drain()
    assert engine.scheduler.stats.accepted_tokens == 0
    engine.admit(2, PROMPT, 40, namespace="mine")
    engine.drain()
    assert engine.scheduler.stats.accepted_tokens > 0


def test_a_draft_takes_no_page_that_a_running_request_may_need() -> None:
    engine = ByHand(draft="lookup", page_size=16, num_pages=1 + 4, overlap=False, prefix_cache=False)
    engine.admit(1, PROMPT, 40)
    engine.drain()
    engine.admit(2, PROMPT, 40)
    engine.admit(3, PROMPT[:2], 20)
    engine.drain()
    assert tuple(engine.tokens[2]) == expected_tokens(PROMPT, 40)
    assert tuple(engine.tokens[3]) == expected_tokens(PROMPT[:2], 20)


def test_a_request_withdrawn_with_a_draft_in_flight_leaves_nothing() -> None:
    engine = ByHand(draft="lookup", overlap=False)
    engine.admit(1, PROMPT, 40)
    engine.drain()
    plans: list[Plan] = engine.admit(2, PROMPT, 40)
    while not any(row.offset for plan in plans for row in plan.rows):
        plans = engine.settle()
    assert "drafted" in str(plans[0])
    engine.say(Withdraw(2))
    engine.drain()
    assert engine.ends[2] == "cancelled"
    assert engine.scheduler.stats.running == 0


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("draft", ["lookup", "mtp"])
def test_layers_with_states_go_on_from_the_last_right_token(overlap: bool, draft: DraftSource) -> None:
    engine = ByHand(model=FAKE_STATE_MODEL, draft=draft, overlap=overlap, page_size=16, num_pages=65)
    expected = expected_tokens(PROMPT, 90)
    for number in range(3):
        engine.admit(number, PROMPT, 90)
        engine.drain()
        assert tuple(engine.tokens[number]) == expected
    stats = engine.scheduler.stats
    assert stats.accepted_tokens > 60
    before = stats.computed_tokens
    turn = (*PROMPT, *expected, 2)
    engine.admit(9, turn, 10)
    engine.drain()
    assert tuple(engine.tokens[9]) == expected_tokens(turn, 10)
    assert engine.scheduler.stats.computed_tokens - before <= 1 + 16, "the state of the last whole page is there"


def test_a_session_opened_without_drafts_keeps_no_states_for_them() -> None:
    request = Request(1, PROMPT, SamplingParams(draft="lookup"), frozenset(), 64)
    assert obstacle(request, fake_limits(FAKE_STATE_MODEL)) == "states"
    assert obstacle(request, fake_limits(FAKE_STATE_MODEL, draft="lookup")) is None


@pytest.mark.anyio
async def test_a_request_and_a_session_choose_drafts() -> None:
    prompt = [3, 1, 4]
    options: Any = {"max_tokens": 40}
    with fake_session(draft="lookup") as session:
        first = await session.generate(token_ids=prompt, **options)
        assert (await session.generate(token_ids=prompt, draft=False, **options)).token_ids == first.token_ids
        assert session.stats.scheduler.drafts == 0
        again = await session.generate(token_ids=prompt, logprobs=2, **options)
        assert again.token_ids == first.token_ids
        assert again.logprobs is not None
        assert len(again.logprobs) == len(again.token_ids)
        assert session.stats.scheduler.drafts > 0
        await session.generate(token_ids=prompt, frequency_penalty=1.0, bad_words=[[1, 2]], **options)
        assert session.stats.scheduler.undrafted == {"penalties": 1}
        assert "undrafted.penalties" in repr(session.stats)
    with fake_session() as session:
        for _ in range(2):
            await session.generate(token_ids=prompt, draft="lookup", **options)
        assert session.stats.scheduler.drafts > 0


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("draw", [0, 7])
def test_a_draft_head_saves_ticks(overlap: bool, draw: int) -> None:
    ticks = []
    for draft in (None, "mtp"):
        engine = ByHand(draft=draft, overlap=overlap)
        for number in (1, 2):
            engine.admit(number, PROMPT, 60, draw=draw)
            engine.drain()
            assert tuple(engine.tokens[number]) == expected_tokens(PROMPT, 60, draw=draw)
        ticks.append(engine.scheduler.stats.ticks)
    stats = engine.scheduler.stats
    assert ticks[1] < 0.75 * ticks[0]
    assert stats.drafted_tokens == stats.drafts > stats.accepted_tokens > 0
    assert stats.accepted_at == {1: stats.accepted_tokens}


@pytest.mark.parametrize("overlap", [True, False])
def test_a_draft_head_keeps_to_a_grammar(overlap: bool) -> None:
    engine, grammar = ByHand(draft="mtp", overlap=overlap), FakeGrammar(5, 60)
    for number in (1, 2):
        engine.admit(number, PROMPT, 60, grammar=grammar)
        engine.drain()
        assert tuple(engine.tokens[number]) == expected_tokens(PROMPT, 60, grammar=grammar)
    assert engine.scheduler.stats.drafts > 0


def test_a_draft_head_sees_the_token_after_each_chunk() -> None:
    engine, prompt = ByHand(draft="mtp", prefill_chunk=16, max_prefill_tokens=16, overlap=False), (*range(40), 1)
    plans = engine.admit(1, prompt, 20)
    while engine.in_flight:
        plans += engine.settle()
    assert [chunk.following for plan in plans for chunk in plan.chunks] == [prompt[16], prompt[32], 0]
    assert tuple(engine.tokens[1]) == expected_tokens(prompt, 20)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_draft_head_without_right_guesses_is_hardly_verified(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "WRONG_GUESSES", 1)
    engine = ByHand(draft="mtp", overlap=overlap)
    for number in range(4):
        engine.admit(number, PROMPT, 60)
        engine.drain()
        assert tuple(engine.tokens[number]) == expected_tokens(PROMPT, 60)
    stats = engine.scheduler.stats
    assert stats.accepted_tokens == 0
    assert 0 < stats.drafts < stats.generated_tokens / 3


@pytest.mark.anyio
async def test_requests_choose_among_the_drafts_of_a_session_with_a_head() -> None:
    options: Any = {"token_ids": [3, 1, 4], "max_tokens": 40}
    with fake_session(draft="mtp") as session:
        first = await session.generate(draft=False, **options)
        assert session.stats.scheduler.drafts == 0
        for draft in ("mtp", "lookup", None):
            assert (await session.generate(draft=draft, **options)).token_ids == first.token_ids
        assert session.stats.scheduler.accepted_tokens > 0
    with fake_session() as session, pytest.raises(InvalidRequest, match='opened without draft="mtp"'):
        await session.generate(draft="mtp", **options)


def test_a_head_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="its files have no draft head that is supported"):
        resolve_limits(Settings(draft="mtp"), FAKE_MODEL, 4)


def test_another_value_is_refused() -> None:
    with pytest.raises(Exception, match='draft must be "lookup", "mtp", False or None, got True'):
        SamplingParams.from_options({"draft": True})
