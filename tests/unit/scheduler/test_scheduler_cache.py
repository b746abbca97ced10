"""Requests with common prefixes compute each page once, wait for each other, and start in the order of the policy."""

import sys

import pytest

from rekindle.core.errors import PromptTooLong
from rekindle.core.messages import NewWeights, Offloaded, Plan, Withdraw
from rekindle.core.page import NULL_PAGE
from rekindle.core.policy import Ticks
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.requests import waiting
from rekindle.core.scheduler.requests.waiting import CONSIDERED
from rekindle.settings.engine import SettingsOptions
from rekindle.testing import ByHand, expected_tokens

SHARED = list(range(48))
OTHER = list(range(100, 148))
PAGE_BYTES = 128
"""The bytes of a page of 16 tokens of the fake model."""


def chunks_of(plan: Plan) -> list[tuple[int, int, int]]:
    return [(chunk.request_id, chunk.start, len(chunk.tokens)) for chunk in plan.chunks]


def engine_of_small_chunks(chunk: int = 16) -> ByHand:
    """Make an engine with a request in decode: it plans nothing for later ones before a tick settles.

    A tick of prompts follows each settled tick as long as there are prompts.
    """
    ticks: Ticks = "prefill-first"
    engine = ByHand(page_size=16, prefill_chunk=chunk, max_prefill_tokens=64, overlap=False, max_running=8, ticks=ticks)
    engine.admit(99, [1], max_tokens=200)
    return engine


# Who waits for whom


def test_one_of_three_computes_the_prefix_that_they_share_and_one_of_another_prefix_goes_on_meanwhile() -> None:
    engine = engine_of_small_chunks()
    for request_id in range(3):
        engine.admit(request_id, [*SHARED, 200 + request_id])
    engine.admit(3, [*OTHER, 200])
    ticks = [chunks_of(engine.settle()[0]) for _ in range(4)]
    assert ticks == [
        [(0, 0, 16), (3, 0, 16)],
        [(0, 16, 16), (3, 16, 16)],
        [(0, 32, 16), (3, 32, 16)],
        [(0, 48, 1), (3, 48, 1), (1, 48, 1), (2, 48, 1)],
    ]
    engine.drain()
    for request_id in range(3):
        assert engine.tokens[request_id] == list(expected_tokens([*SHARED, 200 + request_id], 4))
    stats = engine.scheduler.stats
    assert (stats.computed_tokens, stats.device_hit_tokens) == (1 + 2 * 49 + 2, 2 * 48)


@pytest.mark.parametrize(("chunk", "length"), [(16, 40), (16, 64), (32, 48), (32, 65), (64, 60), (64, 90)])
def test_of_many_that_are_the_same_only_the_last_page_is_computed_by_each(chunk: int, length: int) -> None:
    """Hold also where the computing request is in its last chunk, and the tick has room for more."""
    engine = engine_of_small_chunks(chunk)
    prompt = [*SHARED, *OTHER][:length]
    for request_id in range(6):
        engine.admit(request_id, prompt)
    engine.drain()
    cached = (length - 1) // 16 * 16
    assert engine.scheduler.stats.computed_tokens == 1 + length + 5 * (length - cached)
    assert all(engine.tokens[request_id] == list(expected_tokens(prompt, 4)) for request_id in range(6))


def test_when_the_one_that_computes_is_withdrawn_the_next_goes_on_where_it_was() -> None:
    engine = engine_of_small_chunks()
    for request_id in range(3):
        engine.admit(request_id, [*SHARED, 200 + request_id])
    assert chunks_of(engine.settle()[0]) == [(0, 0, 16)]
    engine.say(Withdraw(0))
    assert chunks_of(engine.settle()[0]) == [(1, 16, 16)]
    engine.drain()
    assert engine.tokens[2] == list(expected_tokens([*SHARED, 202], 4))


def test_nobody_waits_for_tokens_of_another_namespace() -> None:
    engine = engine_of_small_chunks()
    for request_id, namespace in enumerate(("", "a", "b")):
        engine.admit(request_id, SHARED, namespace=namespace)
    assert chunks_of(engine.settle()[0]) == [(0, 0, 16), (1, 0, 16), (2, 0, 16)]
    engine.drain()
    assert engine.scheduler.stats.device_hit_tokens == 0


def test_a_prompt_that_is_cached_whole_computes_its_last_token() -> None:
    engine = ByHand(page_size=16)
    for request_id in range(2):
        engine.admit(request_id, SHARED)
        engine.drain()
    stats = engine.scheduler.stats
    assert (stats.device_hit_tokens, stats.computed_tokens) == (32, 48 + 16), "whole pages are found"
    assert engine.tokens[1] == engine.tokens[0] == list(expected_tokens(SHARED, 4))


def test_what_a_request_generated_is_found_by_the_next_turn() -> None:
    engine = ByHand(page_size=16)
    engine.admit(0, SHARED, max_tokens=20)
    engine.drain()
    turn = [*SHARED, *engine.tokens[0], 7]
    engine.admit(1, turn)
    engine.drain()
    assert engine.scheduler.stats.device_hit_tokens == 64, "48 tokens of the prompt and 16 of the 20 that followed"
    assert engine.tokens[1] == list(expected_tokens(turn, 4))


# Who goes first


def order_of(policy: str) -> list[int]:
    """Return the order of starts of three requests in the queue for one slot, with 0, 16 and 32 tokens in the cache."""
    engine = ByHand(page_size=16, max_running=1, overlap=False, policy="fcfs" if policy == "fcfs" else "longest-prefix")
    engine.admit(0, SHARED, max_tokens=1)
    engine.drain()
    engine.admit(1, [99], max_tokens=3)
    for request_id, prompt in enumerate((OTHER, [*SHARED[:16], *OTHER], [*SHARED[:32], *OTHER]), 2):
        engine.admit(request_id, prompt)
    engine.drain()
    return engine.started[2:]


def test_longest_prefix_starts_first_who_has_most_in_the_cache_and_fcfs_who_came_first() -> None:
    assert order_of("fcfs") == [2, 3, 4]
    assert order_of("longest-prefix") == [4, 3, 2]


def test_longest_prefix_starts_those_of_equal_prefixes_as_they_came() -> None:
    engine = ByHand(page_size=16, max_running=1, overlap=False, policy="longest-prefix")
    for request_id in range(4):
        engine.admit(request_id, [request_id + 1] * 20)
    engine.drain()
    assert engine.started == [0, 1, 2, 3]


# Who stays


def test_the_least_recently_used_pages_are_evicted_and_the_hottest_survive() -> None:
    """Check this because another engine dropped its hottest prefixes first."""
    engine = ByHand(page_size=16, num_pages=13, max_running=1, host_cache_bytes=0)
    for request_id in range(40):
        engine.admit(2 * request_id, SHARED)  # the hot prompt is the oldest, with the lowest page ids and request id
        engine.admit(2 * request_id + 1, [request_id, *OTHER[:31]])
        engine.drain()
    hot, cold = 39 * 32, 40 * 32
    stats = engine.scheduler.stats
    assert (stats.device_hit_tokens, stats.computed_tokens) == (hot, 40 * 48 - hot + cold)


# The host tier


def engine_with_a_prefix_in_the_host_tier_alone() -> ByHand:
    """Make an idle engine with SHARED computed, offloaded, and then evicted by requests in need of its pages."""
    engine = ByHand(
        page_size=16, num_pages=7, max_running=2, overlap=False, host_cache_bytes=8 * PAGE_BYTES, disk_cache_bytes=0
    )
    engine.admit(0, SHARED, max_tokens=1)
    engine.drain()
    engine.admit(1, OTHER, max_tokens=40)
    engine.drain()
    assert all(node.page is None for node in engine.scheduler.table.groups[0].cache.tree.match("", SHARED))
    assert len(engine.scheduler.table.groups[0].cache.tree.match("", SHARED)) == 3
    return engine


def test_one_that_waits_for_the_host_tier_holds_nobody_up_and_computes_only_the_rest() -> None:
    engine = engine_with_a_prefix_in_the_host_tier_alone()
    assert engine.admit(2, [*SHARED, 7]) == []
    (plan,) = engine.admit(3, [5, 6])
    assert chunks_of(plan) == [(3, 0, 2)]
    engine.settle_fetch()
    (plan,) = engine.settle()
    assert [row.request_id for row in plan.rows] == [3], "prompts and rows take turns"
    (plan,) = engine.settle()
    assert (chunks_of(plan), len(plan.onloads)) == ([(2, 48, 1)], 1)
    engine.drain()
    assert engine.tokens[2] == list(expected_tokens([*SHARED, 7], 4))
    assert engine.scheduler.stats.host_hit_tokens == 48


def test_of_several_that_want_the_same_copies_one_fetches_and_the_others_find_them_on_the_device() -> None:
    engine = engine_with_a_prefix_in_the_host_tier_alone()
    for request_id in (2, 3):
        engine.admit(request_id, [*SHARED, request_id])
    assert [fetch.request_id for fetch, _ in engine.fetching] == [2]
    engine.drain()
    stats = engine.scheduler.stats
    assert (stats.host_hit_tokens, stats.device_hit_tokens) == (48, 48)
    assert engine.tokens[3] == list(expected_tokens([*SHARED, 3], 4))


@pytest.mark.parametrize(("num_pages", "fetched"), [(16, [0, 1]), (15, [0])])
def test_copies_of_several_may_be_staged_up_to_a_part_of_the_pool(num_pages: int, fetched: list[int]) -> None:
    prompts = [[number] * 33 for number in range(2)]
    earlier = ByHand(page_size=16)
    for number, prompt in enumerate(prompts):
        earlier.admit(number, prompt)
    earlier.drain()
    engine = ByHand(earlier.disk_tier, page_size=16, num_pages=num_pages, max_context=48)
    for number, prompt in enumerate(prompts):
        engine.admit(number, prompt)
    assert [fetch.request_id for fetch, _ in engine.fetching] == fetched
    engine.drain()
    assert engine.scheduler.stats.disk_hit_tokens == 2 * 32


def test_who_shares_the_beginning_of_what_another_fetches_waits_for_it() -> None:
    prompts = [[9] * 16 + [number] * 17 for number in range(2)]
    earlier = ByHand(page_size=16)
    for number, prompt in enumerate(prompts):
        earlier.admit(number, prompt)
    earlier.drain()
    engine = ByHand(earlier.disk_tier, page_size=16, num_pages=64, max_context=48)
    for number, prompt in enumerate(prompts):
        engine.admit(number, prompt)
    assert [fetch.request_id for fetch, _ in engine.fetching] == [0]
    engine.drain()
    stats = engine.scheduler.stats
    assert (stats.disk_hit_tokens, stats.device_hit_tokens) == (32 + 16, 16)


def test_copies_that_cannot_be_read_are_computed_again() -> None:
    engine = engine_with_a_prefix_in_the_host_tier_alone()
    engine.admit(2, [*SHARED, 7])
    before = engine.scheduler.stats.computed_tokens
    engine.settle_fetch(ok=False)
    engine.drain()
    stats = engine.scheduler.stats
    assert (stats.host_hit_tokens, stats.computed_tokens) == (0, before + 49)
    assert engine.tokens[2] == list(expected_tokens([*SHARED, 7], 4))


def engine_with_a_page_that_is_being_offloaded_and_is_on_disk(host_pages: int) -> tuple[ByHand, Node]:
    """Return an engine and the page's node; a running request has evicted the page."""
    engine = ByHand(
        page_size=16,
        num_pages=3,
        max_running=1,
        overlap=False,
        host_cache_bytes=host_pages * PAGE_BYTES,
        max_context=32,
    )
    engine.admit(0, SHARED[:16], max_tokens=1)
    engine.drain()
    (node,) = engine.scheduler.table.groups[0].cache.tree.match("", SHARED[:16])
    engine.admit(1, OTHER[:17], max_tokens=1)
    assert (node.page, node.host is None, node.disk) == (None, False, 0)
    return engine, node


@pytest.mark.parametrize("pruned", [False, True])
def test_a_copy_that_the_host_tier_did_not_keep_leaves_the_one_on_disk(pruned: bool) -> None:
    engine, node = engine_with_a_page_that_is_being_offloaded_and_is_on_disk(host_pages=1)
    if pruned:
        engine.settle()
        engine.admit(2, OTHER[16:33], max_tokens=1)
        assert node.host is None, "the copy made room for another, before it was there"
    engine.settle_offload(ok=False)
    assert (node.host, node.disk) == (None, 0)
    assert engine.scheduler.table.groups[0].cache.tree.match("", SHARED[:16]) == [node]


def test_a_copy_that_the_host_tier_did_not_keep_leaves_a_later_one() -> None:
    engine, node = engine_with_a_page_that_is_being_offloaded_and_is_on_disk(host_pages=1)
    cache = engine.scheduler.table.groups[0].cache
    cache._free(cache.tree.prune(1))
    cache.tree.attach([node], [99])
    cache.offload([node])
    later = node.host
    cache.on_offloaded(Offloaded(engine.offloading[0].offload_id, is_stored=False))
    assert (node.host, cache.is_offloading(node)) == (later, True)


def test_whether_a_copy_is_offloading_is_found_without_a_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ByHand(page_size=16, num_pages=257, host_cache_bytes=64 * PAGE_BYTES, disk_cache_bytes=0)
    engine.admit(0, [place % 7 for place in range(64 * 16 - 1)], max_tokens=1)
    engine.drain()
    cache, compared = engine.scheduler.table.groups[0].cache, []
    nodes = list(cache.tree.walk())
    cache.offload(nodes)

    def equal(one: Node, other: object) -> bool:
        compared.append(one)
        return one is other

    monkeypatch.setattr(Node, "__eq__", equal)
    assert all(map(cache.is_offloading, nodes))
    assert (len(nodes), len(compared)) == (63, 0)


# Held prefixes


def test_a_request_that_cannot_fit_beside_held_prefixes_is_told_so_and_fits_after_their_release() -> None:
    engine = ByHand(page_size=16, num_pages=7)
    engine.admit(0, SHARED, hold=True)
    engine.drain()
    engine.admit(1, [*OTHER, 1])
    engine.drain()
    assert isinstance(engine.rejected[1], PromptTooLong)
    assert "needs 4 pages to start, and prefixes that are held leave 3 of 6; release" in str(engine.rejected[1])
    engine.say(Withdraw(0))
    engine.admit(2, [*OTHER, 1])
    engine.drain()
    assert engine.tokens[2] == list(expected_tokens([*OTHER, 1], 4))


def test_a_request_that_outgrows_its_room_beside_held_prefixes_is_told_so_when_nothing_else_can_give_way() -> None:
    engine = ByHand(page_size=16, num_pages=7)
    engine.admit(0, SHARED, hold=True)
    for request_id in (1, 2):
        engine.admit(request_id, [request_id] * 16, max_tokens=30 if request_id == 1 else 40)
    engine.drain()
    assert engine.tokens[1] == list(expected_tokens([1] * 16, 30))
    assert engine.tokens[2] == list(expected_tokens([2] * 16, 33))
    assert "needs 4 pages to continue after its generated tokens, and" in str(engine.rejected[2])


def test_a_prefix_of_less_than_a_page_is_held_at_once_and_holds_nothing() -> None:
    engine = ByHand(page_size=16)
    engine.admit(0, SHARED[:15], hold=True)
    assert engine.ends == {0: "held"}
    stats = engine.scheduler.stats
    assert (stats.running, stats.ticks, stats.free_pages) == (0, 0, stats.pages)


@pytest.mark.parametrize("pages", [0, 3])
def test_all_are_held_that_need_nothing_computed_however_many_come_at_once(pages: int) -> None:
    engine = ByHand(page_size=16, num_pages=20, max_running=1)
    engine.admit(0, SHARED[: 16 * pages + 1], max_tokens=3)
    for request_id in range(1, CONSIDERED + 5):
        engine.admit(request_id, SHARED[: 16 * pages + 1], hold=True)
    engine.drain()
    assert set(engine.ends.values()) == {"length", "held"}
    assert len(engine.ends) == CONSIDERED + 5


def test_of_a_prompt_that_is_cached_whole_the_last_block_is_computed_and_nothing_is_written() -> None:
    engine = ByHand(page_size=64, num_pages=9, max_running=2, max_context=256)
    prompt = [place % 7 for place in range(128)]
    engine.admit(0, prompt, max_tokens=3)
    engine.drain()
    plan, *_ = engine.admit(1, prompt, max_tokens=3)
    (chunk,) = plan.chunks
    assert (chunk.start, len(chunk.tokens), chunk.pages) == (112, 16, (NULL_PAGE,))
    engine.drain()
    stats = engine.scheduler.stats
    assert (stats.device_hit_tokens, stats.computed_tokens) == (112, 128 + 16)
    assert engine.tokens[0] == engine.tokens[1]


# The facts about the cache


@pytest.mark.parametrize(("page", "device", "host"), [(16, 32, 0), (64, 128, 48)])
def test_the_block_that_is_computed_again_is_of_the_tier_of_the_last_page(page: int, device: int, host: int) -> None:
    engine = ByHand(
        page_size=page,
        num_pages=7,
        max_running=1,
        overlap=False,
        host_cache_bytes=800 * page,
        disk_cache_bytes=0,
        max_context=6 * page,
    )
    prompt = [place % 5 for place in range(3 * page)]
    for request_id, tokens in enumerate((prompt, [9] * (4 * page), prompt)):
        before = engine.scheduler.stats
        engine.admit(request_id, tokens, max_tokens=1)
        engine.drain()
    stats = engine.scheduler.stats
    assert stats.device_hit_tokens - before.device_hit_tokens == device
    assert stats.host_hit_tokens - before.host_hit_tokens == host
    assert stats.computed_tokens - before.computed_tokens == 16


@pytest.mark.parametrize(("page", "disk"), [(16, 0), (64, 48)])
def test_the_block_that_is_computed_again_is_of_the_disk_if_the_last_page_is(page: int, disk: int) -> None:
    prompt = [place % 7 for place in range(2 * page)]
    first = ByHand(page_size=page)
    first.admit(0, prompt, max_tokens=1)
    first.drain()
    engine = ByHand(
        first.disk_tier, page_size=page, num_pages=5, overlap=False, host_cache_bytes=8 * page, max_context=4 * page
    )
    engine.admit(0, prompt, max_tokens=1)
    engine.drain()
    engine.admit(1, [8] * (4 * page - 1), max_tokens=1)
    engine.settle_offload()
    assert [
        (node.page, node.host is None) for node in engine.scheduler.table.groups[0].cache.tree.match("", prompt)
    ] == [
        (None, False),
        (None, True),
    ], "the host tier has room for one"
    before = engine.scheduler.stats
    engine.admit(2, prompt, max_tokens=1)
    engine.drain()
    stats = engine.scheduler.stats
    assert stats.host_hit_tokens - before.host_hit_tokens == page
    assert stats.disk_hit_tokens - before.disk_hit_tokens == disk
    assert stats.computed_tokens - before.computed_tokens == 16


def test_a_request_that_starts_again_is_no_other_request_that_found_a_prefix() -> None:
    engine = ByHand(page_size=16, num_pages=9, overlap=False, host_cache_bytes=0, max_running=3)
    for request_id in range(3):
        engine.admit(request_id, [request_id] * 32, max_tokens=40)
    engine.drain()
    assert engine.scheduler.stats.preemptions
    assert not [
        node.hits
        for node in engine.scheduler.table.groups[0].cache.tree.walk()
        if node.hits and node.parent is not None
    ]


# Who is turned away


def test_by_longest_prefix_nobody_is_turned_away_who_fits_beside_held_prefixes() -> None:
    engine = ByHand(page_size=16, num_pages=9, max_running=1, overlap=False, policy="longest-prefix", max_context=128)
    for request_id, prompt in ((0, SHARED), (1, OTHER[:32])):
        engine.admit(request_id, prompt, hold=True)
        engine.drain()
    engine.admit(2, [7], max_tokens=3)
    engine.admit(3, [9] * 20, max_tokens=3)
    engine.admit(4, [*SHARED, *range(150, 214)], max_tokens=3)
    engine.drain()
    assert set(engine.rejected) == {4}, "two pages fit, seven do not"
    assert engine.tokens[3] == list(expected_tokens([9] * 20, 3))


def test_who_waits_for_new_weights_is_not_turned_away_for_one_that_outgrew_the_room() -> None:
    engine = ByHand(page_size=16, num_pages=7, max_running=2, overlap=False, max_context=96)
    engine.admit(0, SHARED, hold=True)
    engine.drain()
    engine.admit(1, [1] * 16, max_tokens=60)
    for _ in range(3):
        engine.settle()
    engine.say(NewWeights(1, []))
    for request_id in (2, 3):
        engine.admit(request_id, [request_id] * 16, max_tokens=2)
    engine.drain()
    assert set(engine.rejected) == {1}
    assert engine.weights_used
    assert {request_id: len(engine.tokens[request_id]) for request_id in (2, 3)} == {2: 2, 3: 2}


def test_what_comes_late_of_the_old_weights_is_not_taken_for_what_the_new_ones_computed() -> None:
    first = ByHand(page_size=16)
    first.admit(0, SHARED, max_tokens=1)
    first.drain()
    engine = ByHand(first.disk_tier, page_size=16, num_pages=6, max_running=2, overlap=False, max_context=80)
    engine.admit(9, [9], max_tokens=6)
    engine.admit(0, [*SHARED, 200], max_tokens=2)
    engine.settle()
    engine.settle()
    assert [fetch.request_id for fetch, _ in engine.fetching] == [0]
    engine.say(NewWeights(1, []))
    for request_id, prompt in ((1, [*SHARED, 201]), (2, [*OTHER, 202])):  # evicted before the fetch comes
        engine.admit(request_id, prompt, max_tokens=2)
    while engine.in_flight or engine.offloading:
        engine.settle() if engine.in_flight else engine.settle_offload()
    assert engine.weights_used == [1]
    assert engine.scheduler.stats.host_pages
    engine.drain()
    assert engine.tokens[0] == list(expected_tokens([*SHARED, 200], 2))
    assert engine.scheduler.stats.host_hit_tokens == 32


def test_however_many_are_turned_away_by_one_message_each_is_told() -> None:
    """Turn more away than Python would let functions call each other."""
    engine = ByHand(page_size=16, num_pages=7, overlap=False, max_waiting=sys.getrecursionlimit() + 10)
    engine.admit(0, SHARED, hold=True)
    engine.drain()
    engine.admit(1, [1], max_tokens=2)
    last = sys.getrecursionlimit() + 2
    for request_id in range(2, last + 1):
        engine.admit(request_id, [request_id] * 49)
    engine.drain()
    assert list(engine.rejected) == list(range(2, last + 1))


def test_one_that_lost_its_pages_goes_on_before_new_weights_however_many_are_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "CONSIDERED", 4)
    first = ByHand(page_size=16)
    documents = [[place, *SHARED[:15]] for place in range(5)]
    for request_id, document in enumerate(documents):
        first.admit(request_id, document, max_tokens=1)
    first.drain()
    sizes: SettingsOptions = {"page_size": 16, "num_pages": 41, "max_running": 3, "max_context": 640}
    ways: SettingsOptions = {**sizes, "overlap": False, "ticks": "prefill-first"}
    engine = ByHand(first.disk_tier, **ways)
    for request_id in (5, 6):
        engine.admit(request_id, [request_id] * 256, max_tokens=100)
    while not engine.scheduler.stats.preemptions:
        engine.settle()
    for request_id, document in enumerate(documents):
        engine.admit(request_id, [*document, 3], max_tokens=1)
    for _ in range(3):
        engine.settle()
    while engine.fetching:  # staged pages go before it
        engine.settle_fetch()
    assert [state.started for state in engine.scheduler.table.waiting] == [False] * 5 + [True]
    engine.say(NewWeights(1, []))
    engine.drain()
    assert len(engine.ends) == 7
    assert engine.weights_used == [1]


# The same tokens whatever else runs


def test_a_deterministic_engine_caches_what_prompts_computed_and_nothing_that_was_decoded() -> None:
    answers = {}
    for deterministic in (False, True):
        engine = ByHand(page_size=16, num_pages=12, deterministic=deterministic)
        engine.admit(0, SHARED[:32], max_tokens=40)
        engine.drain()
        answers[deterministic] = engine.scheduler.table.groups[0].cache.tree.ledger.device_pages
    assert answers == {False: 4, True: 2}


def test_a_deterministic_engine_starts_a_request_when_there_are_pages_for_all_of_it() -> None:
    engine = ByHand(page_size=16, num_pages=7, deterministic=True)
    for request_id in (1, 2):
        engine.admit(request_id, [request_id] * 16, max_tokens=40)
    assert engine.scheduler.stats.running == 1
    engine.drain()
    assert engine.scheduler.stats.preemptions == 0
    assert engine.tokens[2] == list(expected_tokens([2] * 16, 40))
