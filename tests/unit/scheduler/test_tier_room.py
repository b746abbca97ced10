"""Tiers use their room for pages without another copy, and nothing is offloaded or staged without end."""

from collections import Counter

import pytest

from rekindle.core.policy import Order, Policy
from rekindle.core.scheduler.cache.outbox import MOST_PAGES
from rekindle.testing import ByHand

PAGE = 16
PAGE_BYTES = 128
"""The bytes of a page of the fake model."""


def document(number: int, pages: int) -> list[int]:
    """Return the tokens of a document; no two begin alike."""
    return [number, *(place % 7 for place in range(pages * PAGE - 1))]


def engine(num_pages: int, host_pages: int, disk_bytes: int = 0, context: int = 32) -> ByHand:
    return ByHand(
        page_size=PAGE,
        num_pages=1 + num_pages,
        max_running=1,
        overlap=False,
        max_context=context * PAGE,
        host_cache_bytes=host_pages * PAGE_BYTES,
        disk_cache_bytes=disk_bytes,
    )


@pytest.mark.parametrize("host_pages", [1, 2, 4, 7, 8, 16])
def test_a_full_pool_with_a_small_host_tier_comes_to_rest(host_pages: int) -> None:
    one = engine(64, host_pages)
    for number in range(8):
        one.admit(number, document(number, 15), max_tokens=1)
        while one.in_flight:
            one.settle()
        offloads = 0
        while one.offloading:
            one.settle_offload()
            offloads += 1
            assert offloads <= 64, "the same pages are offloaded again and again"


def found_of(one: ByHand, prompt: list[int]) -> int:
    """Count the pages of a prompt in any tier by the hits of the next request."""
    before = one.scheduler.stats.computed_tokens
    one.admit(max(one.ends) + 1, [*prompt, 7], max_tokens=1)
    one.drain()
    return (len(prompt) + 1 - (one.scheduler.stats.computed_tokens - before)) // PAGE


@pytest.mark.parametrize("between", [8, 12, 16])
@pytest.mark.parametrize("last", [2, 6, 10, 16])
def test_while_the_host_tier_has_room_what_is_evicted_has_a_copy(between: int, last: int) -> None:
    """Run a conversation of two turns, with other documents between the turns and after."""
    one = engine(16, 64, context=16)
    turn = [*document(1, 6), *((place * 5) % 11 for place in range(6 * PAGE))]
    for number, prompt in enumerate((document(1, 6), document(2, between), turn, document(3, last))):
        one.admit(number, prompt, max_tokens=1)
        one.drain()
    assert found_of(one, turn) == 12


@pytest.mark.parametrize(("host_pages", "expected"), [(4, 3), (8, 7), (12, 9), (16, 9)])
def test_of_a_document_that_the_host_tier_cannot_hold_whole_it_holds_a_part(host_pages: int, expected: int) -> None:
    one = engine(16, host_pages, context=16)
    hits = []
    for turn in range(6):
        before = one.scheduler.stats.host_hit_tokens
        one.admit(turn, [*document(turn % 2, 12), 1], max_tokens=2)
        one.drain()
        hits.append((one.scheduler.stats.host_hit_tokens - before) // PAGE)
    assert max(hits) >= expected


@pytest.mark.parametrize("disk_bytes", [0, 1 << 20])
def test_the_device_and_the_host_tier_together_hold_more_than_either(disk_bytes: int) -> None:
    """Ask about five documents of 16 pages in turn, with room for four on the device and for four in the host tier."""
    one = engine(64, 64, disk_bytes)
    for turn in range(25):
        one.admit(turn, [*document(turn % 5, 15), 1], max_tokens=2)
        one.drain()
    stats = one.scheduler.stats
    assert stats.disk_hit_tokens == 0
    assert stats.computed_tokens <= 5 * 16 * PAGE + 20 * PAGE, "after the first round each is found"


def test_what_waits_for_room_is_not_staged_beside_the_pool_without_bound() -> None:
    first = engine(400, 1000, 1 << 20, context=64)
    for number in range(40):
        first.admit(number, document(number, 8), max_tokens=1)
        first.drain()
    second = ByHand(
        first.disk_tier,
        page_size=PAGE,
        num_pages=17,
        max_running=1,
        max_context=16 * PAGE,
        host_cache_bytes=8 * PAGE_BYTES,
    )
    for number in range(40):
        second.admit(number, [*document(number, 8), 1], max_tokens=8)
    while second.fetching:
        second.settle_fetch()
    staged = [
        state.queued.fetching.nodes for state in second.scheduler.table.waiting if state.queued.fetching is not None
    ]
    assert sum(map(len, staged)) <= 8, "what one request needs, or a quarter of the pool"
    second.drain()
    assert len(second.ends) == 40


def test_a_page_that_comes_back_to_the_device_leaves_the_host_tier() -> None:
    one = engine(16, 64)
    for number in range(2):
        one.admit(number, document(number, 12), max_tokens=1)
        one.drain()
    assert found_of(one, document(0, 12)) == 12
    assert one.scheduler.table.groups[0].cache.tree.ledger.in_both <= 16 // 8, (
        "those alone that are offloaded ahead of their eviction"
    )


def engine_with_documents_on_disk(pages: list[int], num_pages: int, policy: Policy) -> ByHand:
    """Make an engine with document n of `pages[n]` pages on disk alone."""
    first = engine(60, 64, 1 << 20)
    for number, length in enumerate(pages):
        first.admit(number, document(number, length), max_tokens=1)
        first.drain()
    return ByHand(
        first.disk_tier,
        page_size=PAGE,
        num_pages=1 + num_pages,
        max_running=1,
        overlap=False,
        policy=policy,
        host_cache_bytes=64 * PAGE_BYTES,
        max_context=12 * PAGE,
    )


def fetched_by(one: ByHand) -> list[int]:
    """Settle all fetches; return their requests."""
    fetched = []
    while one.fetching:
        fetched.append(one.fetching[0][0].request_id)
        one.settle_fetch()
    return fetched


def in_order_of(*request_ids: int) -> Order:
    """Make a policy with the given requests first and last, and all others between."""
    first, *last = request_ids
    return lambda candidate: {first: -1, **dict(zip(last, range(1, 9), strict=False))}.get(candidate.request.id, 0)


def test_who_comes_first_is_not_kept_from_being_staged_by_one_whom_all_others_pass() -> None:
    one = engine_with_documents_on_disk([3, 6], num_pages=12, policy=in_order_of(1, 0))
    for number, length in enumerate((3, 6)):
        one.admit(number, [*document(number, length), 4], max_tokens=2)
    for number in range(10, 30):
        one.admit(number, [number] * 5, max_tokens=4)
    fetched = []
    while 1 not in one.ends:
        fetched += fetched_by(one)
        one.settle()
    assert fetched == [0, 1]
    assert len(one.ends) < 5


def test_no_more_is_given_up_than_the_first_needs_and_what_comes_last_goes_first() -> None:
    one = engine_with_documents_on_disk([3, 1, 3], num_pages=16, policy=in_order_of(0, 1, 2))
    one.admit(1, [*document(1, 1), 4], max_tokens=1)
    one.admit(2, [*document(2, 3), 4], max_tokens=1)
    one.admit(10, [10] * 5, max_tokens=2)
    fetched = fetched_by(one)
    one.admit(0, [*document(0, 3), 4], max_tokens=1)
    while one.in_flight or one.fetching:
        fetched += fetched_by(one)
        one.settle()
    assert fetched == [1, 2, 0, 2]


@pytest.mark.parametrize("policy", ["fcfs", "longest-prefix", lambda candidate: len(candidate.request.prompt)])
@pytest.mark.parametrize("reverse", [False, True])
def test_those_who_wait_do_not_take_the_room_from_each_other_in_turns(policy: Policy, reverse: bool) -> None:
    pages = [3, 1, 6, 2, 5, 4, 1, 6]
    one = engine_with_documents_on_disk(pages, num_pages=16, policy=policy)
    for number in sorted(range(8), reverse=reverse):
        one.admit(number, [*document(number, pages[number]), 4], max_tokens=5)
    fetched = []
    while one.in_flight or one.fetching:
        fetched += fetched_by(one)
        one._settle_all()
    assert max(Counter(fetched).values()) <= 2
    assert len(one.ends) == 8


def test_rows_that_need_their_next_page_in_one_tick_have_the_evicted_pages_copied_together() -> None:
    rows = 40
    one = ByHand(
        page_size=PAGE,
        num_pages=1 + 3 * rows,
        max_running=rows,
        overlap=False,
        max_context=4 * PAGE,
        host_cache_bytes=1024 * PAGE_BYTES,
    )
    for number in range(2 * rows):  # the pool is full of what requests left in the cache
        one.admit(number, document(number, 2), max_tokens=1)
    one.drain()
    for number in range(2 * rows, 3 * rows):
        one.admit(number, document(number, 1)[:-1], max_tokens=2 * PAGE)
    most, batches = 0, 0
    while one.in_flight:
        copied = [len(gathered.entries) for gathered in one.offloading]
        most, batches = max((most, batches), (sum(copied), len(copied)))
        while one.offloading:
            one.settle_offload()
        one.settle()
    assert most >= 30
    assert batches <= -(-most // MOST_PAGES)
