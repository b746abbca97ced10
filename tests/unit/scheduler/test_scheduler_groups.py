"""Groups of devices share one queue: each request is computed where it is ready soonest, and all groups are busy."""

import pytest

from rekindle.core.messages import Plan, Withdraw
from rekindle.testing import ByHand

PAGE = 16
FIRST, SECOND = range(4), range(4, 8)
"""The slots of two groups."""


def groups(host_cache_bytes: int = 0) -> ByHand:
    return ByHand(page_size=PAGE, num_pages=17, max_running=4, data=2, host_cache_bytes=host_cache_bytes)


def decoding(plans: list[Plan]) -> list[set[int]]:
    """Return the requests of each group with a row in a plan."""
    (plan,) = plans
    return [{row.request_id for row in plan.rows if row.slot in slots} for slots in (FIRST, SECOND)]


def test_requests_are_spread_and_run_in_the_same_ticks() -> None:
    engine = groups()
    for request in range(6):
        engine.admit(request, [request] * 20, 8)
    plans = []
    while engine.in_flight:
        plans += engine.settle()
    both = max((decoding([plan]) for plan in plans if plan.rows), key=lambda rows: sum(map(len, rows)))
    assert [len(rows) for rows in both] == [3, 3]
    assert set(engine.ends.values()) == {"length"}


def test_a_request_goes_to_the_group_that_has_its_prefix_cached() -> None:
    engine = groups()
    prefix = [7] * (3 * PAGE)
    engine.admit(0, [1] * 40, 2)
    engine.admit(1, prefix, 2)
    engine.drain()
    holder = next(group for group in engine.scheduler.table.groups if len(group.cache.tree.match("", prefix)) == 3)
    assert holder.number == 1, "the first group was busy with another prompt"
    for request in range(2, 5):
        engine.admit(request, [*prefix, request], 2)
        engine.drain()
    assert engine.scheduler.stats.device_hit_tokens == 3 * len(prefix)


def test_who_waits_for_a_full_group_moves_to_one_that_has_room() -> None:
    engine = groups()
    prefix = [7] * PAGE
    engine.admit(0, prefix, 2)
    engine.drain()
    for request in range(1, 9):
        engine.admit(request, [*prefix, request], 12)
    engine.drain()
    running = [len(group.running) for group in engine.scheduler.table.groups]
    assert running == [0, 0]
    assert len(engine.started) == 9
    stats = engine.scheduler.stats
    assert stats.device_hit_tokens < 8 * PAGE, "some were computed in the group that had not cached it"
    assert stats.preemptions == 0


def test_who_would_wait_for_the_next_tick_moves_to_a_group_that_has_as_much_to_compute_for_it_now() -> None:
    engine = ByHand(
        page_size=PAGE, data=2, max_prefill_tokens=32, overlap=False, ticks="prefill-first", host_cache_bytes=0
    )
    engine.admit(0, [1])  # it keeps the device busy while the others come
    for request, tokens in ((1, 32), (2, 48), (3, 32)):
        engine.admit(request, [request] * tokens)
    first, second = engine.scheduler.table.groups
    assert (first.queued_tokens, second.queued_tokens) == (48, 64)
    engine.say(Withdraw(2))
    (plan,) = engine.settle()
    assert [(chunk.request_id, len(chunk.tokens), chunk.group) for chunk in plan.chunks] == [(1, 32, 1), (3, 32, 0)]


def test_who_waits_for_the_group_that_has_its_prefix_holds_up_nobody_behind_it() -> None:
    engine = ByHand(
        page_size=PAGE, data=2, max_prefill_tokens=32, overlap=False, ticks="prefill-first", host_cache_bytes=0
    )
    engine.admit(0, [1], 99)  # it keeps the first group a little busier than the second
    engine.admit(1, [5] * 48, 1)
    while 1 not in engine.ends:
        engine.settle()
    engine.admit(2, [2] * 32)
    engine.admit(3, [*[5] * 48, 9])
    engine.admit(4, [3] * 16)
    assert [state.group for state in engine.scheduler.table.waiting] == [1, 1, 0]
    (plan,) = engine.settle()
    assert [(chunk.request_id, chunk.group) for chunk in plan.chunks] == [(2, 1), (4, 0)]
    (plan,) = engine.settle()
    assert [(chunk.request_id, chunk.start, chunk.group) for chunk in plan.chunks] == [(3, 48, 1)]


def test_who_has_copies_for_a_busy_group_holds_up_nobody_behind_it() -> None:
    earlier = ByHand(page_size=PAGE)
    earlier.admit(0, [5] * 48)
    earlier.drain()
    engine = ByHand(
        earlier.disk_tier, page_size=PAGE, data=2, max_prefill_tokens=32, overlap=False, ticks="prefill-first"
    )
    engine.admit(0, [*[5] * 48, 9])
    engine.admit(1, [3] * 300)
    engine.admit(2, [2] * 200)
    engine.settle()
    engine.say(Withdraw(1))
    engine.settle_fetch()
    engine.admit(3, [7] * 16)
    assert [(state.request.id, state.group) for state in engine.scheduler.table.waiting] == [(0, 0), (3, 1)]
    (plan,) = engine.settle()
    assert [(chunk.request_id, chunk.group) for chunk in plan.chunks] == [(2, 0), (3, 1)]


@pytest.mark.parametrize("tokens", [12 * PAGE, 15 * PAGE - 8], ids=["with room to spare", "to the last page"])
def test_a_prefix_that_is_held_in_the_way_of_a_request_lets_it_move(tokens: int) -> None:
    engine = groups()
    engine.admit(0, [3] * (12 * PAGE), hold=True)
    engine.drain()
    (holder,) = [group for group in engine.scheduler.table.groups if group.cache.held_nodes]
    engine.admit(1, [*[3] * PAGE, *[4] * tokens], 2)
    engine.drain()
    assert engine.ends == {0: "held", 1: "length"}
    assert holder.cache.held_nodes


def test_copies_of_both_groups_come_back_from_host_and_disk() -> None:
    engine = groups(host_cache_bytes=1 << 20)
    prompts = [[request] * (2 * PAGE) for request in range(40)]
    for _ in range(2):
        for request, prompt in enumerate(prompts, len(engine.ends)):
            engine.admit(request, prompt, 4)
        engine.drain()
    stats = engine.scheduler.stats
    assert all(group.cache.tree.ledger.host_pages for group in engine.scheduler.table.groups)
    assert stats.host_hit_tokens + stats.disk_hit_tokens > 0
    again = ByHand(engine.disk_tier, page_size=PAGE, num_pages=17, max_running=4, data=1)
    again.admit(0, [*prompts[0], 1], 2)
    again.drain()
    assert again.scheduler.stats.disk_hit_tokens == 2 * PAGE, "one group finds what two have written"


def test_pages_on_disk_are_those_that_the_group_knows_of_that_knows_of_most() -> None:
    engine = groups(host_cache_bytes=1 << 20)
    engine.admit(0, [1] * (3 * PAGE))
    engine.drain()
    assert sorted(group.cache.tree.records.pages for group in engine.scheduler.table.groups) == [0, 3]
    assert engine.scheduler.stats.disk_pages == 3
