"""Requests go on with new weights: computed again from their tokens, and no token is drawn twice or lost."""

from itertools import count

import pytest

import rekindle
from rekindle.core.messages import KeepWeights, NewWeights, Plan, Settled, Submit, UseWeights
from rekindle.core.messages.record import MessageRecord
from rekindle.settings.engine import SettingsOptions
from rekindle.testing import ByHand, FakeGrammar, expected_tokens, fake_session

SHARED = list(range(48))
SMALL: SettingsOptions = {
    "page_size": 16,
    "num_pages": 40,
    "max_running": 2,
    "max_prefill_tokens": 16,
    "prefill_chunk": 16,
}


@pytest.mark.parametrize("overlap", [False, True])
def test_requests_in_flight_are_computed_again_and_those_that_wait_start_with_the_new_weights(overlap: bool) -> None:
    """Have the fake device fail at a read of a page from other weights."""
    engine = ByHand(page_size=16, num_pages=40, max_running=3, overlap=overlap)
    for request_id in range(4):
        engine.admit(request_id, [request_id, *SHARED], max_tokens=20)
    for _ in range(9):
        engine.settle()
    counts = {request_id: len(engine.tokens[request_id]) for request_id in range(3)}
    assert all(counts.values())
    in_flight = len(engine.in_flight)
    plans = engine.say(NewWeights(1, [], "keep"))
    assert (plans, engine.weights_used) == ([], []), "no token is drawn by two models"
    for _ in range(in_flight):
        plans = engine.settle()
    assert engine.weights_used == [1]
    assert [chunk.start for plan in plans for chunk in plan.chunks][:1] == [0]
    engine.drain()
    for request_id in range(4):
        assert engine.tokens[request_id] == list(expected_tokens([request_id, *SHARED], 20))
    assert (engine.scheduler.stats.preemptions, engine.started) == (3, [0, 1, 2, 3])


def test_an_exchange_that_is_withdrawn_in_time_preempts_nobody() -> None:
    engine = ByHand(page_size=16, num_pages=40, max_running=3)
    engine.admit(0, SHARED, max_tokens=20)
    for _ in range(4):
        engine.settle()
    engine.say(NewWeights(1, [], "keep"))
    assert not engine.settle()
    assert engine.say(KeepWeights(1)), "planning goes on"
    engine.drain()
    assert engine.tokens[0] == list(expected_tokens(SHARED, 20))
    assert (engine.weights_used, engine.scheduler.stats.preemptions) == ([], 0)


def test_what_was_to_finish_on_the_old_weights_finishes_before_others_are_kept() -> None:
    engine = ByHand(page_size=16, num_pages=40, max_running=3)
    engine.admit(0, SHARED, max_tokens=20)
    for _ in range(4):
        engine.settle()
    engine.say(NewWeights(1, []))
    engine.say(NewWeights(2, [], "keep"))
    while not engine.weights_used:
        engine.settle()
    assert (engine.ends, engine.scheduler.stats.preemptions) == ({0: "length"}, 0)
    engine.drain()
    assert engine.weights_used == [1, 2]


@pytest.mark.parametrize("ticks", range(6))
def test_a_prompt_is_observed_by_one_model_alone(ticks: int) -> None:
    """Sum hidden states; a sum must not mix two models, and is reported once."""
    engine = ByHand(page_size=16, num_pages=40, max_running=2, max_prefill_tokens=16, prefill_chunk=16)
    plans = engine.admit(0, SHARED, max_tokens=0, pooling="mean")
    for _ in range(ticks):
        plans += engine.settle() if engine.in_flight else []
    engine.say(NewWeights(1, [], "keep"))
    while engine.in_flight:
        used = bool(engine.weights_used)
        plans += engine.settle()
        assert used or not engine.weights_used or engine.ends or not engine.states[0]
    assert sum(each.count for each in engine.states[0]) == len(SHARED)
    assert engine.weights_used == [1]
    assert sum(_summed_tokens(plan) for plan in plans) == len(SHARED)


def _summed_tokens(plan: Plan) -> int:
    return sum(chunk.summing.count for chunk in plan.chunks if chunk.summing is not None)


def test_a_constrained_request_keeps_its_place_in_the_grammar() -> None:
    engine = ByHand(page_size=16, num_pages=40, max_running=3)
    grammar = FakeGrammar(7, 90)
    engine.admit(0, SHARED, max_tokens=20, grammar=grammar)
    for ticket in range(1, 5):
        engine.settle()
        engine.say(NewWeights(ticket, [], "keep"))
        if engine.advancing:
            engine.settle_advance()
    engine.drain()
    assert engine.tokens[0] == list(expected_tokens(SHARED, 20, grammar=grammar))
    assert engine.weights_used == [1, 2, 3, 4]


def test_a_held_prefix_is_dropped_and_its_holder_goes_on() -> None:
    engine = ByHand(page_size=16, num_pages=40, max_running=2, max_prefill_tokens=16, prefill_chunk=16)
    engine.admit(0, SHARED, hold=True)
    engine.settle()
    engine.say(NewWeights(1, [], "keep"))
    engine.drain()
    assert (engine.ends, engine.weights_used) == ({0: "held"}, [1])


@pytest.mark.anyio
@pytest.mark.parametrize("ticks", range(8))
async def test_each_log_probability_is_told_once(ticks: int) -> None:
    turns = count()
    async with fake_session(**SMALL) as session:

        def exchange(record: MessageRecord) -> None:
            """Give new weights after so many ticks have settled, on the engine's thread, between two messages."""
            if isinstance(record.message, Submit | Settled) and next(turns) == ticks:
                session._engine.client.ask(lambda ticket: NewWeights(ticket, [], "keep"), session._engine.thread.post)

        with session.watch(exchange):
            answer = await session.generate(token_ids=SHARED, max_tokens=9, prompt_logprobs=1, logprobs=0)
        assert answer.token_ids == expected_tokens(SHARED, 9)
        assert answer.prompt_logprobs is not None
        ids = [None if each is None else each.token_id for each in answer.prompt_logprobs]
        assert ids == [None, *SHARED[1:]]
        assert [each.token_id for each in answer.logprobs or ()] == list(answer.token_ids)


@pytest.mark.anyio
@pytest.mark.parametrize("settings", [{}, {"replicas": 2}, {"prefill": "cpu:0", "decode": "cpu:0", "prefill_from": 16}])
async def test_each_token_names_the_weights_that_drew_it(settings: SettingsOptions) -> None:
    """Give new weights after every fourth token; each token is drawn by the weights in use at the plan of its tick."""
    draws: list[tuple[int, int]] = []
    used = [0, 0]
    async with fake_session(**SMALL | settings) as session:

        def see(record: MessageRecord) -> None:
            lane = record.lane or 0
            match record.message:
                case Settled(tokens=tokens):
                    draws.extend((used[lane], token) for _, token in tokens)
                    if tokens and len(draws) % 4 == 0:
                        session._engine.ask(lambda ticket: NewWeights(ticket, [[], []], "keep"))
                case UseWeights(version=version):
                    used[lane] = version

        with session.watch(see):
            answer = await session.generate(token_ids=SHARED, max_tokens=30, ignore_eos=True)
        assert answer.token_ids == expected_tokens(SHARED, 30) == tuple(token for _, token in draws)[:30]
        versions = [version for version, tokens in answer.weights_version for _ in range(tokens)]
        assert versions == [version for version, _ in draws[:30]] == sorted(versions)
        assert len(answer.weights_version) > 3


@pytest.mark.anyio
async def test_a_branch_names_the_weights_that_drew_its_copied_tokens() -> None:
    async with fake_session(**SMALL) as session:
        assert session.weights_version == 0
        first = await session.generate(token_ids=SHARED, max_tokens=9, ignore_eos=True)
        assert first.weights_version == ((0, 9),)
        await session.update_weights({})
        assert session.weights_version == 1
        second = await first.branch(4, 7)
        await session.update_weights({}, in_flight="keep")
        third = await second.branch(6, 9)
        assert (second.weights_version, third.weights_version) == (((0, 4), (1, 5)), ((0, 4), (1, 2), (2, 3)))


@pytest.mark.anyio
async def test_a_session_whose_programs_change_bits_refuses_to_keep_requests() -> None:
    async with fake_session(deterministic=True) as session:
        with pytest.raises(rekindle.InvalidRequest, match="deterministic=True rules that out"):
            await session.update_weights({}, in_flight="keep")
        await session.update_weights({})
