"""Pages on disk, here of two letters, are found while their record is good, and come back into any tree."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import pytest

from rekindle.core.page import StoredPage
from rekindle.core.scheduler.cache.nodes import Evicted
from rekindle.core.scheduler.cache.tree import PrefixTree
from tests.unit.letters import Letters, ids


@pytest.fixture
def tree() -> Letters:
    return Letters()


def test_an_evicted_page_with_a_record_is_found_on_disk_alone(tree: Letters) -> None:
    tip = tree.use("aabb")
    tree.archive_all()
    assert tree.evict(9) == Evicted(pages=[1, 0])
    assert tree.tiers("aabb") == [(None, None, 200), (None, None, 201)]
    assert (tree.ledger.nodes, tree.ledger.device_pages, tree.ledger.host_pages, tree.records.pages) == (2, 0, 0, 2)
    assert tip.disk == 201


def test_a_pruned_copy_with_a_record_is_found_on_disk_alone(tree: Letters) -> None:
    tree.cool("aabb")
    assert tree.archive_all() == [200, 201]
    assert tree.prune(1) == Evicted(entries=[101])
    assert tree.drop_host(tree.tip("aa")) == Evicted(entries=[100])
    assert tree.tiers("aabb") == [(None, None, 200), (None, None, 201)]


def test_what_leaves_the_tree_gives_up_the_records_below_it(tree: Letters) -> None:
    tree.use("aabbcc")
    tree.archive_all()
    tree.lose(200)
    assert tree.evict(2) == Evicted(pages=[2, 1])
    assert tree.evict(1) == Evicted(pages=[0])
    assert (tree.ledger.nodes, tree.records.pages) == (0, 0)
    tree.check()


def test_copies_in_the_host_tier_and_on_disk_follow_each_other_in_any_order(tree: Letters) -> None:
    tree.cool("aabbccdd")
    tree.archive_all()
    tree.drop_host(tree.tip("aa"))
    tree.lose(201)
    tree.drop_host(tree.tip("aabbcc"))
    tree.lose(203)
    assert tree.tiers("aabbccdd") == [(None, None, 200), (None, 101, None), (None, None, 202), (None, 103, None)]
    tree.check()
    assert sorted(tree.prune(9).entries) == [101, 103]
    assert tree.tiers("aabbccdd") == [(None, None, 200)]


def test_pruning_the_way_to_other_copies_drops_these_too(tree: Letters) -> None:
    tree.cool("aabbcc")
    tree.archive_all()
    tree.lose(200)
    tree.drop_host(tree.tip("aabb"))
    tree.lock(tree.tip("aabbcc"))
    assert tree.drop_host(tree.tip("aa")) == Evicted(entries=[100, 102])
    assert tree.nodes_of("aa") == []
    assert tree.records.pages == 0


def test_a_page_from_disk_is_in_the_device_tier_until_it_is_evicted_again(tree: Letters) -> None:
    tree.lock(tree.freeze("aabb"))
    tree.attach(tree.nodes_of("aabb"), [7, 8])
    assert tree.tiers("aabb") == [(7, None, 200), (8, None, 201)]
    tree.unlock(tree.tip("aabb"))
    assert tree.evict(1).pages == [8]
    assert tree.tiers("aabb") == [(7, None, 200), (None, None, 201)]


def test_a_page_that_is_computed_though_it_is_on_disk_is_taken(tree: Letters) -> None:
    tree.freeze("aa")
    tree.lock(tree.root(""))
    assert tree.publish(tree.root(""), ids("aa"), [7]) == (tree.tip("aa"), [])
    assert tree.tiers("aa") == [(7, None, 200)]


def test_a_page_with_a_record_may_be_offloaded_too(tree: Letters) -> None:
    tree.use("aa")
    tree.archive_all()
    tree.offload(1000)
    assert tree.tiers("aa") == [(0, 100, 200)]
    assert tree.ledger.in_both == 1


# Archiving


def test_one_call_chooses_whole_paths_parents_first(tree: Letters) -> None:
    tree.use("aabb")
    tree.use("cc")
    assert [node.page for node in tree.records.next_to_write(9)] == [0, 1, 2]
    assert tree.records.next_to_write(9) == []


def test_a_batch_has_whole_branches_rather_than_the_beginnings_of_many(tree: Letters) -> None:
    tree.use("aabbcc")
    tree.use("aadd")
    tree.use("ee")
    batches = [[node.page for node in tree.records.next_to_write(2)] for _ in range(3)]
    assert batches == [[0, 1], [2, 3], [4]]


def test_the_next_call_goes_on_below_what_is_being_archived(tree: Letters) -> None:
    tree.use("aabb")
    assert [node.page for node in tree.records.next_to_write(1)] == [0]
    assert [node.page for node in tree.records.next_to_write(1)] == [1]


def test_what_is_published_below_an_archived_page_is_next(tree: Letters) -> None:
    tree.use("aa")
    tree.archive_all()
    tree.use("aabbcc")
    assert [node.page for node in tree.records.next_to_write(9)] == [1, 2]


def test_locked_pages_and_copies_without_a_page_are_archived(tree: Letters) -> None:
    tree.cool("aa")
    tree.hold("bb")
    assert [(node.page, node.host) for node in tree.records.next_to_write(9)] == [(None, 100), (1, None)]


def test_only_the_first_answer_to_an_archiving_counts(tree: Letters) -> None:
    tree.use("aa")
    [node] = tree.records.next_to_write(1)
    tree.records.finish_write(node, 200)
    tree.records.fail_write(node)
    tree.records.finish_write(node, 201)
    assert node.disk == 200
    assert tree.records.next_to_write(9) == []


def test_a_page_that_could_not_be_archived_waits_until_the_others_had_their_turn(tree: Letters) -> None:
    tree.use("aa")
    tree.use("bb")
    tree.use("cc")
    [first] = tree.records.next_to_write(1)
    tree.records.fail_write(first)
    assert [node.page for node in tree.records.next_to_write(9)] == [1, 2, 0]


def test_children_chosen_with_a_page_that_could_not_be_archived_are_archived_and_others_wait(tree: Letters) -> None:
    tree.use("aabbcc")
    tree.use("aadd")
    parent, child = tree.records.next_to_write(2)
    assert [parent.page, child.page] == [0, 1]
    tree.records.fail_write(parent)
    tree.records.finish_write(child, 201)
    assert [node.page for node in tree.records.next_to_write(1)] == [2]
    assert [node.page for node in tree.records.next_to_write(9)] == [0, 3]


def test_children_of_two_that_could_not_be_archived_wait_for_both(tree: Letters) -> None:
    tree.use("aabbcc")
    for node in tree.records.next_to_write(2):
        tree.records.fail_write(node)
    tree.check()
    assert [node.page for node in tree.records.next_to_write(9)] == [0, 1, 2]


@pytest.mark.parametrize("leave", [lambda tree: tree.evict(1), lambda tree: tree.forget("")])
def test_a_record_of_a_page_that_left_meanwhile_is_not_wanted(tree: Letters, leave: Callable[[Letters], None]) -> None:
    tree.use("aa")
    [node] = tree.records.next_to_write(1)
    leave(tree)
    again = tree.use("aa")
    tree.records.finish_write(node, 200)
    tree.records.fail_write(node)
    assert again.disk is None
    assert tree.records.next_to_write(9) == [again]


def test_a_page_may_be_archived_after_it_became_a_host_copy(tree: Letters) -> None:
    tree.use("aa")
    [node] = tree.records.next_to_write(1)
    tree.offload(1000)
    tree.evict(1)
    tree.records.finish_write(node, 200)
    assert tree.tiers("aa") == [(None, 100, 200)]


def test_archiving_all_costs_the_same_however_many_left_the_queue_before(tree: Letters) -> None:
    for at in range(26 * 26):
        tree.use(chr(97 + at // 26) + chr(97 + at % 26))
    assert [tree.records.next_to_write(1)[0].page for _ in range(26 * 26)] == list(range(26 * 26))


# Records that go


def test_a_record_that_went_leaves_the_other_tiers_and_the_children_as_they_are(tree: Letters) -> None:
    tree.use("aabb")
    tree.archive_all()
    for _ in range(2):
        assert tree.drop_disk(tree.tip("aa")) == Evicted()
        assert tree.tiers("aabb") == [(0, None, None), (1, None, 201)]
    assert [node.page for node in tree.records.next_to_write(9)] == [0]


def test_a_record_that_went_makes_what_is_below_wait(tree: Letters) -> None:
    tree.use("aa")
    tree.archive_all()
    tree.use("aabb")
    tree.lose(200)
    tree.check()
    assert [node.page for node in tree.records.next_to_write(1)] == [0]
    assert [node.page for node in tree.records.next_to_write(1)] == [1]


def test_the_last_copy_of_a_page_goes_with_all_below_it_locked_or_not(tree: Letters) -> None:
    tip = tree.freeze("aabbcc")
    tree.lock(tip)
    assert tree.lose(201) == Evicted()
    assert tip.is_gone
    assert tree.on_disk() == [200]
    assert tree.tip("aabbcc").locks == 1
    tree.unlock(tip)
    assert tree.lose(200) == Evicted()
    assert tree.roots.namespaces == []


def test_a_forgotten_namespace_gives_up_its_records_and_is_never_archived(tree: Letters) -> None:
    tree.use("aabb")
    tree.archive_all()
    tip = tree.hold("aabbcc")
    assert tree.forget("") == Evicted()
    assert [(node.page, node.disk) for node in tree.path(tip)] == [(0, None), (1, None), (2, None)]
    tree.publish(tip, ids("dd"), [9])
    assert tree.records.next_to_write(9) == []
    tree.restore([StoredPage(300, "", tree.digest(tip), "", tip.key)])
    assert tree.on_disk() == []


def test_locked_pages_on_disk_alone_leave_with_their_namespace(tree: Letters) -> None:
    tip = tree.freeze("aabb")
    tree.attach([tree.tip("aa")], [7])
    tree.lock(tip)
    assert tree.forget("") == Evicted()
    assert tip.is_gone
    assert tree.records.pages == 0
    tree.check()
    tree.unlock(tip)
    assert tree.evict(9) == Evicted(pages=[7])
    tree.check()


# Digests and restoring


def test_a_digest_is_a_chain_of_hashes_from_the_namespace_on(tree: Letters) -> None:
    tip = tree.hold("aabb", "café")
    root = sha256(b"root" + "café".encode())
    first = sha256(root.digest() + bytes([97, 0, 0, 0] * 2))
    second = sha256(first.digest() + bytes([98, 0, 0, 0] * 2))
    assert tip.digest is None
    assert tree.digest(tip) == second.hexdigest()
    assert [tree.digest(node) for node in reversed(tip.upward())] == [
        each.hexdigest() for each in (root, first, second)
    ]
    assert tree.digest(tree.hold("aabb", "other")) != second.hexdigest()


def test_digests_are_the_same_in_every_process() -> None:
    imported = "from rekindle.core.scheduler.cache.tree import PrefixTree as T"
    code = f"{imported}; tree = T(4); print(tree.digest(tree.root('a')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    tree = PrefixTree(4)
    assert done.stdout.strip() == tree.digest(tree.root("a"))


def test_another_tree_finds_what_was_archived(tree: Letters) -> None:
    for text in ("aabbcc", "aadd"):
        tree.use(text)
    tree.use("aa", "other")
    tree.archive_all()
    other = Letters()
    other.restore(tree.stored())
    other.check()
    assert (other.ledger.nodes, other.records.pages, other.ledger.device_pages, other.ledger.host_pages) == (5, 5, 0, 0)
    assert sorted(other.roots.namespaces) == ["", "other"]
    assert other.tiers("aabbcc") == [(None, None, disk) for _, _, disk in tree.tiers("aabbcc")]
    assert {other.digest(node) for node in other.walk()} == {tree.digest(node) for node in tree.walk()}


def test_restored_pages_give_records_to_what_is_there_and_go_on_below_it(tree: Letters) -> None:
    tree.freeze("aabbcc")
    pages = tree.lose_all()
    tree.use("aa")
    tree.restore(pages[1:])
    assert tree.tiers("aabbcc") == [(3, None, None), (None, None, 201), (None, None, 202)]
    [node] = tree.records.next_to_write(9)
    tree.restore(pages[:1])
    assert tree.tiers("aa") == [(3, None, 200)]
    tree.records.finish_write(node, 300)
    assert node.disk == 200


def test_what_is_below_a_restored_page_is_archived_next(tree: Letters) -> None:
    tree.freeze("aa")
    pages = tree.lose_all()
    tree.use("aabb")
    tree.restore(pages)
    assert [node.page for node in tree.records.next_to_write(9)] == [2]


def test_a_record_beside_another_one_is_not_taken(tree: Letters) -> None:
    tree.freeze("aabb")
    first, second = tree.stored()
    tree.restore([first, replace(second, record=300), first])
    assert tree.tiers("aabb") == [(None, None, 200), (None, None, 201)]


@pytest.mark.parametrize(
    "damaged",
    [
        lambda page: replace(page, parent=page.digest),
        lambda page: replace(page, parent=""),
        lambda page: replace(page, digest=page.parent),
        lambda page: replace(page, namespace="other"),
        lambda page: replace(page, key=page.key[::-1]),
        lambda page: replace(page, key=b"", digest=sha256(bytes.fromhex(page.parent)).hexdigest()),
    ],
)
def test_a_page_that_does_not_fit_is_not_taken_nor_what_is_below_it(
    tree: Letters, damaged: Callable[[StoredPage], StoredPage]
) -> None:
    tree.freeze("aabbcc")
    first, second, third = tree.lose_all()
    tree.restore([first, damaged(second), third])
    assert tree.tiers("aabbcc") == [(None, None, 200)]
    assert tree.roots.namespaces == [""]
    tree.check()


def test_restoring_nothing_leaves_nothing(tree: Letters) -> None:
    tree.restore([])
    tree.restore([StoredPage(200, "", "", "a", b"")])
    assert tree.roots.namespaces == []


def test_a_hundred_thousand_tokens_are_archived_and_restored_without_recursion() -> None:
    tree, tokens = PrefixTree(16), [0] * 100_000
    root = tree.root("")
    tree.lock(root)
    tip, _ = tree.publish(root, tokens, range(6250))
    tree.digest(tip)
    for record, node in enumerate(tree.records.next_to_write(6250)):
        tree.records.finish_write(node, record)
    pages = []
    for record, node in enumerate(tree.path(tip)):
        assert node.parent is not None
        pages.append(StoredPage(record, tree.digest(node), tree.digest(node.parent), "", node.key))
    other = PrefixTree(16)
    other.restore(pages)
    assert [node.disk for node in other.match("", tokens)] == list(range(6250))
    assert other.drop_disk(other.match("", tokens)[0]) == Evicted()
    assert (other.ledger.nodes, other.records.pages) == (0, 0)
    other.check()
