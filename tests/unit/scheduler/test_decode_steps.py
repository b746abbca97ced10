"""Several decode steps in one tick: their planning, and their answers, the same as with one step."""

from typing import Any

import pytest

from rekindle.core.buckets import MAX_STEPS, Bucket
from rekindle.core.errors import ConfigError, LogitsNotFinite
from rekindle.core.messages import Admit, Dispatched, Message, Outputs, Plan, Rejected, Settled
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.scheduler.planner import StepCounts
from rekindle.core.scheduler.scheduler import Scheduler
from rekindle.settings.engine import Settings
from rekindle.testing import ByHand, FakeGrammar, expected_tokens, fake_session
from rekindle.testing.by_hand import fake_limits
from rekindle.testing.device import FakeStepper, settle_tick
from rekindle.testing.model import FAKE_STATE_MODEL

PROMPT = [1, 2, 3]


@pytest.fixture(autouse=True)
def _as_many_steps_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepCounts, "choose", lambda self, rows, alone: MAX_STEPS)


def steps_of(plans: list[Plan]) -> list[int]:
    """Return the number of tokens for each row of the plans; 0 for a plan without rows."""
    return [plan.steps if plan.rows else 0 for plan in plans]


def drained(engine: ByHand) -> list[int]:
    """Settle everything; return the steps of all ticks with rows."""
    steps = []
    while engine.in_flight:
        steps += [each for each in steps_of(engine.settle()) if each]
    return steps


def settled(engine: ByHand) -> list[Plan]:
    """Settle everything; return the plans with rows."""
    plans = list[Plan]()
    while engine.in_flight:
        plans += engine.settle()
    return [plan for plan in plans if plan.rows]


def settled_by(message: Message) -> Settled:
    """Return the results of a dispatched tick."""
    assert isinstance(message, Dispatched)
    return settle_tick(message)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 2, 9, 40])
def test_a_request_alone_gets_its_tokens_in_fewer_ticks(max_tokens: int, overlap: bool) -> None:
    engine = ByHand(decode_steps=4, page_size=16, overlap=overlap)
    plans = engine.admit(0, PROMPT, max_tokens)
    drained(engine)
    assert tuple(engine.tokens[0]) == expected_tokens(PROMPT, max_tokens)
    assert engine.ends[0] == "length"
    assert engine.scheduler.stats.ticks == 1 + -(-(max_tokens - 1) // 4)
    assert steps_of(plans)[0] == 0


def test_a_row_gets_no_more_steps_than_it_has_tokens_left() -> None:
    engine = ByHand(decode_steps=8, overlap=False)
    engine.admit(0, PROMPT, 4)
    engine.admit(1, PROMPT, 40)
    while not (plans := [plan for plan in engine.settle() if plan.steps > 1]):
        pass
    assert {row.request_id: row.steps for row in plans[0].rows} == {0: 2, 1: 8}, (
        "the first had a step while the other waited"
    )


def test_an_end_token_ends_the_request_and_what_comes_after_it_is_dropped() -> None:
    whole = expected_tokens(PROMPT, 12)
    ends = frozenset({whole[5]})
    engine = ByHand(decode_steps=8)
    engine.admit(0, PROMPT, 12, end_ids=ends)
    drained(engine)
    assert tuple(engine.tokens[0]) == expected_tokens(PROMPT, 12, end_ids=ends) == whole[: whole.index(whole[5]) + 1]
    assert engine.ends[0] == "stop"
    assert engine.scheduler.stats.generated_tokens == len(engine.tokens[0])


def test_ticks_have_one_step_while_somebody_waits_or_prefills_or_is_constrained() -> None:
    engine = ByHand(decode_steps=4, max_running=1, overlap=False)
    engine.admit(0, PROMPT, 20)
    assert steps_of(engine.settle()) == [4]
    engine.admit(1, PROMPT, 20)
    assert steps_of(engine.settle()) == [1], "the other waits for the slot"
    chunked = ByHand(decode_steps=4, prefill_chunk=16, max_prefill_tokens=16, overlap=False)
    chunked.admit(0, PROMPT, 90)
    assert steps_of(chunked.settle()) == [4]
    chunked.admit(1, list(range(3, 43)), 4)
    steps = drained(chunked)
    assert steps[:2] == [1, 1], "between two chunks of the other's prompt"
    assert max(steps[2:]) == 4
    bound = ByHand(decode_steps=4, overlap=False)
    bound.admit(0, PROMPT, 9, grammar=FakeGrammar(3, 90))
    while bound.in_flight or bound.advancing:
        if bound.advancing:
            bound.settle_advance()
        else:
            assert set(steps_of(bound.settle())) <= {0, 1}


def test_nobody_loses_its_pages_so_that_another_takes_more_steps() -> None:
    engine = ByHand(decode_steps=16, page_size=16, num_pages=1 + 4, max_running=2)
    engine.admit(0, [5] * 15, 17)
    engine.admit(1, [7] * 15, 17)
    drained(engine)
    for number, token in enumerate((5, 7)):
        assert tuple(engine.tokens[number]) == expected_tokens([token] * 15, 17)
    assert engine.scheduler.stats.preemptions == 0


def test_a_sign_after_the_end_of_a_request_fails_nobody() -> None:
    scheduler = Scheduler(fake_limits(decode_steps=4, overlap=False))
    end = frozenset({9})
    scheduler.handle(Admit(Request(0, (1, 2), SamplingParams(max_tokens=20), end, 64)))
    scheduler.handle(Settled(1, ((0, 7),)))
    failure = {0: LogitsNotFinite("after its end")}
    messages: list[Message] = scheduler.handle(Settled(2, ((0, 8), (0, 9)), failures=failure))
    assert not any(isinstance(each, Rejected) for each in messages)
    outputs = [output for each in messages if isinstance(each, Outputs) for output in each.outputs]
    assert [(output.token_ids, output.end) for output in outputs] == [((8, 9), "stop")]


@pytest.mark.parametrize("options", [{"stop_token_ids": [5]}, {"logprobs": 2}, {"temperature": 1.0, "seed": 3}])
def test_callers_get_what_they_get_with_one_step(options: dict[str, Any]) -> None:
    with fake_session() as one, fake_session(decode_steps=6, page_size=16) as several:
        for prompt in ([3, 4], [9] * 30):
            expected = one.generate_sync(token_ids=prompt, max_tokens=50, **options)
            generation = several.generate_sync(token_ids=prompt, max_tokens=50, **options)
            assert generation.token_ids == expected.token_ids
            assert generation.logprobs == expected.logprobs
            assert generation.finish_reason == expected.finish_reason


def test_one_program_takes_any_number_of_steps() -> None:
    limits = fake_limits(decode_steps=4, decode_buckets=[1, 32], prefill_buckets=[512])
    assert set(limits.all_buckets()) == {Bucket(0, 1), Bucket(0, 32), Bucket(512, 0)}


def test_a_state_takes_steps_up_to_the_end_of_a_page() -> None:
    engine = ByHand(model=FAKE_STATE_MODEL, decode_steps=16, page_size=16, overlap=False)
    engine.admit(0, PROMPT, 40)
    engine.admit(1, [5] * 9, 40)
    counts = [{row.request_id: row.steps for row in plan.rows} for plan in settled(engine)]
    assert counts[-3:] == [{0: 12, 1: 7}, {0: 16, 1: 16}, {0: 10, 1: 16}]
    for number, prompt in enumerate((PROMPT, [5] * 9)):
        assert tuple(engine.tokens[number]) == expected_tokens(prompt, 40)


def test_a_request_with_drafts_takes_one_step_and_the_next_one_several() -> None:
    engine = ByHand(decode_steps=8, draft="lookup", overlap=False)
    engine.admit(0, PROMPT * 4, 20)
    assert {plan.steps for plan in settled(engine)} == {1}
    other = ByHand(decode_steps=8, overlap=False)
    other.admit(0, PROMPT * 4, 20)
    assert max(plan.steps for plan in settled(other)) == 8


def test_the_tokens_of_a_request_and_tick_are_one_output_and_one_piece() -> None:
    scheduler, stepper = Scheduler(limits := fake_limits(decode_steps=4, overlap=False)), FakeStepper(limits)
    replies: list[Message] = []
    for number in range(3):
        params = SamplingParams(max_tokens=30)
        replies += scheduler.handle(Admit(Request(number, (*PROMPT, number), params, frozenset(), 64)))
    seen: list[int] = []
    while replies:
        message = replies.pop(0)
        if isinstance(message, Plan):
            replies += [reply for each in stepper.handle(message) for reply in scheduler.handle(settled_by(each))]
        elif isinstance(message, Outputs):
            ids = [output.request.id for output in message.outputs]
            assert len(ids) == len(set(ids))
            seen += [len(output.token_ids) for output in message.outputs]
    assert sum(seen) == 3 * 30
    assert max(seen) == 4
    with fake_session(decode_steps=4, overlap=False) as session:
        pieces = [piece.token_ids for piece in session.stream(token_ids=PROMPT, max_tokens=21)]
    assert [len(piece) for piece in pieces] == [1, 4, 4, 4, 4, 4]
    assert sum(pieces, ()) == expected_tokens(PROMPT, 21)


def test_a_row_is_the_same_while_its_page_and_its_steps_are() -> None:
    engine = ByHand(decode_steps=4, page_size=32, overlap=False)
    engine.admit(0, PROMPT, 60)
    rows = [plan.rows[0] for plan in settled(engine)]
    assert [row.steps for row in rows] == [4] * 14 + [3]
    assert len({id(row) for row in rows[:7]}) == 1
    assert rows[7] is not rows[6], "it goes on to the next page"
    assert rows[7].next_page == rows[8].page != rows[7].page
    assert len({id(row) for row in rows[8:14]}) == 1


@pytest.mark.parametrize("steps", [0, MAX_STEPS + 1, 2.0])
def test_other_numbers_are_refused(steps: Any) -> None:
    with pytest.raises(ConfigError, match="decode_steps must be"):
        Settings(decode_steps=steps)


def test_one_shape_takes_several_steps() -> None:
    engine = ByHand(decode_steps=4, deterministic=True)
    engine.admit(0, PROMPT, 20)
    assert max(plan.steps for plan in settled(engine)) == 4
    assert tuple(engine.tokens[0]) == expected_tokens(PROMPT, 20)
