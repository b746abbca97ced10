"""Cached pages get to disk soon, a few at a time, in the order of their prefixes, and failed ones are tried again."""

from itertools import pairwise

import pytest

from rekindle.core.messages import CacheSaved, NewWeights, SaveCache, Written
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.writeback import PAGES_AT_ONCE, TICKS_BETWEEN
from rekindle.testing import ByHand, FakeDiskTier, expected_tokens

PAGE = 16
PROMPT = [place % 7 for place in range(5 * PAGE)]


def engine(disk: FakeDiskTier | None = None, *, num_pages: int = 65, host_pages: int = 64) -> ByHand:
    return ByHand(
        disk,
        page_size=PAGE,
        num_pages=num_pages,
        max_running=2,
        max_context=32 * PAGE,
        host_cache_bytes=host_pages * 128,
    )


def test_what_is_cached_is_written_when_nothing_else_is_to_be_done() -> None:
    one = engine()
    one.admit(0, PROMPT, max_tokens=PAGE)
    while one.in_flight:
        assert not one.writing
        one.settle()
    one.drain()
    assert one.scheduler.stats.disk_pages == len(one.disk_tier.contents) == 5


def test_a_new_process_computes_only_what_was_not_written() -> None:
    first = engine()
    first.admit(0, PROMPT, max_tokens=4)
    first.drain()
    second = engine(first.disk_tier)
    second.admit(0, [*PROMPT, 3, 1], max_tokens=4)
    second.drain()
    stats = second.scheduler.stats
    assert (stats.disk_hit_tokens, stats.host_hit_tokens, stats.device_hit_tokens) == (5 * PAGE, 0, 0)
    assert stats.computed_tokens == 2
    assert tuple(second.tokens[0]) == expected_tokens([*PROMPT, 3, 1], 4)


def test_while_requests_run_a_batch_is_written_now_and_then() -> None:
    busy = engine()
    for request_id in range(40):
        busy.admit(request_id, [request_id // 7, request_id % 7, *PROMPT[:PAGE]], max_tokens=16)
    batches = []
    while busy.in_flight:
        busy.settle()
        while busy.offloading:
            busy.settle_offload()
        if busy.writing:
            batches.append(busy.scheduler.stats.ticks)
            busy.settle_write()
    running = [tick for tick in batches if tick < busy.scheduler.stats.ticks]
    assert len(running) >= 3
    assert running[0] == TICKS_BETWEEN
    assert all(later - earlier >= TICKS_BETWEEN for earlier, later in pairwise(running))


def test_no_batch_is_larger_than_the_bound_and_parents_come_first() -> None:
    one = engine()
    one.admit(0, [place % 5 for place in range(31 * PAGE)], max_tokens=1)
    sizes: list[int] = []
    digests: set[str] = set()
    while one.in_flight or one.offloading or one.writing:
        for write in one.writing:
            sizes.append(len(write.pages))
            for page in write.pages:
                assert page.parent in digests or len(digests) == 0
                digests.add(page.digest)
        one._settle_all()
    assert max(sizes) <= PAGES_AT_ONCE
    assert one.scheduler.stats.disk_pages == 31


def test_a_failed_write_is_tried_again_after_some_ticks_and_not_before() -> None:
    one = engine()
    one.admit(0, PROMPT, max_tokens=1)
    while not one.writing:
        one._settle_all()
    one.settle_write(ok=False)
    assert not one.writing
    assert not one.offloading
    failed = one.scheduler.stats.ticks
    one.admit(1, PROMPT[::-1], max_tokens=2 * TICKS_BETWEEN)
    while not one.offloading:
        one.settle()
    assert one.scheduler.stats.ticks == failed + TICKS_BETWEEN
    one.drain()
    assert one.scheduler.stats.disk_pages == one.scheduler.stats.cached_pages


def test_a_caller_is_told_when_all_is_on_disk() -> None:
    one = engine()
    one.say(SaveCache(1))
    assert one.cache_saved == [CacheSaved(1, 0, True)]
    one.admit(0, PROMPT, max_tokens=200)
    for _ in range(6):
        one.settle()
    one.say(SaveCache(2))
    assert len(one.cache_saved) == 1, "not before the pages are there"
    while one.offloading or one.writing:
        one._settle_all()
    assert one.cache_saved[-1] == CacheSaved(2, 5, True)
    one.drain()
    one.say(SaveCache(3))
    assert one.cache_saved[-1] == CacheSaved(3, 0, True), "nothing is written twice"


@pytest.mark.parametrize("ok", [True, False])
def test_a_caller_is_told_of_a_failure(ok: bool) -> None:
    one = engine()
    one.admit(0, PROMPT, max_tokens=1)
    one.say(SaveCache(1))
    while not one.writing:
        one._settle_all()
    one.settle_write(ok=ok)
    one.drain()
    assert one.cache_saved == [CacheSaved(1, 5 if ok else 0, ok)]


def test_records_that_the_store_lets_go_are_forgotten_and_written_again() -> None:
    one = engine()
    one.admit(0, PROMPT, max_tokens=1)
    while not one.writing:
        one._settle_all()
    one.settle_write()
    one.admit(1, PROMPT[::-1], max_tokens=1)
    while not one.writing:
        one._settle_all()
    one.settle_write(pruned=[0, 1])
    one.drain()
    assert one.scheduler.stats.disk_pages == 8, "or pages would push each other out for ever"
    one.admit(2, [*PROMPT, 1], max_tokens=1)
    one.drain()
    assert one.scheduler.stats.disk_pages == 10, "a request found them"
    assert engine(one.disk_tier).scheduler.stats.disk_pages == 10


def test_pages_without_room_on_disk_wait_for_a_hit_and_hold_nobody_up() -> None:
    one = engine()
    one.admit(0, PROMPT, max_tokens=1)
    one.say(SaveCache(1))
    while not one.writing:
        one._settle_all()
    one.writing.popleft()
    one.say(Written((None,) * 5, (), full=True))
    one.drain()
    assert one.cache_saved == [CacheSaved(1, 0, True, crowded_out=5)]
    one.admit(1, PROMPT[::-1], max_tokens=1)
    one.drain()
    assert one.scheduler.stats.disk_pages == 5, "others are written at once, and these are not tried again"
    one.admit(2, [*PROMPT, 1], max_tokens=1)
    one.drain()
    assert one.scheduler.stats.disk_pages == 10, "a request found them"


def test_a_caller_is_told_how_many_of_its_pages_left_the_disk_again() -> None:
    one = engine()
    one.admit(0, PROMPT, max_tokens=1)
    one.admit(1, PROMPT[::-1], max_tokens=1)
    one.admit(2, [place % 5 for place in range(9 * PAGE)], max_tokens=1)
    one.say(SaveCache(1))
    while not one.writing:
        one._settle_all()
    one.settle_write()
    while not one.writing:
        one._settle_all()
    one.settle_write(pruned=[0, 1, 2])
    one.drain()
    (saved,) = one.cache_saved
    assert (saved.complete, saved.crowded_out) == (True, 3)


def test_an_idle_engine_goes_on_after_a_failure_and_tries_again_after_the_next_request() -> None:
    one = engine()
    for number in range(8):
        one.admit(number, [number] * (4 * PAGE), max_tokens=1)
    while not one.writing:
        one._settle_all()
    one.settle_write(ok=False)
    one.drain()
    assert one.scheduler.stats.disk_pages == 32, "the others, and then those that failed"
    one.admit(8, [8] * PAGE, max_tokens=1)
    while not one.writing:
        one._settle_all()
    one.settle_write(ok=False)
    one.drain()
    assert one.scheduler.stats.disk_pages == 32, "nothing else is left to write"
    one.admit(9, [9] * 3, max_tokens=1)
    one.drain()
    assert one.scheduler.stats.disk_pages == 33


def test_pages_of_other_weights_are_not_written() -> None:
    one = engine()
    one.say(NewWeights(1, []))
    one.admit(0, PROMPT, max_tokens=1)
    one.say(SaveCache(2))
    one.drain()
    assert one.disk_tier.contents == {}
    assert one.cache_saved == [CacheSaved(2, 0, False)]


@pytest.mark.parametrize("host_pages", [1, 2, PAGES_AT_ONCE - 1])
def test_all_is_written_through_a_host_tier_that_has_room_for_a_part(host_pages: int) -> None:
    one = engine(host_pages=host_pages)
    one.admit(0, PROMPT, max_tokens=1)
    one.say(SaveCache(1))
    one.drain()
    assert one.cache_saved == [CacheSaved(1, 5, True)]
    one.scheduler.check()


def test_the_store_is_told_which_prefixes_are_in_use() -> None:
    first = engine()
    first.admit(0, PROMPT, max_tokens=4)
    first.drain()
    second = engine(first.disk_tier)
    second.admit(0, [*PROMPT, 3], max_tokens=1)
    second.drain()
    last = max(first.disk_tier.pages)
    assert second.disk_tier.used[last] == 1


@pytest.mark.parametrize(
    ("documents", "pages", "host_pages", "pool"), [(4, 3, 4, 6), (6, 2, 4, 6), (6, 3, 8, 6), (6, 3, 8, 12)]
)
def test_no_page_of_a_batch_makes_room_for_the_copy_of_another(
    documents: int, pages: int, host_pages: int, pool: int
) -> None:
    one = ByHand(
        page_size=PAGE,
        num_pages=1 + pool,
        max_running=1,
        overlap=False,
        max_context=pool * PAGE,
        host_cache_bytes=host_pages * 128,
    )
    for number in range(documents):
        one.admit(number, [number] * (pages * PAGE + 1), max_tokens=2)
        while one.in_flight:
            one.settle()
            if one.offloading:
                one.settle_offload()
    nodes = one.scheduler.table.groups[0].cache.tree.ledger.nodes
    one.say(SaveCache(1))
    one.drain()
    assert one.scheduler.stats.disk_pages == nodes, "copies alone would have left the tree"
    assert one.cache_saved[0].complete


@pytest.mark.parametrize("ticks", range(3, 7))
def test_copies_that_make_room_for_those_of_others_are_no_failure_if_some_stay(ticks: int) -> None:
    one = ByHand(
        page_size=PAGE,
        num_pages=9,
        max_running=1,
        overlap=False,
        max_context=8 * PAGE,
        host_cache_bytes=3 * 128,
    )
    for number in range(6):
        one.admit(number, [number] * (3 * PAGE + 1), max_tokens=2)
    for _ in range(ticks):
        one._settle_all()
    one.say(SaveCache(1))
    one.drain()
    assert one.cache_saved[0].complete
    assert len(one.ends) == 6


def test_a_caller_is_told_soon_though_others_take_all_room_in_the_host_tier_all_the_time() -> None:
    one = engine(num_pages=17, host_pages=1)
    for number in range(60):
        one.admit(number, [number] * (2 * PAGE), max_tokens=5)
        if number == 20:
            one.say(SaveCache(1))
        one.settle()
        if number % 4 == 0:
            one._settle_all()
    assert len(one.cache_saved) == 1


def engine_whose_only_copy_is_being_offloaded() -> tuple[ByHand, Node]:
    """Return an engine and the node; a caller waits for its archiving, and another request has its device page."""
    one = ByHand(page_size=PAGE, num_pages=3, max_running=1, overlap=False, max_context=2 * PAGE, host_cache_bytes=128)
    one.admit(0, PROMPT[:PAGE], max_tokens=1)
    one.settle()
    one.say(SaveCache(1))
    (node,) = one.scheduler.table.groups[0].cache.tree.match("", PROMPT[:PAGE])
    one.admit(1, PROMPT[1 : PAGE + 2], max_tokens=1)
    while len(one.offloading) > 1:
        one.settle_offload()
    assert (node.page, node.host is None, node.disk, len(one.writing)) == (None, False, None, 0)
    return one, node


@pytest.mark.parametrize("ok", [True, False])
def test_a_caller_is_told_of_a_copy_that_was_not_kept(ok: bool) -> None:
    one, node = engine_whose_only_copy_is_being_offloaded()
    one.settle_offload(ok=ok)
    one.drain()
    assert node.is_gone != ok
    assert one.cache_saved[0].complete == ok


def test_a_caller_is_told_of_a_failure_to_write_a_page_that_left_the_cache_meanwhile() -> None:
    one, node = engine_whose_only_copy_is_being_offloaded()
    one.settle_offload()
    one.settle()
    one.admit(2, PROMPT[2 : PAGE + 3], max_tokens=1)
    assert node.is_gone
    one.settle_write(ok=False)
    one.drain()
    assert not one.cache_saved[0].complete
