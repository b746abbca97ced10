"""The device state is lost with a damaged program: what ran begins again, and nobody sees it but in the counters."""

from itertools import count
from typing import Any, cast

import jax
import pytest

from rekindle.core.device.orders import DeviceState
from rekindle.core.device.programs.executables import Executables
from rekindle.core.device.programs.functions import EMPTY, SCATTER, Key
from rekindle.core.device.state import Slots
from rekindle.core.engine.actors.stepper import Stepper
from rekindle.core.errors import RequestCancelled
from rekindle.core.messages import Dispatched, Plan, PutPages, Rejected, Settled, StateLost, Submit
from rekindle.core.messages.record import MessageRecord
from rekindle.core.scheduler.scheduler import NOT_RECOMPUTED
from rekindle.testing import ByHand, FakeStepper, expected_tokens, fake_limits, fake_session
from rekindle.testing.session import fake_loaded_engine

SHARED = list(range(48))
PAGE_BYTES = 128
"""The bytes of a page of 16 tokens of the fake model."""


@pytest.mark.parametrize("overlap", [False, True])
def test_what_runs_begins_again_in_its_order_and_gets_the_same_tokens(overlap: bool) -> None:
    engine = ByHand(page_size=16, num_pages=40, max_running=3, overlap=overlap)
    for request_id in range(4):
        engine.admit(request_id, [request_id, *SHARED], max_tokens=20)
    for _ in range(9):
        engine.settle()
    assert engine.tokens[0]
    engine.lose_device()
    engine.drain()
    for request_id in range(4):
        assert engine.tokens[request_id] == list(expected_tokens([request_id, *SHARED], 20))
    stats = engine.scheduler.stats
    assert (stats.device_losses, stats.preemptions, engine.started) == (1, 3, [0, 1, 2, 3])


def test_nothing_is_found_on_the_device_any_more_and_copies_are_still_found() -> None:
    engine = ByHand(page_size=16, num_pages=7, max_running=2, host_cache_bytes=8 * PAGE_BYTES, disk_cache_bytes=0)
    engine.admit(0, SHARED, max_tokens=1)
    engine.drain()
    engine.admit(1, list(range(100, 148)), max_tokens=40)  # which evicts what came before
    engine.drain()
    engine.lose_device()
    engine.admit(2, [1], max_tokens=1)
    engine.drain()
    assert engine.scheduler.stats.cached_pages == 0
    engine.admit(3, [*SHARED, 7])
    engine.drain()
    assert engine.tokens[3] == list(expected_tokens([*SHARED, 7], 4))
    stats = engine.scheduler.stats
    assert (stats.host_hit_tokens, stats.device_hit_tokens) == (48, 0)


def test_one_that_waits_for_copies_of_a_prefix_whose_first_pages_are_lost_computes_those_anew() -> None:
    engine = ByHand(page_size=16, num_pages=6, max_running=2, host_cache_bytes=9 * PAGE_BYTES, disk_cache_bytes=0)
    engine.admit(0, SHARED, max_tokens=1)
    engine.drain()
    engine.admit(1, list(range(100, 132)), max_tokens=15)  # which evicts the last page of what came before
    engine.drain()
    colder = [node.page is None for node in engine.scheduler.table.groups[0].cache.tree.match("", SHARED)]
    assert colder == [False, False, True]
    engine.admit(2, [5], max_tokens=30)
    engine.admit(3, [*SHARED, 7])
    while not engine.fetching:
        engine.settle()
    engine.lose_device()
    while not engine.scheduler.stats.device_losses:
        engine.settle()
    assert engine.scheduler.stats.cached_pages == 0
    engine.drain()
    assert engine.tokens[2] == list(expected_tokens([5], 30))
    assert engine.tokens[3] == list(expected_tokens([*SHARED, 7], 4))


def test_what_is_deterministic_and_has_tokens_is_not_computed_in_another_way() -> None:
    engine = ByHand(page_size=16, num_pages=40, max_running=2, deterministic=True, overlap=False)
    for request_id in range(2):
        engine.admit(request_id, [request_id], max_tokens=20)
    while not engine.tokens[0]:
        engine.settle()
    engine.admit(2, [2])
    engine.lose_device()
    engine.drain()
    failures = [request_id for request_id in range(3) if request_id in engine.rejected]
    assert failures
    assert 2 not in failures
    assert all(engine.tokens[each] and engine.ends[each] == "cancelled" for each in failures)
    error = engine.rejected[0]
    assert isinstance(error, RequestCancelled)
    assert str(error) == NOT_RECOMPUTED
    assert engine.tokens[2] == list(expected_tokens([2], 4))
    assert not [each for each in engine.messages if isinstance(each, Rejected) and each.request_id == 2]


@pytest.mark.anyio
@pytest.mark.parametrize("ticks", range(8))
async def test_each_log_probability_of_a_prompt_is_told_once(ticks: int) -> None:
    limits = fake_limits(page_size=16, num_pages=40, max_running=2, max_prefill_tokens=16, prefill_chunk=16)
    loaded_engine, turns = fake_loaded_engine(limits), count()

    def lose(record: MessageRecord) -> None:
        """Lose the device after so many ticks have settled, on the engine's thread, between two messages."""
        if isinstance(record.message, Submit | Settled) and next(turns) == ticks:
            cast(FakeStepper, loaded_engine.lanes[0].actors.stepper).lose()

    async with fake_session(loaded_engine) as session:
        with session.watch(lose):
            answer = await session.generate(token_ids=SHARED, max_tokens=3, prompt_logprobs=1, logprobs=0)
        assert answer.token_ids == expected_tokens(SHARED, 3)
        assert answer.prompt_logprobs is not None
        token_ids = [None if each is None else each.token_id for each in answer.prompt_logprobs]
        assert token_ids == [None, *SHARED[1:]]
        assert [each.token_id for each in answer.logprobs or ()] == list(answer.token_ids)


class OnceFull:
    """A stand-in for `Executables`, on a device without room for pages at first."""

    def __init__(self) -> None:
        self.calls: list[Key] = []

    async def ready(self, key: Key) -> Any:
        return None

    def run(self, key: Key, *arguments: Any) -> Any:
        self.calls.append(key)
        if key == SCATTER:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return (), None


@pytest.mark.anyio
async def test_pages_that_the_device_has_no_room_for_leave_it_idle_and_the_next_plan_tells_it() -> None:
    programs = OnceFull()
    stepper = Stepper(cast(Executables, programs), DeviceState([], (), cast(Slots, None)), fake_limits())
    assert await stepper.handle(PutPages((2,), ("content",), 0)) == []
    assert programs.calls == [SCATTER, EMPTY]
    assert await stepper.handle(Plan(1, (), ())) == [Dispatched(1, (), (), None, 1)]
    assert await stepper.handle(StateLost(0)) == [], "a tick that was dispatched before"
    assert await stepper.handle(StateLost(1)) == []
    assert programs.calls == [SCATTER, EMPTY, EMPTY]
