"""The cached tokens of a result, tier by tier, are the growth of the counters of the scheduler."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.core.errors import StorageError
from rekindle.core.request.figures import CachedTokens
from rekindle.core.scheduler.stats import SchedulerStats
from rekindle.session.session import Session
from rekindle.testing import (
    CheckedScheduler,
    FakeDiskTier,
    FakeHostTier,
    expected_tokens,
    fake_limits,
    fake_loaded_engine,
    fake_session,
)
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

PAGE = 16
DOCUMENT = [place % 11 for place in range(6 * PAGE)]
SMALL: dict[str, Any] = {"page_size": PAGE, "num_pages": 10, "max_running": 1, "restore": "off"}
"""Settings with a pool for one long prompt."""


def hits(stats: SchedulerStats) -> CachedTokens:
    """Return the tokens found in the cache until now, by tier."""
    return CachedTokens(stats.device_hit_tokens, stats.host_hit_tokens, stats.disk_hit_tokens)


def new_hits(session: Session, before: CachedTokens) -> CachedTokens:
    now = hits(session.stats.scheduler)
    return CachedTokens(now.device - before.device, now.host - before.host, now.disk - before.disk)


async def cached_of(session: Session, token_ids: list[int]) -> CachedTokens:
    """Return the cached tokens of one request, after a comparison with the counters."""
    before = hits(session.stats.scheduler)
    generation = await session.generate(token_ids=token_ids, max_tokens=3)
    assert generation.token_ids == expected_tokens(token_ids, 3)
    assert generation.cached == new_hits(session, before)
    assert generation.cached_tokens == generation.cached.total <= generation.usage.prompt_tokens
    return generation.cached


@pytest.fixture
def small() -> Iterator[Session]:
    with fake_session(**SMALL) as session:
        yield session


def session_on(disk: FakeDiskTier, **options: Any) -> Session:
    """Open a session with a disk tier, which has the pages of earlier sessions."""
    limits = fake_limits(**options)
    loaded_engine = fake_loaded_engine(limits)
    actors = replace(
        loaded_engine.lanes[0].actors, disk_tier=disk, host_tier=FakeHostTier(limits.pool.host_pages, disk)
    )
    assert isinstance(actors.scheduler, CheckedScheduler)
    actors.scheduler.restore(disk.stored())
    return fake_session(loaded_engine.composed(lambda _: actors))


async def test_what_nobody_asked_before_is_not_cached(small: Session) -> None:
    assert await cached_of(small, DOCUMENT) == CachedTokens()
    assert str(CachedTokens()) == "none"


async def test_what_was_just_computed_is_found_on_the_device(small: Session) -> None:
    await cached_of(small, DOCUMENT)
    assert await cached_of(small, [*DOCUMENT, 1, 2]) == CachedTokens(device=6 * PAGE)
    assert await cached_of(small, DOCUMENT) == CachedTokens(device=5 * PAGE), "the last block is computed again"


async def test_what_the_device_had_no_room_for_is_found_in_host_memory(small: Session) -> None:
    await cached_of(small, DOCUMENT)
    await cached_of(small, DOCUMENT[::-1])
    cached = await cached_of(small, [*DOCUMENT, 1, 2])
    assert cached.host > 0
    assert (cached.total, cached.disk) == (6 * PAGE, 0)


async def test_a_prefix_says_the_same_of_itself(small: Session) -> None:
    await cached_of(small, DOCUMENT)
    await cached_of(small, DOCUMENT[::-1])
    before = hits(small.stats.scheduler)
    async with small.prefix(token_ids=DOCUMENT) as prefix:
        assert prefix.cached == new_hits(small, before)
        assert prefix.cached_tokens == prefix.cached.total == 6 * PAGE
        assert prefix.cached.host > 0
        before = hits(small.stats.scheduler)
        generation = await prefix.generate(token_ids=[1, 2], max_tokens=2)
        assert generation.cached == new_hits(small, before) == CachedTokens(device=6 * PAGE)
    before = hits(small.stats.scheduler)
    with small.prefix_sync(token_ids=DOCUMENT) as again:
        assert again.cached == new_hits(small, before) == CachedTokens(device=6 * PAGE)


async def test_what_an_earlier_session_wrote_is_found_on_disk_once_and_then_on_the_device() -> None:
    disk = FakeDiskTier()
    with session_on(disk, page_size=PAGE) as earlier:
        await cached_of(earlier, DOCUMENT)
        await earlier.save(progress=False)
    with session_on(disk, page_size=PAGE) as later:
        before = hits(later.stats.scheduler)
        async with later.prefix(token_ids=DOCUMENT[: 2 * PAGE]) as prefix:
            assert prefix.cached == new_hits(later, before) == CachedTokens(disk=2 * PAGE)
        assert await cached_of(later, [*DOCUMENT, 1]) == CachedTokens(device=2 * PAGE, disk=4 * PAGE)
        assert await cached_of(later, [*DOCUMENT, 1]) == CachedTokens(device=6 * PAGE)


async def test_prompts_that_ask_for_their_own_log_probabilities_have_nothing_cached(small: Session) -> None:
    await cached_of(small, DOCUMENT)
    generation = await small.generate(token_ids=DOCUMENT, max_tokens=1, prompt_logprobs=0)
    assert generation.cached == CachedTokens()


async def test_what_is_shown_names_the_tiers() -> None:
    assert str(CachedTokens(1024, 0, 16)) == "1,024 on the device, 16 on disk"
    assert str(CachedTokens(host=5)) == "5 in host memory"


ASK = st.tuples(st.sampled_from([0, 1, 2]), st.integers(1, 7 * PAGE), st.sampled_from([1, 3, 20]))
LIVES = st.lists(st.lists(st.lists(ASK, min_size=1, max_size=4), min_size=1, max_size=6), min_size=1, max_size=2)
"""The lives of a disk: in each some batches of requests, each for the beginning of a document."""
CROWDED = st.fixed_dictionaries(
    {
        "page_size": st.just(PAGE),
        "num_pages": st.sampled_from([10, 14, 40]),
        "max_running": st.sampled_from([1, 3]),
        "overlap": st.booleans(),
        "host_cache_bytes": st.sampled_from([2 * 128, 6 * 128, 64 * 128]),
    }
)


def total(cached: list[CachedTokens]) -> CachedTokens:
    """Sum cached tokens tier by tier."""
    return CachedTokens(*(sum(tier) for tier in zip(*map(astuple, cached), strict=True)))


async def lived(lives: list[list[list[tuple[int, int, int]]]], limits: dict[str, Any]) -> CachedTokens:
    """Play all lives of a disk; return the hits by the counters."""
    disk, everything = FakeDiskTier(), []
    for batches in lives:
        with session_on(disk, **limits) as session:
            for batch in batches:
                before, handles = hits(session.stats.scheduler), []
                for document, length, max_tokens in batch:
                    prompt = [(place * (document + 1)) % 13 for place in range(length)]
                    handles.append((prompt, session.submit(token_ids=prompt, max_tokens=max_tokens)))
                got = []
                for prompt, handle in handles:
                    generation = await handle
                    assert generation.token_ids == expected_tokens(prompt, len(generation.token_ids))
                    assert generation.cached.total < len(prompt)
                    got.append(generation.cached)
                assert total(got) == new_hits(session, before)
            with suppress(StorageError):  # a batch that has no room in host memory is not written
                await session.save(progress=False)
            everything.append(hits(session.stats.scheduler))
    return total(everything)


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.wide)])
@settings(max_examples=20)
@given(lives=LIVES, limits=CROWDED)
def test_whatever_is_asked_the_results_add_up_to_the_counters(
    backend: str, lives: list[list[list[tuple[int, int, int]]]], limits: dict[str, Any]
) -> None:
    async def guarded() -> None:
        with anyio.fail_after(PATIENCE):
            await lived(lives, limits)

    anyio.run(guarded, backend=backend)


async def test_these_stories_find_something_in_every_tier() -> None:
    """Check the premise of the test above: it finds tokens in each tier."""
    batches = [[(document, 7 * PAGE, 3)] for document in (0, 1, 0, 0)]
    limits = {"page_size": PAGE, "num_pages": 10, "max_running": 1, "host_cache_bytes": 64 * 128}
    cached = await lived([batches, batches], limits)
    assert min(cached.device, cached.host, cached.disk) > 0
