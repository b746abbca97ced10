"""Free requests wait for the masks of constrained ones for a twentieth of a tick, and then go on without them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rekindle.core.engine.actors import grammars
from rekindle.core.engine.actors.grammars import LONGEST_WAIT, NEVER, Grammars
from rekindle.core.messages import Advance, Advanced, Withdraw
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.text.masks import SerialMasks
from rekindle.testing import ByHand, FakeGrammar, constrained, expected_tokens

GRAMMARS = [FakeGrammar(salt, 90) for salt in (1, 4, 7)]
PROMPTS = [[5, 6, 7], [8, 9], [1, 2, 3, 4], [4, 4]]


@pytest.fixture
def engine() -> ByHand:
    """Return an engine with three constrained requests and a free one, with the number 3, in progress."""
    engine = ByHand()
    for number, prompt in enumerate(PROMPTS):
        engine.admit(number, prompt, 12, grammar=GRAMMARS[number] if number < 3 else None)
    while not (engine.advancing and len(engine.advancing[0].tokens) == 3):
        if engine.advancing:
            engine.settle_advance()
        else:
            engine.settle()
    assert not engine.in_flight
    return engine


def rows_of(plans: Sequence[Any]) -> list[set[int]]:
    return [{row.request_id for row in plan.rows} | {chunk.request_id for chunk in plan.chunks} for plan in plans]


def finish(engine: ByHand) -> None:
    engine.drain()
    for number, prompt in enumerate(PROMPTS):
        grammar = GRAMMARS[number] if number < 3 else None
        assert tuple(engine.tokens[number]) == expected_tokens(prompt, 12, grammar=grammar)


def test_a_tick_goes_on_without_what_is_late(engine: ByHand) -> None:
    (advance,) = engine.advancing
    assert (len(advance.tokens), advance.running, advance.free) == (3, 4, 1)
    plans = engine.settle_advance(1)
    (first, *_) = rows_of(plans)
    assert 3 in first
    assert len(first) == 2, "the free one, and that whose mask there was time for"
    (again,) = engine.advancing
    assert not again.tokens
    assert len(again.late) == 2
    finish(engine)


def test_late_ones_join_the_tick_after_their_answer(engine: ByHand) -> None:
    engine.settle_advance(1)
    while engine.advancing:
        engine.settle_advance()
    engine.settle()
    plans = engine.settle_advance()
    assert rows_of(plans)[0] == {0, 1, 2, 3}
    finish(engine)


def test_a_late_one_may_be_withdrawn(engine: ByHand) -> None:
    engine.settle_advance(1)
    engine.say(Withdraw(0))
    engine.drain()
    assert engine.ends[0] == "cancelled"
    assert engine.ends[3] == "length"


class Slow(SerialMasks):
    """Takes longer for one mask than anybody waits, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self._now = 3600.0
        monkeypatch.setattr(grammars, "perf_counter", lambda: self._now)

    def fill(self, places: Sequence[Any]) -> Sequence[np.ndarray[Any, np.dtype[np.int32]]]:
        self._now += 1.1 * LONGEST_WAIT
        return super().fill(places)


def advance_of(free: int) -> Advance:
    pairs = []
    for number, (prompt, grammar) in enumerate(zip(PROMPTS[:3], GRAMMARS, strict=True)):
        request = constrained(Request(number, tuple(prompt), SamplingParams(max_tokens=9), frozenset(), 99), grammar)
        (token,) = expected_tokens(prompt, 1, grammar=grammar)
        pairs.append((request, token))
    return Advance(tuple(pairs), running=3 + free, free=free)


@pytest.mark.anyio
async def test_free_requests_wait_for_a_while_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Grammars(NEVER, Slow(monkeypatch))
    (first,) = await actor.handle(advance_of(free=1))
    assert isinstance(first, Advanced)
    assert len(first.outcomes) == 1
    (second,) = await actor.handle(Advance((), running=4, free=1, late=first.late))
    assert isinstance(second, Advanced)
    assert len(second.outcomes) == 1, "what is asked next may wait behind this answer, for as long"
    (third,) = await actor.handle(Advance((), running=4, free=0, late=second.late))
    assert isinstance(third, Advanced)
    assert {each for answer in (first, second, third) for each, _ in answer.outcomes} == {0, 1, 2}
    assert not third.late


@pytest.mark.anyio
async def test_where_nobody_is_free_all_masks_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    (answer,) = await Grammars(NEVER, Slow(monkeypatch)).handle(advance_of(free=0))
    assert isinstance(answer, Advanced)
    assert len(answer.outcomes) == 3
    assert not answer.late
