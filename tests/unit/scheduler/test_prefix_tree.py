"""Cached pages, here of two letters, are found, stay while locked, and leave least recently used first."""

from collections.abc import Callable

import pytest

from rekindle.core.scheduler.cache.ledger import OldestFirst
from rekindle.core.scheduler.cache.nodes import FORGOTTEN, Evicted, Node
from rekindle.core.scheduler.cache.tree import PrefixTree
from tests.unit.letters import Letters, ids


@pytest.fixture
def tree() -> Letters:
    return Letters()


def test_a_match_is_the_longest_cached_prefix_of_whole_pages(tree: Letters) -> None:
    tree.use("aabbcc")
    tree.use("aabbdd")
    assert [node.page for node in tree.nodes_of("aabbddee")] == [0, 1, 3]
    assert [node.page for node in tree.nodes_of("aabbc")] == [0, 1]
    assert [node.page for node in tree.nodes_of("abbb")] == []
    assert tree.nodes_of("") == []


def test_a_match_changes_nothing(tree: Letters) -> None:
    tree.use("aa")
    tree.use("bb")
    tree.nodes_of("aa")
    tree.nodes_of("zz", "another namespace")
    assert tree.evict(1).pages == [0]
    assert tree.roots.namespaces == [""]


def test_namespaces_never_share(tree: Letters) -> None:
    tree.use("aabb", "one")
    assert tree.nodes_of("aabb", "two") == []
    assert len(tree.nodes_of("aabb", "one")) == 2


def test_nodes_know_their_tokens_and_their_path(tree: Letters) -> None:
    tip = tree.use("aabbcc")
    assert tree.path(tip) == tree.nodes_of("aabbcc")
    assert tree.path(tree.root("")) == []
    assert [tree.tokens_of(node) for node in tree.path(tip)] == [ids("aa"), ids("bb"), ids("cc")]


def test_a_walk_meets_parents_before_children_in_one_namespace_or_in_all(tree: Letters) -> None:
    tree.use("aabb")
    tree.use("aacc")
    tree.use("dd", "other")
    everything = list(tree.walk())
    assert {node.page for node in everything} == {0, 1, 2, 3}
    assert all(node.parent not in everything[at:] for at, node in enumerate(everything))
    assert [node.page for node in tree.walk("other")] == [3]
    assert list(tree.walk("unknown")) == []


def test_pages_of_tokens_that_have_a_page_stay_the_callers(tree: Letters) -> None:
    tree.use("aabb")
    root = tree.root("")
    tree.lock(root)
    tip, spare = tree.publish(root, ids("aabbcc"), [10, 11, 12])
    assert spare == [10, 11]
    assert [node.page for node in tree.path(tip)] == [0, 1, 12]
    assert (tree.ledger.nodes, tree.ledger.device_pages) == (3, 3)


def test_a_page_that_was_only_in_the_host_tier_is_in_both_once_it_is_published(tree: Letters) -> None:
    tree.cool("aabb")
    root = tree.root("")
    tree.lock(root)
    tip, spare = tree.publish(root, ids("aa"), [7])
    assert spare == []
    assert (tip.page, tip.host) == (7, 100)
    assert (tree.ledger.device_pages, tree.ledger.host_pages) == (1, 2)


def test_a_lock_moves_along_with_what_is_published(tree: Letters) -> None:
    tip = tree.hold("aabb")
    assert [node.locks for node in tree.path(tip)] == [1, 1]
    assert tree.root("").locks == 1
    assert tree.evict(9) == Evicted()
    tree.unlock(tip)
    assert tree.evict(9).pages == [1, 0]


def test_the_least_recently_used_tail_is_evicted_first(tree: Letters) -> None:
    tree.use("aabb")
    tree.use("cc")
    tree.use("aadd")
    tree.use("cc")
    assert tree.evict(2).pages == [1, 3]
    assert tree.evict(9).pages == [0, 2]
    assert tree.ledger.nodes == 0


def test_giving_a_lock_back_counts_as_a_use(tree: Letters) -> None:
    first = tree.hold("aa")
    tree.use("bb")
    tree.unlock(first)
    assert tree.evict(1).pages == [1]


def test_hits_are_counted_along_the_path_when_asked(tree: Letters) -> None:
    tip = tree.use("aabb")
    tree.lock(tip)
    tree.hit(tip)
    tree.lock(tree.tip("aa"))
    tree.hit(tree.tip("aa"))
    tree.lock(tip)
    assert [node.hits for node in tree.path(tip)] == [2, 1]


def test_evictable_counts_the_pages_without_a_lock_below(tree: Letters) -> None:
    tree.use("aabbcc")
    tree.use("dd")
    tree.lock(tree.tip("aabb"))
    assert tree.ledger.evictable == 2
    assert sorted(tree.evict(9).pages) == [2, 3]
    assert tree.ledger.evictable == 0


def test_an_evicted_page_with_a_copy_is_found_in_the_host_tier(tree: Letters) -> None:
    tree.use("aabbcc")
    tree.offload(1000)
    assert tree.evict(2) == Evicted(pages=[2, 1])
    assert [(node.page, node.host) for node in tree.nodes_of("aabbcc")] == [(0, 100), (None, 101), (None, 102)]


def test_evicting_a_page_without_a_copy_drops_the_copies_below_it(tree: Letters) -> None:
    tree.use("aabbcc")
    assert tree.offload(1) == [2]
    assert tree.evict(1) == Evicted(pages=[2])
    assert tree.evict(1) == Evicted(pages=[1], entries=[102])
    assert (tree.ledger.nodes, tree.ledger.host_pages) == (1, 0)


def test_a_lock_on_a_host_copy_keeps_the_pages_above_it(tree: Letters) -> None:
    tip = tree.use("aabbcc")
    tree.offload(1)
    tree.evict(1)
    tree.lock(tip)
    assert tree.ledger.evictable == 0
    assert tree.evict(9) == Evicted()
    assert tree.prune(9) == Evicted()
    tree.unlock(tip)
    assert tree.evict(9) == Evicted(pages=[1, 0], entries=[102])


def test_a_long_chain_is_offloaded_in_one_call_tails_first(tree: Letters) -> None:
    tree.use("aabbcc")
    tree.use("dd")
    tree.use("aaee")
    assert tree.offload(9) == [2, 1, 3, 4, 0]
    assert tree.offload(9) == []


def test_what_is_locked_is_not_offloaded(tree: Letters) -> None:
    tree.use("aabb")
    tree.lock(tree.tip("aa"))
    assert tree.offload(9) == [1]


def test_the_least_recently_used_copies_are_pruned_first_tails_before_heads(tree: Letters) -> None:
    tree.use("aabb")
    tree.use("cc")
    tree.offload(1000)
    tree.evict(1)
    assert tree.prune(1) == Evicted(entries=[101])
    assert tree.ledger.nodes == 2
    assert tree.prune(1) == Evicted(entries=[100])
    assert tree.tip("aa").page == 0
    assert tree.prune(9) == Evicted(entries=[102])


def test_a_page_whose_copy_was_pruned_may_be_offloaded_again(tree: Letters) -> None:
    tree.use("aa")
    tree.offload(1000)
    tree.prune(1)
    assert tree.offload(1) == [0]


def test_a_bad_copy_goes_with_all_that_only_it_leads_to_locked_or_not(tree: Letters) -> None:
    tip = tree.cool("aabbcc")
    tree.lock(tip)
    bad = tree.tip("aabb")
    assert tree.drop_host(bad) == Evicted(entries=[101, 102])
    assert bad.is_gone
    assert tip.is_gone
    assert tree.tip("aabbcc").locks == 1
    assert tree.prune(9) == Evicted()
    tree.unlock(tip)
    assert tree.prune(9) == Evicted(entries=[100])


def test_a_bad_copy_of_a_page_on_the_device_goes_alone(tree: Letters) -> None:
    tree.use("aabb")
    tree.offload(1000)
    assert tree.drop_host(tree.tip("aa")) == Evicted(entries=[100])
    assert tree.drop_host(tree.tip("aa")) == Evicted()
    assert [(node.page, node.host) for node in tree.nodes_of("aabb")] == [(0, None), (1, 101)]


def test_onloaded_pages_are_in_both_tiers(tree: Letters) -> None:
    tree.cool("aabb")
    tree.attach(tree.nodes_of("aabb"), [7, 8])
    assert [(node.page, node.host) for node in tree.nodes_of("aabb")] == [(7, 100), (8, 101)]
    assert tree.ledger.in_both == 2


def test_what_is_not_locked_of_a_forgotten_namespace_leaves_at_once(tree: Letters) -> None:
    tree.use("aabbcc")
    tree.offload(1000)
    tree.evict(1)
    tree.lock(tree.tip("aa"))
    evicted = tree.forget("")
    assert (evicted.pages, sorted(evicted.entries)) == ([1], [101, 102])
    assert tree.nodes_of("aa") == []
    assert tree.roots.namespaces == []
    assert tree.forget("") == Evicted()
    assert tree.forget("never used") == Evicted()


def test_what_is_locked_of_a_forgotten_namespace_is_never_offloaded_and_evicted_first(tree: Letters) -> None:
    tree.use("zz")
    old = tree.hold("aabb")
    tree.forget("")
    new = tree.hold("aabb")
    old, spare = tree.publish(old, ids("cc"), [9])
    assert spare == []
    tree.use("dd")
    tree.unlock(old)
    tree.unlock(new)
    assert tree.offload(9) == [5, 4, 3]
    assert tree.evict(3).pages == [9, 2, 1]
    assert {node.page for node in tree.walk()} == {3, 4, 5}


def test_a_lock_outlives_its_node_and_its_namespace(tree: Letters) -> None:
    tree.use("aabb")
    tree.offload(1000)
    tree.evict(1)
    tip = tree.tip("aabb")
    tree.lock(tip)
    tree.drop_host(tip)
    tree.forget("")
    tree.use("cc")
    tree.unlock(tip)
    tree.check()
    assert tree.evict(1).pages == [0]


def test_namespaces_that_were_used_once_leave_nothing(tree: Letters) -> None:
    for number in range(50):
        tree.unlock(tree.hold("aabb", f"published {number}"))
        tree.unlock(tree.hold("", f"locked {number}"))
        tree.freeze("aa", f"restored {number}")
        tree.restore(tree.lose_all())
        tree.lose_all()
        tip = tree.hold("cc", f"forgotten {number}")
        tree.forget(f"forgotten {number}")
        tree.unlock(tip)
    tree.evict(1000)
    tree.prune(1000)
    assert tree.roots.namespaces == []
    assert list(tree.walk()) == []
    tree.check()


def test_a_dropped_root_does_not_take_its_successor_along(tree: Letters) -> None:
    old = tree.hold("aa")
    tree.forget("")
    tree.use("bb")
    tree.unlock(old)
    tree.evict(1)
    assert [node.page for node in tree.nodes_of("bb")] == [1]


def test_a_conversation_of_a_hundred_thousand_tokens_needs_no_recursion() -> None:
    tree, tokens = PrefixTree(16), [0] * 100_000
    for again in range(2):
        root = tree.root("")
        tree.lock(root)
        tip, _ = tree.publish(root, tokens, range(6250))
        tree.unlock(tip)
        assert len(tree.match("", tokens)) == 6250
        for node in tree.next_to_offload(6250):
            tree.add_host_copy(node, node.depth - 1)
        tree.evict(3000)
        tree.check()
        repr(tip)
        if again:
            assert len(tree.evict(6250).pages) == 3250
            assert len(tree.prune(6250).entries) == 6250
        else:
            assert len(tree.forget("").pages) == 3250
        assert tree.ledger.nodes == 0


def test_use_again_and_again_does_not_grow_the_queues(tree: Letters) -> None:
    tip = tree.use("aabb")
    tree.use("cc")
    for _ in range(500):
        tree.lock(tip)
        tree.unlock(tip)
    tree.check()
    assert tree.evict(9).pages == [2, 1, 0]


def test_a_queue_does_not_fill_up_with_members_that_moved_or_left() -> None:
    nodes = [Node(b"", None) for _ in range(300)]
    queue: OldestFirst[Node] = OldestFirst()
    for used in range(300):
        nodes[0].last_used = used
        queue.put(nodes[0])
        queue.check()
    for node in nodes:
        queue.put(node)
    for node in nodes:
        queue.discard(node)
        queue.check()


def test_a_queue_gives_its_members_oldest_first_and_forgets_those_that_left() -> None:
    nodes = [Node(b"", None, last_used=used) for used in (5, 3, 4, 1, 2)]
    queue: OldestFirst[Node] = OldestFirst()
    for node in nodes:
        queue.put(node)
    queue.discard(nodes[3])
    nodes[4].last_used = 9
    queue.put(nodes[4])
    queue.check()
    assert len(queue) == 4
    assert [queue.pop() for _ in range(5)] == [nodes[1], nodes[2], nodes[0], nodes[4], None]


def _cold(tree: Letters) -> None:
    tree.lock(tree.cool("aa"))
    tree.publish(tree.tip("aa"), ids("bb"), [0])


def _twice(tree: Letters) -> None:
    tip = tree.use("aa")
    tree.unlock(tip)


def _lock_gone(tree: Letters) -> None:
    tip = tree.use("aa")
    tree.evict(1)
    tree.lock(tip)


def _dropped(tree: Letters) -> None:
    root = tree.root("")
    tree.lock(root)
    tree.unlock(root)
    tree.lock(root)


def _attached_below_the_host(tree: Letters) -> None:
    tree.attach([tree.cool("aabb")], [0])


def _attached_to_a_page(tree: Letters) -> None:
    tree.attach([tree.use("aa")], [1])


def _attached_too_late(tree: Letters) -> None:
    tip = tree.cool("aa")
    tree.prune(1)
    tree.attach([tip], [1])


def _offloaded_twice(tree: Letters) -> None:
    tip = tree.use("aa")
    tree.offload(1)
    tree.add_host_copy(tip, 101)


def _one_record_of_two(tree: Letters) -> None:
    tree.use("aabb")
    for node in tree.records.next_to_write(2):
        tree.records.finish_write(node, 200)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (_cold, "not in the device tier"),
        (_twice, "more often than locked"),
        (_lock_gone, "left the tree"),
        (_dropped, "root that was dropped"),
        (_attached_below_the_host, "below a colder node"),
        (lambda tree: tree.publish(tree.root(""), ids("aa"), [0]), "not locked"),
        (lambda tree: tree.publish(tree.hold("bb"), ids("aac"), [0]), "whole pages"),
        (_attached_to_a_page, "to a node that has a page"),
        (_attached_too_late, "to a node that left the tree"),
        (_offloaded_twice, "offloaded a page twice"),
        (lambda tree: tree.add_host_copy(tree.cool("aa"), 101), "offloaded a page that is not there"),
        (_one_record_of_two, "a record of two nodes"),
    ],
)
def test_a_mistake_of_the_caller_is_caught(tree: Letters, mistake: Callable[[Letters], None], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        mistake(tree)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("page", 0),
        ("page", None),
        ("host", 100),
        ("host", None),
        ("disk", 200),
        ("disk", 999),
        ("disk", None),
        ("writeback", True),
        ("digest", b""),
        ("parent", None),
        ("key", b"aa"),
        ("locks", 1),
        ("last_used", 77),
        ("last_used", FORGOTTEN),
        ("device_children", 0),
        ("host_children", 2),
        ("device_only_children", 1),
        ("children", {}),
    ],
)
def test_the_check_finds_a_field_that_is_off(tree: Letters, field: str, value: object) -> None:
    tree.use("aabbcc")
    tree.offload(1000)
    tree.archive_all()
    tree.digest(tree.tip("aabbcc"))
    tree.check()
    setattr(tree.tip("aabb"), field, value)
    with pytest.raises(AssertionError):
        tree.check()


def test_the_check_finds_a_node_that_is_chosen_though_it_must_not_be(tree: Letters) -> None:
    tree.use("aa")
    tree.tip("aa").writeback = True
    with pytest.raises(AssertionError, match="not due"):
        tree.check()


def test_the_check_finds_a_forgotten_node_that_has_a_record(tree: Letters) -> None:
    tip = tree.hold("aa")
    tree.forget("")
    tip.disk = 200
    with pytest.raises(AssertionError, match="forgotten"):
        tree.check()
