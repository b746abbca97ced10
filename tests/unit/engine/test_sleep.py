"""A sleeping session has nothing on its device, loses no request, and wakes as it was."""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle.core.messages import NewWeights
from rekindle.formats.weight_file import stamps_of
from rekindle.session.session import Session
from rekindle.settings.engine import SettingsOptions
from rekindle.testing import ByHand, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.waiting import until

pytestmark = pytest.mark.anyio
SHARED = list(range(48))
PROMPTS = [[number, *SHARED] for number in range(6)]
SMALL: SettingsOptions = {"page_size": 16, "num_pages": 40, "max_running": 2}
WAYS: list[SettingsOptions] = [{}, {"replicas": 2}, {"prefill": "cpu:0", "decode": "cpu:0", "prefill_from": 16}]


@pytest.fixture(params=WAYS, ids=["one", "lanes", "apart"])
async def session(request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    async with fake_session(**SMALL | request.param) as session:
        yield session


async def test_requests_wait_while_a_session_sleeps(session: Session) -> None:
    """Submit requests to a device that fails at any plan meanwhile."""
    await session.generate(token_ids=PROMPTS, max_tokens=3)
    await session.sleep()
    assert session.asleep
    assert "asleep" in repr(session)
    assert session.stats.scheduler.cached_pages == 0
    handles = [session.submit(token_ids=prompt, max_tokens=9) for prompt in PROMPTS]
    await until(lambda: session.stats.scheduler.waiting == len(PROMPTS), "all wait")
    assert not any(handle.done for handle in handles)
    await session.wake()
    assert not session.asleep
    answers = [await handle for handle in handles]
    assert [answer.token_ids for answer in answers] == [expected_tokens(prompt, 9) for prompt in PROMPTS]
    assert {answer.weights_version for answer in answers} == {((0, 9),)}, "the weights are the same"


async def test_what_runs_is_kept_over_a_sleep_or_fails(session: Session) -> None:
    handles = [session.submit(token_ids=prompt, max_tokens=200, ignore_eos=True) for prompt in PROMPTS]
    await until(lambda: session.stats.scheduler.generated_tokens > 9, "they run")
    await session.sleep(in_flight="keep")
    tokens = session.stats.scheduler.generated_tokens
    assert not any(handle.done for handle in handles)
    await session.wake({})
    assert session.weights_version == 1
    answers = [await handle for handle in handles]
    assert [answer.token_ids for answer in answers] == [expected_tokens(prompt, 200) for prompt in PROMPTS]
    runs = [run for answer in answers for run in answer.weights_version]
    assert sum(count for version, count in runs if version == 0) == tokens, "each before the sleep"
    failing = session.submit(token_ids=SHARED, max_tokens=200, ignore_eos=True)
    await until(lambda: session.stats.scheduler.running > 0, "it runs")
    await session.sleep(in_flight="fail")
    with pytest.raises(rekindle.WeightsChanged, match="ended by sleep"):
        await failing
    await session.update_weights({}, in_flight="keep")
    assert not session.asleep, "new weights wake it too"
    assert (await session.generate(token_ids=SHARED, max_tokens=4)).token_ids == expected_tokens(SHARED, 4)


async def test_a_session_that_is_awake_has_no_need_to_wake_and_one_asleep_may_sleep_again(session: Session) -> None:
    await session.wake()
    for _ in range(2):
        await session.sleep()
    await session.wake()
    assert (await session.generate(token_ids=SHARED, max_tokens=4)).token_ids == expected_tokens(SHARED, 4)


async def test_weights_that_came_as_arrays_are_to_be_given_again(session: Session) -> None:
    await session.update_weights({})
    await session.sleep()
    with pytest.raises(rekindle.InvalidRequest, match="pass them, wake"):
        await session.wake()
    assert session.asleep
    await session.wake({})
    assert session.weights_version == 2


async def test_a_held_prefix_is_computed_anew_after_a_sleep(session: Session) -> None:
    async with session.prefix(token_ids=SHARED[:32]) as prefix:
        await session.sleep()
        await session.wake()
        assert (await prefix.generate(token_ids=[7], max_tokens=4)).token_ids == expected_tokens([*SHARED[:32], 7], 4)


def test_copies_in_host_memory_are_found_after_a_sleep_with_the_same_weights() -> None:
    engine = ByHand(page_size=16, num_pages=7, max_running=2, host_cache_bytes=8 * 128, disk_cache_bytes=0)
    engine.admit(0, SHARED, max_tokens=1)
    engine.drain()
    engine.admit(1, list(range(100, 148)), max_tokens=40)  # which evicts what came before
    engine.drain()
    for ticket, version, hit_tokens in ((1, 0, 48), (3, 1, 0)):
        before = engine.scheduler.stats.host_hit_tokens
        engine.say(NewWeights(ticket, [], asleep=True))
        assert engine.asleep
        engine.say(NewWeights(ticket + 1, [], version=version))
        engine.admit(ticket + 1, [*SHARED, 7], max_tokens=2)
        engine.drain()
        assert engine.scheduler.stats.host_hit_tokens - before == hit_tokens
        assert engine.tokens[ticket + 1] == list(expected_tokens([*SHARED, 7], 2))


@pytest.fixture
def weights_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"0123456789")
    return path


def sleeper(file: Path) -> Session:
    """Return a session on a model with one weight file."""
    loaded_engine = fake_loaded_engine(fake_limits(page_size=16, num_pages=40, max_running=2))
    checkpoint = replace(loaded_engine.checkpoint, stamps=stamps_of([file]))
    return fake_session(replace(loaded_engine, checkpoint=checkpoint))


def rewrite(file: Path) -> None:
    file.write_bytes(b"0123456780")


def keep_the_time(file: Path) -> None:
    """Write other content in place, with the former modification time."""
    before = file.stat().st_mtime_ns
    other = file.with_name("other")
    other.write_bytes(b"9876543210")
    os.utime(other, ns=(before, before))
    other.replace(file)


def shrink(file: Path) -> None:
    os.truncate(file, 3)


@pytest.mark.parametrize("change", [rewrite, keep_the_time, shrink, Path.unlink])
async def test_changed_files_do_not_wake_as_the_same_weights(weights_file: Path, change: Any) -> None:
    async with sleeper(weights_file) as session:
        await session.sleep()
        change(weights_file)
        with pytest.raises(rekindle.CheckpointError, match=r"changed .*\(model.safetensors\): .*wake\(weights\)"):
            await session.wake()
        assert session.asleep
        before = session.fingerprint
        await session.wake({"w": 1})
        assert (session.weights_version, session.asleep) == (1, False)
        assert session.fingerprint != before


async def test_unchanged_files_wake_as_the_same_weights(weights_file: Path) -> None:
    async with sleeper(weights_file) as session:
        before = session.fingerprint
        await session.sleep()
        await session.wake()
        assert (session.weights_version, session.fingerprint) == (0, before)
