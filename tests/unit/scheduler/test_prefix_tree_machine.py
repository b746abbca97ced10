"""Whatever is done with the prefix tree, in any order, it equals a plain table of prefixes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rekindle.core.page import StoredPage
from rekindle.core.scheduler.cache.nodes import FORGOTTEN, Evicted, Node
from rekindle.core.scheduler.cache.tree import PrefixTree
from tests.unit.machines import run, run_deep

Tokens = tuple[int, ...]

NAMESPACES = st.sampled_from(["a", "a", "b"])
TOKENS = st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=8)
SOME = st.sampled_from([1, 2, 3, 50])
WHICH = st.integers(0, 9)
"""A number for a pick from any number of things."""


def shortened(page: StoredPage) -> StoredPage:
    """Return the page as a tree with smaller pages would have it."""
    key = page.key[4:]
    return replace(page, key=key, digest=sha256(bytes.fromhex(page.parent) + key).hexdigest())


DAMAGES: dict[str, Callable[[StoredPage], StoredPage]] = {
    "key": shortened,
    "digest": lambda page: replace(page, digest=page.parent),
    "parent": lambda page: replace(page, parent=page.digest),
    "namespace": lambda page: replace(page, namespace="c"),
}


class Stock:
    """A stock of ids, each lent to one holder and returned once."""

    def __init__(self) -> None:
        self.issued = 0
        self.out: set[int] = set()

    def take(self, count: int) -> list[int]:
        ids = list(range(self.issued, self.issued + count))
        self.issued += count
        self.out.update(ids)
        return ids

    def give_back(self, ids: Sequence[int]) -> None:
        assert len(set(ids)) == len(ids)
        assert set(ids) <= self.out, "given back twice"
        self.out.difference_update(ids)


@dataclass(eq=False)
class Row:
    """A cached page with the last tokens of a prefix."""

    table: "Table" = field(repr=False)
    prefix: Tokens
    page: int | None = None
    host: int | None = None
    disk: int | None = None
    archiving: bool = False
    used: int = 0

    @property
    def in_memory(self) -> bool:
        return self.page is not None or self.host is not None

    @property
    def is_gone(self) -> bool:
        return not self.in_memory and self.disk is None

    @property
    def device_only(self) -> bool:
        return self.page is not None and self.host is None


@dataclass(eq=False)
class Table:
    """One namespace, from its first use until it is forgotten."""

    rows: dict[Tokens, Row] = field(default_factory=dict)
    forgotten: bool = False

    def below(self, row: Row) -> list[Row]:
        return [r for r in self.rows.values() if r.prefix[: len(row.prefix)] == row.prefix and r is not row]

    def children(self, row: Row, page_size: int) -> list[Row]:
        return [r for r in self.below(row) if len(r.prefix) == len(row.prefix) + page_size]


@dataclass(eq=False)
class Gone:
    """The ids of removed rows."""

    pages: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    records: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Lock:
    """A lock: the node for `unlock`, and the rows of its path at the time of the lock."""

    node: Node
    table: Table
    path: list[Row]


class PrefixTreeMachine(RuleBasedStateMachine):
    @initialize(
        page_size=st.sampled_from([1, 1, 2]),
        prompts=st.lists(TOKENS, max_size=3),
        copied=st.sampled_from(["", "to disk", "to both"]),
        losses=st.lists(WHICH, max_size=3),
    )
    def begin(self, page_size: int, prompts: list[list[int]], copied: str, losses: list[int]) -> None:
        self.tree = PrefixTree(page_size)
        self.tables: dict[str, Table] = {}
        self.forgotten: list[Table] = []
        self.uses = 0
        self.locks: list[Lock] = []
        self.archives: list[tuple[Node, Row]] = []
        self.shelf: dict[tuple[str, Tokens], StoredPage] = {}  # all pages ever archived, whatever the tree forgot
        self.pages, self.entries, self.records = Stock(), Stock(), Stock()
        for tokens in prompts:
            self.unlock_both(self.compute_both("a", tokens))
        if copied:
            self.archive(50, True)
            self.offload(50 if copied == "to both" else 0)
            self.evict(50)
        for which in losses if copied == "to both" else ():
            if self.tree.records.pages:
                self.lose_a_record(which, False)

    # The model, and acts on both

    def table(self, namespace: str) -> Table:
        return self.tables.setdefault(namespace, Table())

    def rows(self) -> Iterable[Row]:
        return (row for table in [*self.tables.values(), *self.forgotten] for row in table.rows.values())

    def prefixes(self, tokens: Sequence[int]) -> list[Tokens]:
        """Return the prefixes of whole pages."""
        size = self.tree.page_size
        return [tuple(tokens[:end]) for end in range(size, len(tokens) + 1, size)]

    def longest(self, table: Table, tokens: Sequence[int]) -> list[Row]:
        rows = []
        for prefix in self.prefixes(tokens):
            if prefix not in table.rows:
                break
            rows.append(table.rows[prefix])
        return rows

    def locked(self, row: Row) -> bool:
        return any(row in lock.path for lock in self.locks)

    def touch(self, table: Table, rows: list[Row]) -> None:
        self.uses += 1
        for row in rows:
            row.used = FORGOTTEN if table.forgotten else self.uses

    def leaves(self, inside: Callable[[Row], bool]) -> list[Row]:
        """Return the unlocked rows inside, except the ones with a child inside."""
        size = self.tree.page_size
        candidates = [row for row in self.rows() if inside(row) and not self.locked(row)]
        return [row for row in candidates if not any(inside(child) for child in row.table.children(row, size))]

    def parent(self, row: Row) -> Row | None:
        return row.table.rows.get(row.prefix[: -self.tree.page_size])

    def row_of(self, node: Node) -> Row:
        """Return the row with the same copies as a node."""
        same = ((r.page, r.host, r.disk) == (node.page, node.host, node.disk) for r in self.rows())
        return next(row for row, is_it in zip(self.rows(), same, strict=True) if is_it)

    def remove(self, row: Row, into: Gone) -> None:
        """Let a row go, and all below it."""
        for each in [row, *row.table.below(row)]:
            into.pages += [each.page] if each.page is not None else []
            into.entries += [each.host] if each.host is not None else []
            into.records += [each.disk] if each.disk is not None else []
            each.page = each.host = each.disk = None
            each.archiving = False
            del each.table.rows[each.prefix]

    def give_back(self, right: Gone, evicted: Evicted) -> None:
        """Compare the ids of an eviction with the right ones, and take them back."""
        assert sorted(right.pages) == sorted(evicted.pages)
        assert sorted(right.entries) == sorted(evicted.entries)
        self.pages.give_back(right.pages)
        self.entries.give_back(right.entries)
        self.records.give_back(right.records)

    def lock_both(self, namespace: str, tokens: list[int], hit: bool) -> Lock:
        table, nodes = self.table(namespace), self.tree.match(namespace, tokens)
        node = nodes[-1] if nodes else self.tree.root(namespace)
        before = [n.hits for n in nodes]
        self.tree.lock(node)
        if hit:
            self.tree.hit(node)
        assert [n.hits for n in nodes] == [hits + hit for hits in before]
        path = self.longest(table, tokens)
        self.touch(table, path)
        self.locks.append(Lock(node, table, path))
        return self.locks[-1]

    def unlock_both(self, lock: Lock) -> None:
        self.tree.unlock(lock.node)
        self.locks.remove(lock)
        self.touch(lock.table, lock.path)

    def publish_both(self, lock: Lock, tokens: list[int]) -> None:
        whole = self.prefixes(tokens)
        tokens = list(whole[-1]) if whole else []
        pages = self.pages.take(len(whole))
        lock.node, spare = self.tree.publish(lock.node, tokens, pages)
        start = lock.path[-1].prefix if lock.path else ()
        duplicates = []
        for tail, page in zip(whole, pages, strict=True):
            prefix = (*start, *tail)
            row = lock.table.rows.setdefault(prefix, Row(lock.table, prefix, used=FORGOTTEN))
            lock.path.append(row)
            if row.page is None:
                row.page = page
            else:
                duplicates.append(page)
        assert spare == duplicates
        self.pages.give_back(spare)

    def compute_both(self, namespace: str, tokens: list[int]) -> Lock:
        """Lock the cached pages and publish the rest, as a request does."""
        lock = self.lock_both(namespace, tokens, True)
        if lock.node.on_device:
            self.publish_both(lock, tokens[len(lock.path) * self.tree.page_size :])
        return lock

    # The rules

    @rule(namespace=NAMESPACES, tokens=TOKENS)
    def match(self, namespace: str, tokens: list[int]) -> None:
        copies = [(n.page, n.host, n.disk) for n in self.tree.match(namespace, tokens)]
        table = self.tables.get(namespace, Table())
        assert copies == [(row.page, row.host, row.disk) for row in self.longest(table, tokens)]

    @rule(namespace=NAMESPACES, tokens=TOKENS, hit=st.booleans())
    def lock(self, namespace: str, tokens: list[int], hit: bool) -> None:
        self.lock_both(namespace, tokens, hit)

    @rule(namespace=NAMESPACES, tokens=TOKENS)
    def compute(self, namespace: str, tokens: list[int]) -> None:
        self.compute_both(namespace, tokens)

    @precondition(lambda self: self.locks)
    @rule(which=WHICH)
    def unlock(self, which: int) -> None:
        self.unlock_both(self.locks[which % len(self.locks)])

    @precondition(lambda self: any(lock.node.on_device for lock in self.locks))
    @rule(which=WHICH, tokens=TOKENS)
    def publish(self, which: int, tokens: list[int]) -> None:
        able = [lock for lock in self.locks if lock.node.on_device]
        self.publish_both(able[which % len(able)], tokens)

    @precondition(lambda self: any(not lock.node.on_device and not lock.node.is_gone for lock in self.locks))
    @rule(which=WHICH, count=SOME)
    def attach(self, which: int, count: int) -> None:
        """Onload the pages of one of the locks."""
        able = [lock for lock in self.locks if not lock.node.on_device and not lock.node.is_gone]
        lock = able[which % len(able)]
        path = zip(self.tree.path(lock.node), lock.path, strict=True)
        cold = [(node, row) for node, row in path if not node.on_device][:count]
        pages = self.pages.take(len(cold))
        self.tree.attach([node for node, _ in cold], pages)
        for (_, row), page in zip(cold, pages, strict=True):
            row.page = page

    @precondition(lambda self: self.tree.ledger.host_pages)
    @rule(which=WHICH)
    def find_a_bad_copy(self, which: int) -> None:
        offloaded = [node for node in self.tree.walk() if node.host is not None]
        preferred = [node for node in offloaded if node.locks and not node.on_device]
        node = (preferred or offloaded)[which % len(preferred or offloaded)]
        row, right = self.row_of(node), Gone()
        if row.page is None and row.disk is None:
            self.remove(row, right)
        else:
            assert row.host is not None
            right.entries.append(row.host)
            row.host = None
        dropped = self.tree.drop_host(node)
        assert node.is_gone == row.is_gone
        assert self.tree.drop_host(node) == Evicted()
        self.give_back(right, dropped)

    @rule(count=SOME)
    def evict(self, count: int) -> None:
        evicted, right = self.tree.evict(count), Gone()
        for page in evicted.pages:
            row = next(row for row in self.rows() if row.page == page)
            self.assert_oldest(row, self.leaves(lambda row: row.page is not None))
            if row.host is None and row.disk is None:
                self.remove(row, right)
            else:
                right.pages.append(page)
                row.page = None
        assert len(evicted.pages) == count or not self.leaves(lambda row: row.page is not None)
        self.give_back(right, evicted)

    @rule(count=SOME)
    def offload(self, count: int) -> None:
        offloaded = 0
        for node in self.tree.next_to_offload(count):
            row = next(row for row in self.rows() if row.page == node.page)
            self.assert_oldest(row, self.to_offload())
            [row.host] = self.entries.take(1)
            self.tree.add_host_copy(node, row.host)
            offloaded += 1
        assert offloaded == count or not self.to_offload()

    @precondition(lambda self: self.tree.ledger.device_pages)
    @rule(which=WHICH)
    def offload_one(self, which: int) -> None:
        """Offload a page out of turn, locked or not."""
        device_only = [node for node in self.tree.walk() if node.device_only]
        if device_only:
            node = device_only[which % len(device_only)]
            row = self.row_of(node)
            [row.host] = self.entries.take(1)
            self.tree.add_host_copy(node, row.host)

    @rule(count=SOME)
    def prune(self, count: int) -> None:
        pruned, right = self.tree.prune(count), Gone()
        while len(right.entries) < len(pruned.entries):
            assert len(right.entries) < count, "more was pruned than needed"
            row = next(row for row in self.rows() if row.host == pruned.entries[len(right.entries)])
            self.assert_oldest(row, self.leaves(lambda row: row.host is not None))
            if row.page is None and row.disk is None:
                self.remove(row, right)
            else:
                right.entries += [pruned.entries[len(right.entries)]]
                row.host = None
        assert len(pruned.entries) >= count or not self.leaves(lambda row: row.host is not None)
        self.give_back(right, pruned)

    @rule(count=SOME, arrive=st.booleans())
    def archive(self, count: int, arrive: bool) -> None:
        nodes = self.tree.records.next_to_write(count)
        for node in nodes:
            row = self.row_of(node)
            assert row in self.to_archive()
            row.archiving = True
            self.archives.append((node, row))
        assert len(nodes) == count or not self.to_archive()
        while arrive and self.archives:
            self.archived(0)

    @precondition(lambda self: self.archives)
    @rule(which=WHICH)
    def archived(self, which: int) -> None:
        node, row = self.archives.pop(which % len(self.archives))
        [record] = self.records.take(1)
        archiving = row.archiving
        self.tree.records.finish_write(node, record)
        if archiving:
            row.disk, row.archiving = record, False
            page = self.stored(node)
            self.shelf[page.namespace, row.prefix] = page
        else:
            self.records.give_back([record])

    @precondition(lambda self: self.archives)
    @rule(which=WHICH)
    def archive_failed(self, which: int) -> None:
        node, row = self.archives.pop(which % len(self.archives))
        self.tree.records.fail_write(node)
        row.archiving = False

    @precondition(lambda self: self.tree.records.pages)
    @rule(which=WHICH, alone=st.booleans())
    def lose_a_record(self, which: int, alone: bool) -> None:
        """Drop the record of a row, locked or not; with `alone`, prefer a row in no other tier."""
        stored = [row for row in self.rows() if row.disk is not None]
        preferred = [row for row in stored if alone and not row.in_memory]
        row, right = (preferred or stored)[which % len(preferred or stored)], Gone()
        node = next(node for node in self.tree.walk() if node.disk == row.disk)
        assert row.disk is not None
        if row.in_memory:
            right.records.append(row.disk)
            row.disk = None
        else:
            self.remove(row, right)
        dropped = self.tree.drop_disk(node)
        assert node.is_gone == row.is_gone
        assert self.tree.drop_disk(node) == Evicted()
        self.give_back(right, dropped)

    @precondition(lambda self: self.shelf)
    @rule(picks=st.lists(WHICH, min_size=1, max_size=6), damage=st.sampled_from([None, None, *DAMAGES]))
    def restore(self, picks: list[int], damage: str | None) -> None:
        """Restore some pages out of all ever archived; the first may be damaged."""
        places = sorted(self.shelf, key=lambda place: len(place[1]))
        places = sorted({places[which % len(places)] for which in picks}, key=places.index)
        numbers = self.records.take(len(places))
        pages = [replace(self.shelf[place], record=number) for place, number in zip(places, numbers, strict=True)]
        if damage is not None:
            pages[0] = DAMAGES[damage](pages[0])
        self.tree.restore(pages)
        for number, (namespace, prefix) in zip(numbers, places, strict=True):
            table = self.table(namespace)
            row = table.rows.get(prefix, Row(table, prefix))
            orphan = len(prefix) > self.tree.page_size and self.parent(row) is None
            if orphan or row.disk is not None or (damage is not None and number == numbers[0]):
                self.records.give_back([number])
            else:
                table.rows[prefix] = row
                row.disk, row.archiving = number, False

    @precondition(lambda self: self.tree.records.pages)
    @rule()
    def restore_elsewhere(self) -> None:
        """Let another process find all pages with their prefixes on disk, and no others."""
        reached = set()
        for row in sorted(self.rows(), key=lambda row: len(row.prefix)):
            above = self.parent(row)
            reachable = len(row.prefix) == self.tree.page_size or (above is not None and above.disk in reached)
            if reachable and row.disk is not None and not row.table.forgotten:
                reached.add(row.disk)
        pages = [self.stored(node) for node in self.tree.walk() if node.disk is not None]
        other = PrefixTree(self.tree.page_size)
        other.restore(pages)
        other.check()
        assert (other.ledger.nodes, other.records.pages) == (len(reached), len(reached))
        mine = {(node.disk, self.tree.digest(node)) for node in self.tree.walk() if node.disk in reached}
        assert {(node.disk, other.digest(node)) for node in other.walk()} == mine

    @rule(namespace=st.sampled_from(["a", "b", "b", "c"]))
    def forget(self, namespace: str) -> None:
        evicted = self.tree.forget(namespace)
        table = self.tables.pop(namespace, Table())
        table.forgotten = True
        self.forgotten.append(table)
        right = Gone()
        for row in list(table.rows.values()):
            if not row.is_gone and not (self.locked(row) and row.in_memory):
                self.remove(row, right)
        for row in table.rows.values():
            right.records += [row.disk] if row.disk is not None else []
            row.used, row.disk, row.archiving = FORGOTTEN, None, False
        self.give_back(right, evicted)
        assert not self.tree.match(namespace, [0] * 9)

    # Invariants

    def assert_oldest(self, row: Row, candidates: list[Row]) -> None:
        assert row in candidates
        assert row.used == min(candidate.used for candidate in candidates)

    def to_offload(self) -> list[Row]:
        return [row for row in self.leaves(lambda row: row.device_only) if not row.table.forgotten]

    def to_archive(self) -> list[Row]:
        """Return the rows due for the archive."""
        rows = []
        for row in self.rows():
            above = self.parent(row)
            if above is None or above.disk is not None or above.archiving:
                rows.append(row)
        return [row for row in rows if row.disk is None and not row.archiving and not row.table.forgotten]

    def stored(self, node: Node) -> StoredPage:
        """Return the node's record, as a store would report it."""
        assert node.disk is not None
        assert node.parent is not None
        namespace = node.upward()[-1].key.decode()
        return StoredPage(node.disk, self.tree.digest(node), self.tree.digest(node.parent), namespace, node.key)

    @invariant()
    def the_tree_is_what_the_table_is(self) -> None:
        self.tree.check()
        nodes = []
        for node in self.tree.walk():
            prefix = tuple(token for each in self.tree.path(node) for token in self.tree.tokens_of(each))
            nodes.append((prefix, node.page, node.host, node.disk, node.writeback, bool(node.locks)))
        rows = [(r.prefix, r.page, r.host, r.disk, r.archiving, self.locked(r)) for r in self.rows()]
        assert len(nodes) == len(rows)
        assert set(nodes) == set(rows)
        assert self.tree.ledger.evictable == sum(row.page is not None and not self.locked(row) for row in self.rows())

    @invariant()
    def every_id_has_one_holder(self) -> None:
        assert self.pages.out == {row.page for row in self.rows() if row.page is not None}
        assert self.entries.out == {row.host for row in self.rows() if row.host is not None}
        assert self.records.out == {row.disk for row in self.rows() if row.disk is not None}
        assert self.tree.ledger.in_both == sum(row.page is not None and row.host is not None for row in self.rows())

    def teardown(self) -> None:
        """Unlock, evict, prune and lose everything, and check for an empty tree."""
        if not hasattr(self, "tree"):
            return
        while self.locks:
            self.unlock_both(self.locks[0])
        self.evict(10**6)
        self.prune(10**6)
        while self.archives:
            self.archived(0)
        while self.tree.records.pages:
            self.lose_a_record(0, True)
        self.tree.check()
        assert (
            self.tree.ledger.nodes,
            self.tree.ledger.device_pages,
            self.tree.ledger.host_pages,
            self.tree.ledger.evictable,
        ) == (0, 0, 0, 0)
        assert not self.tree.roots.namespaces
        assert not self.pages.out
        assert not self.entries.out
        assert not self.records.out


def test_no_order_of_changes_breaks_the_tree() -> None:
    run(PrefixTreeMachine, stories=40, steps=50)


@pytest.mark.deep
def test_no_order_of_very_many_changes_breaks_the_tree() -> None:
    run_deep(PrefixTreeMachine, stories=2500, steps=80)
