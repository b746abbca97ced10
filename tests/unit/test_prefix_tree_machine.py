"""Whatever is done with the prefix tree, in any order: it is what a plain table of prefixes would be."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rekindle.prefix_nodes import FORGOTTEN, Node
from rekindle.prefix_tree import PrefixTree

Tokens = tuple[int, ...]

NAMESPACES = st.sampled_from(["a", "a", "b"])
TOKENS = st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=8)
SOME = st.sampled_from([1, 2, 3, 50])
WHICH = st.integers(0, 9)
"""Picks one of however many there are."""


class Stock:
    """Ids that are lent out, each to one holder, and come back once."""

    def __init__(self) -> None:
        self.made = 0
        self.out: set[int] = set()

    def take(self, count: int) -> list[int]:
        taken = list(range(self.made, self.made + count))
        self.made += count
        self.out.update(taken)
        return taken

    def give_back(self, ids: Sequence[int]) -> None:
        assert len(set(ids)) == len(ids)
        assert set(ids) <= self.out, "given back twice"
        self.out.difference_update(ids)


@dataclass(eq=False)
class Row:
    """A cached page: that of the last tokens of a prefix."""

    table: "Table" = field(repr=False)
    prefix: Tokens
    page: int | None = None
    host: int | None = None
    saving: bool = False
    used: int = 0

    @property
    def unsaved(self) -> bool:
        return self.page is not None and self.host is None and not self.saving


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
class Held:
    """A lock: the node that `unlock` is due for, and the rows of its path when it was locked."""

    node: Node
    table: Table
    path: list[Row]


@dataclass(eq=False)
class Onload:
    """Pages that are being filled from host copies."""

    held: Held
    nodes: list[Node]
    rows: list[Row]
    pages: list[int]


class PrefixTreeMachine(RuleBasedStateMachine):
    @initialize(page_size=st.sampled_from([1, 1, 2]), prompts=st.lists(TOKENS, max_size=3))
    def begin(self, page_size: int, prompts: list[list[int]]) -> None:
        self.tree = PrefixTree(page_size)
        self.tables: dict[str, Table] = {}
        self.forgotten: list[Table] = []
        self.uses = 0
        self.held: list[Held] = []
        self.onloads: list[Onload] = []
        self.saves: list[tuple[Node, Row]] = []
        self.pages, self.entries = Stock(), Stock()
        for tokens in prompts:
            self.unlock_both(self.compute_both("a", tokens))

    # The model, and what is done with both

    def table(self, namespace: str) -> Table:
        return self.tables.setdefault(namespace, Table())

    def rows(self) -> Iterable[Row]:
        return (row for table in [*self.tables.values(), *self.forgotten] for row in table.rows.values())

    def prefixes(self, tokens: Sequence[int]) -> list[Tokens]:
        """Those of its whole pages."""
        size = self.tree.page_size
        return [tuple(tokens[:end]) for end in range(size, len(tokens) + 1, size)]

    def longest(self, table: Table, tokens: Sequence[int]) -> list[Row]:
        found = []
        for prefix in self.prefixes(tokens):
            if prefix not in table.rows:
                break
            found.append(table.rows[prefix])
        return found

    def locked(self, row: Row) -> bool:
        return any(row in held.path for held in self.held)

    def touch(self, table: Table, rows: list[Row]) -> None:
        self.uses += 1
        for row in rows:
            row.used = FORGOTTEN if table.forgotten else self.uses

    def leaves(self, inside: Callable[[Row], bool]) -> list[Row]:
        """The rows of which `inside` is true, and of no child, and that are not locked."""
        size = self.tree.page_size
        found = [row for row in self.rows() if inside(row) and not self.locked(row)]
        return [row for row in found if not any(inside(child) for child in row.table.children(row, size))]

    def remove(self, row: Row) -> list[int]:
        """Let a row go, and all below it; their entries of the host tier."""
        gone = [row, *row.table.below(row)]
        entries = [each.host for each in gone if each.host is not None]
        for each in gone:
            each.page = each.host = None
            each.saving = False
            del each.table.rows[each.prefix]
        return entries

    def lock_both(self, namespace: str, tokens: list[int], hit: bool) -> Held:
        table, nodes = self.table(namespace), self.tree.match(namespace, tokens)
        node = nodes[-1] if nodes else self.tree.root(namespace)
        before = [n.hits for n in nodes]
        self.tree.lock(node)
        if hit:
            self.tree.hit(node)
        assert [n.hits for n in nodes] == [hits + hit for hits in before]
        path = self.longest(table, tokens)
        self.touch(table, path)
        self.held.append(Held(node, table, path))
        return self.held[-1]

    def unlock_both(self, held: Held) -> None:
        self.tree.unlock(held.node)
        self.held.remove(held)
        self.touch(held.table, held.path)

    def publish_both(self, held: Held, tokens: list[int]) -> None:
        whole = self.prefixes(tokens)
        tokens = list(whole[-1]) if whole else []
        pages = self.pages.take(len(whole))
        held.node, spare = self.tree.publish(held.node, tokens, pages)
        start = held.path[-1].prefix if held.path else ()
        left = []
        for tail, page in zip(whole, pages, strict=True):
            prefix = (*start, *tail)
            row = held.table.rows.setdefault(prefix, Row(held.table, prefix, used=FORGOTTEN))
            held.path.append(row)
            if row.page is None:
                row.page = page
            else:
                left.append(page)
        assert spare == left
        self.pages.give_back(spare)

    def compute_both(self, namespace: str, tokens: list[int]) -> Held:
        """What a request does: lock what is there, and publish the rest."""
        held = self.lock_both(namespace, tokens, True)
        if held.node.on_device:
            self.publish_both(held, tokens[len(held.path) * self.tree.page_size :])
        return held

    # The rules

    @rule(namespace=NAMESPACES, tokens=TOKENS)
    def match(self, namespace: str, tokens: list[int]) -> None:
        found = [(n.page, n.host, n.saving) for n in self.tree.match(namespace, tokens)]
        table = self.tables.get(namespace, Table())
        assert found == [(row.page, row.host, row.saving) for row in self.longest(table, tokens)]

    @rule(namespace=NAMESPACES, tokens=TOKENS, hit=st.booleans())
    def lock(self, namespace: str, tokens: list[int], hit: bool) -> None:
        self.lock_both(namespace, tokens, hit)

    @rule(namespace=NAMESPACES, tokens=TOKENS)
    def compute(self, namespace: str, tokens: list[int]) -> None:
        self.compute_both(namespace, tokens)

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def unlock(self, which: int) -> None:
        held = self.held[which % len(self.held)]
        if all(held is not onload.held for onload in self.onloads):
            self.unlock_both(held)

    @precondition(lambda self: any(held.node.on_device for held in self.held))
    @rule(which=WHICH, tokens=TOKENS)
    def publish(self, which: int, tokens: list[int]) -> None:
        able = [held for held in self.held if held.node.on_device]
        self.publish_both(able[which % len(able)], tokens)

    @precondition(lambda self: any(not held.node.on_device and not held.node.gone for held in self.held))
    @rule(which=WHICH, count=SOME)
    def onload(self, which: int, count: int) -> None:
        """Begin to copy host copies back, for one who locked them."""
        able = [held for held in self.held if not held.node.on_device and not held.node.gone]
        held = able[which % len(able)]
        path = zip(self.tree.path(held.node), held.path, strict=True)
        cold = [(node, row) for node, row in path if not node.on_device][:count]
        if all(held is not onload.held for onload in self.onloads):
            nodes, rows = [node for node, _ in cold], [row for _, row in cold]
            self.onloads.append(Onload(held, nodes, rows, self.pages.take(len(nodes))))

    @precondition(lambda self: self.onloads)
    @rule(which=WHICH)
    def attach(self, which: int) -> None:
        onload = self.onloads.pop(which % len(self.onloads))
        spare = self.tree.attach(onload.nodes, onload.pages)
        left = []
        for row, page in zip(onload.rows, onload.pages, strict=True):
            if row.page is None and row.host is not None:
                row.page = page
            else:
                left.append(page)
        assert spare == left
        self.pages.give_back(spare)

    @precondition(lambda self: self.tree.host_pages)
    @rule(which=WHICH)
    def find_a_bad_copy(self, which: int) -> None:
        saved = [node for node in self.tree.walk() if node.host is not None]
        needed = [node for node in saved if node.locks and not node.on_device]
        node = (needed or saved)[which % len(needed or saved)]
        row = next(row for row in self.rows() if row.host == node.host)
        right = [row.host] if row.page is not None else self.remove(row)
        row.host = None
        entries = self.tree.drop_host(node)
        assert sorted(entries) == sorted(entry for entry in right if entry is not None)
        assert node.gone == (row.page is None)
        assert self.tree.drop_host(node) == []
        self.entries.give_back(entries)

    @rule(count=SOME)
    def evict(self, count: int) -> None:
        evicted = self.tree.evict(count)
        entries = []
        for page in evicted.pages:
            row = next(row for row in self.rows() if row.page == page)
            self.assert_oldest(row, self.leaves(lambda row: row.page is not None))
            if row.host is None:
                entries += self.remove(row)
            else:
                row.page = None
        assert len(evicted.pages) == count or not self.leaves(lambda row: row.page is not None)
        assert sorted(evicted.entries) == sorted(entries)
        self.pages.give_back(evicted.pages)
        self.entries.give_back(entries)

    @rule(count=SOME, arrive=st.booleans())
    def save(self, count: int, arrive: bool) -> None:
        nodes = self.tree.next_to_save(count)
        for node in nodes:
            row = next(row for row in self.rows() if row.page == node.page)
            self.assert_oldest(row, self.to_save())
            row.saving = True
            self.saves.append((node, row))
        assert len(nodes) == count or not self.to_save()
        while arrive and self.saves:
            self.saved(0)

    @precondition(lambda self: self.saves)
    @rule(which=WHICH)
    def saved(self, which: int) -> None:
        node, row = self.saves.pop(which % len(self.saves))
        [entry] = self.entries.take(1)
        assert self.tree.saved(node, entry) == row.saving
        if row.saving:
            row.host, row.saving = entry, False
        else:
            self.entries.give_back([entry])

    @precondition(lambda self: self.saves)
    @rule(which=WHICH)
    def save_failed(self, which: int) -> None:
        node, row = self.saves.pop(which % len(self.saves))
        self.tree.save_failed(node)
        row.saving = False

    @rule(count=SOME)
    def prune(self, count: int) -> None:
        entries = self.tree.prune(count)
        for entry in entries:
            row = next(row for row in self.rows() if row.host == entry)
            self.assert_oldest(row, self.leaves(lambda row: row.host is not None))
            if row.page is None:
                assert self.remove(row) == [entry]
            row.host = None
        assert len(entries) == count or not self.leaves(lambda row: row.host is not None)
        self.entries.give_back(entries)

    @rule(namespace=NAMESPACES, tokens=TOKENS)
    def restore(self, namespace: str, tokens: list[int]) -> None:
        table, whole = self.table(namespace), self.prefixes(tokens)
        entries = self.entries.take(len(whole))
        spare = self.tree.restore(namespace, whole[-1] if whole else (), entries)
        left = []
        for prefix, entry in zip(whole, entries, strict=True):
            if prefix in table.rows:
                left.append(entry)
            else:
                table.rows[prefix] = Row(table, prefix, host=entry)
        self.touch(table, [table.rows[prefix] for prefix in whole])
        assert spare == left
        self.entries.give_back(spare)

    @rule(namespace=st.sampled_from(["a", "b", "b", "c"]))
    def forget(self, namespace: str) -> None:
        evicted = self.tree.forget(namespace)
        table = self.tables.pop(namespace, Table())
        table.forgotten = True
        self.forgotten.append(table)
        gone = [row for row in table.rows.values() if not self.locked(row)]
        assert sorted(evicted.pages) == sorted(row.page for row in gone if row.page is not None)
        assert sorted(evicted.entries) == sorted(row.host for row in gone if row.host is not None)
        for row in list(table.rows.values()):
            row.used, row.saving = FORGOTTEN, False
        for row in gone:
            row.page = row.host = None
            del table.rows[row.prefix]
        self.pages.give_back(evicted.pages)
        self.entries.give_back(evicted.entries)
        assert not self.tree.match(namespace, [0] * 9)

    # What is always true

    def assert_oldest(self, row: Row, candidates: list[Row]) -> None:
        assert row in candidates
        assert row.used == min(candidate.used for candidate in candidates)

    def to_save(self) -> list[Row]:
        return [row for row in self.leaves(lambda row: row.unsaved) if not row.table.forgotten]

    @invariant()
    def the_tree_is_what_the_table_is(self) -> None:
        self.tree.check()
        nodes = []
        for node in self.tree.walk():
            prefix = tuple(token for each in self.tree.path(node) for token in self.tree.tokens_of(each))
            nodes.append((prefix, node.page, node.host, node.saving, bool(node.locks)))
        rows = [(row.prefix, row.page, row.host, row.saving, self.locked(row)) for row in self.rows()]
        assert len(nodes) == len(rows)
        assert set(nodes) == set(rows)
        assert self.tree.evictable == sum(row.page is not None and not self.locked(row) for row in self.rows())

    @invariant()
    def every_id_has_one_holder(self) -> None:
        in_flight = [page for onload in self.onloads for page in onload.pages]
        assert self.pages.out == {row.page for row in self.rows() if row.page is not None} | set(in_flight)
        assert self.entries.out == {row.host for row in self.rows() if row.host is not None}

    def teardown(self) -> None:
        """Unlocked, evicted and pruned, nothing is left."""
        if not hasattr(self, "tree"):
            return
        while self.onloads:
            self.attach(0)
        while self.held:
            self.unlock_both(self.held[0])
        self.evict(10**6)
        self.prune(10**6)
        while self.saves:
            self.saved(0)
        self.tree.check()
        assert (self.tree.nodes, self.tree.device_pages, self.tree.host_pages, self.tree.evictable) == (0, 0, 0, 0)
        assert not self.tree.namespaces
        assert not self.pages.out
        assert not self.entries.out


CALM = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def test_no_order_of_changes_breaks_the_tree() -> None:
    run_state_machine_as_test(PrefixTreeMachine, settings=settings(CALM, max_examples=250, stateful_step_count=50))


@pytest.mark.deep
def test_no_order_of_very_many_changes_breaks_the_tree() -> None:
    deep = settings(CALM, max_examples=2500, stateful_step_count=80, derandomize=False)
    run_state_machine_as_test(PrefixTreeMachine, settings=deep)
