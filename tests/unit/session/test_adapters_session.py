"""Names, places and uses of adapters, on a device with an assertion of the adapter of each row."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import rekindle
from rekindle.core.request.request import AdapterUse, namespace_of
from rekindle.session.session import Session
from rekindle.settings.engine import SettingsOptions
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.waiting import until

pytestmark = pytest.mark.anyio
SMALL: SettingsOptions = {"page_size": 16, "num_pages": 40, "max_running": 3, "max_adapters": 2}
WAYS: list[SettingsOptions] = [{}, {"replicas": 2}, {"prefill": "cpu:0", "decode": "cpu:0", "prefill_from": 16}]
SHARED = list(range(48))
Q = "model.layers.0.self_attn.q_proj"


def arguments(number: int) -> dict[str, Any]:
    """Return the arguments for an adapter with a digest of its own."""
    array = np.full((1, 1), number, np.float32)
    return {"tensors": {f"{Q}.lora_{side}.weight": array for side in "AB"}, "config": {"r": 1, "lora_alpha": 1}}


@pytest.fixture(params=WAYS, ids=["one", "lanes", "apart"])
async def session(request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    async with fake_session(**SMALL | request.param) as session:
        yield session


async def test_adapters_come_and_go_while_requests_run(session: Session) -> None:
    """Ask from four tasks, some of whose requests are cancelled, while adapters are replaced and removed."""
    chance, done = random.Random(5), False

    async def ask() -> None:
        while not done:
            name = chance.choice([None, "a", "b"])
            prompt, most = [*SHARED[: chance.choice([5, 32, 48])], chance.randrange(9)], chance.randrange(1, 20)
            try:
                handle = await session.enqueue(token_ids=prompt, max_tokens=most, adapter=name)
            except rekindle.InvalidRequest:
                assert name not in session.adapters
                continue
            if chance.random() < 0.2:
                handle.cancel()
                continue
            assert (await handle).token_ids == expected_tokens(prompt, most)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(ask)
        for _ in range(30):
            name = chance.choice("ab")
            if name in session.adapters and chance.random() < 0.3:
                await session.remove_adapter(name)
            else:
                await session.add_adapter(name, **arguments(chance.randrange(3)))
            await anyio.lowlevel.checkpoint()
        done = True
    await until(lambda: not any(info.requests for info in session.adapters.values()), "no request uses one")


async def test_an_adapter_waits_for_a_place_until_one_is_out_of_use() -> None:
    """Check two names with room, and one more adapter as long as it is in use."""
    settler = FakeSettler(held=True)
    async with fake_session(fake_loaded_engine(fake_limits(**SMALL), settler=settler)) as session:
        handles = []
        for number in range(3):
            await session.add_adapter("a", **arguments(number))
            handles.append(session.submit(token_ids=[number], max_tokens=2, adapter="a"))
        assert session.adapters["a"].requests == 1
        added = anyio.Event()

        async def add() -> None:
            await session.add_adapter("b", **arguments(7))
            added.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(add)
            await anyio.sleep(0.05)
            assert not added.is_set()
            assert list(session.adapters) == ["a"]
            with anyio.move_on_after(0.05):
                await session.add_adapter("a", **arguments(8))  # leaves the wait
            settler.release()
            assert [len((await handle).token_ids) for handle in handles] == [2, 2, 2]
        assert added.is_set()
        assert list(session.adapters) == ["a", "b"]
        with pytest.raises(rekindle.InvalidRequest, match="has 2 adapters, as many as it has room for"):
            await session.add_adapter("c", **arguments(9))
        await session.add_adapter("b", **arguments(9))


async def test_a_request_that_finds_no_room_in_the_queue_uses_no_adapter() -> None:
    settler = FakeSettler(held=True)
    loaded_engine = fake_loaded_engine(fake_limits(**SMALL | {"max_running": 1}), settler=settler)
    loaded_engine = replace(loaded_engine, settings=replace(loaded_engine.settings, max_waiting=1))
    async with fake_session(loaded_engine, max_waiting=1) as session:
        await session.add_adapter("a", **arguments(1))
        handles = [session.submit(token_ids=[1], max_tokens=2, adapter="a")]
        await until(lambda: session.stats.scheduler.running == 1, "it runs")
        handles.append(session.submit(token_ids=[2], max_tokens=2, adapter="a"))
        with pytest.raises(rekindle.QueueFull):
            session.submit(token_ids=[3], adapter="a")
        assert session.adapters["a"].requests == 2
        settler.release()
        for handle in handles:
            await handle
        await until(lambda: session.adapters["a"].requests == 0, "the refused request does not use it")


async def test_a_closed_session_takes_no_adapter(session: Session) -> None:
    await session.add_adapter("a", **arguments(1))
    await session.close()
    with pytest.raises(rekindle.SessionClosed):
        await session.add_adapter("b", **arguments(2))
    with pytest.raises(rekindle.SessionClosed):
        session.submit(token_ids=[1], adapter="a")


async def test_adapters_need_programs_and_ticks_of_one_shape_have_none() -> None:
    async with fake_session(**SMALL | {"deterministic": True}) as session:
        with pytest.raises(rekindle.InvalidRequest, match="deterministic=True computes all rows by one program"):
            await session.add_adapter("a", **arguments(1))
    loaded_engine = fake_loaded_engine(fake_limits(**SMALL))
    most = loaded_engine.limits.program_count(adapters=True) - 1
    few = replace(loaded_engine, settings=replace(loaded_engine.settings, max_executables=most))
    async with fake_session(few) as session:
        with pytest.raises(rekindle.InvalidRequest, match=rf"need {most + 1} programs, and max_executables keeps"):
            await session.add_adapter("a", **arguments(1))


def test_no_salt_has_the_namespace_of_an_adapter() -> None:
    salts = ["", "\0", "\0\0", "a", "a\0", "\0adapter one", "\0\0adapter one", "a\0adapter one", "a\0\0adapter one"]
    uses = [None, AdapterUse("x", 0, "one"), AdapterUse("x", 0, "two")]
    assert len({namespace_of(salt, use) for salt in salts for use in uses}) == len(salts) * len(uses)
    assert namespace_of("a", AdapterUse("x", 0, "one")) == namespace_of("a", AdapterUse("y", 3, "one"))
    assert namespace_of("a", None) == "a"
