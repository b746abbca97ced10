"""When cached pages go to disk: while nothing else is to be done, now and then between ticks, or because a caller asks.

A kernel may be killed at any moment, so pages are written soon; a tick must not wait for it, so a few at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rekindle.messages import Archive, CacheSaved, CacheSaving, Message, Written
from rekindle.page import NewPage
from rekindle.scheduler.cache.nodes import Node
from rekindle.scheduler.leases import PrefixCache

PAGES_AT_ONCE = 16
TICKS_BETWEEN = 64
"""While requests run, this many ticks lie between two batches of pages, or between a failure and the next try."""


@dataclass(slots=True)
class Batch:
    """Pages on their way to disk.

    Attributes:
        nodes: being archived; the host tier has, or is going to have, a copy of each.
        said: whether the host tier was told.
    """

    nodes: list[Node]
    said: bool = False


@dataclass(slots=True)
class Ticket:
    """A caller who waits for everything to be on disk."""

    number: int
    pages: int = 0
    complete: bool = True


class Archiving:
    """Decides what is written next; one batch is on its way at a time.

    Args:
        cache: whose pages.
        enabled: whether there is a disk tier.
    """

    def __init__(self, cache: PrefixCache, *, enabled: bool):
        self._cache = cache
        self._enabled = enabled
        self._batch: Batch | None = None
        self._tickets: list[Ticket] = []
        self._used: set[int] = set()
        self._failed = False
        self._next_tick = TICKS_BETWEEN
        self._retry_tick = 0

    def use(self, node: Node) -> None:
        """A request found the node: its copy on disk is not to leave before others."""
        self._cache.tree.wanted(node)
        on_disk = next((each.disk for each in node.upward() if each.disk is not None), None)
        if on_disk is not None:
            self._used.add(on_disk)

    def ask(self, ticket: int) -> None:
        """A caller wants all that is cached now to be on disk."""
        self._tickets.append(Ticket(ticket, complete=self._enabled))
        self._retry_tick = 0

    def stop(self) -> None:
        """Other weights are used from now on: the pages that they compute do not belong into this store."""
        self._enabled = False
        self._used.clear()

    def written(self, message: Written) -> None:
        """A batch is on disk, as far as it could be."""
        assert self._batch is not None, "an answer to nothing"
        for node, record in zip(self._batch.nodes, message.records, strict=True):
            if record is None:
                self._cache.tree.archive_failed(node)
                self._failed = True
            else:
                self._cache.tree.archived(node, record)
                self._cache.drop_copy(node)
        for ticket in self._tickets:
            ticket.pages += sum(record is not None for record in message.records)
        self._batch = None
        self._cache.forget_records(message.pruned)

    def go_on(self, ticks: int, *, idle: bool) -> Iterator[Message]:
        """Begin or go on with a batch, if it is time.

        Args:
            ticks: plans made so far.
            idle: whether no request is there.
        """
        if self._batch is None and self._is_time(ticks, idle):
            self._begin(ticks, idle)
        if self._batch is not None and not self._batch.said:
            yield from self._say(self._batch)
        if self._failed:
            self._failed, self._retry_tick = False, ticks + TICKS_BETWEEN
            for ticket in self._tickets:
                ticket.complete = False
        if self._batch is None:
            for ticket in self._tickets:
                yield CacheSaved(ticket.number, ticket.pages, ticket.complete)
            self._tickets.clear()

    def _is_time(self, ticks: int, idle: bool) -> bool:
        due = bool(self._tickets) or idle or ticks >= self._next_tick
        return self._enabled and not self._failed and due and ticks >= self._retry_tick

    def _begin(self, ticks: int, idle: bool) -> None:
        nodes = self._cache.next_to_archive(min(PAGES_AT_ONCE, self._cache.host_room))
        self._cache.offload(nodes)
        nodes = self._copied(nodes)
        if nodes or (idle and self._used):
            self._batch = Batch(nodes)
        self._next_tick = ticks + TICKS_BETWEEN

    def _say(self, batch: Batch) -> Iterator[Message]:
        """Tell the host tier, once it has all of the copies."""
        if any(map(self._cache.is_on_its_way, batch.nodes)):
            return
        batch.nodes = self._copied(batch.nodes)
        batch.said = True
        entries = tuple(node.host for node in batch.nodes if node.host is not None)
        yield Archive(tuple(map(self._described, batch.nodes)), entries, tuple(sorted(self._used)))
        self._used.clear()
        left = self._cache.tree.nodes - self._cache.tree.disk_pages
        for ticket in self._tickets:
            yield CacheSaving(ticket.number, ticket.pages, ticket.pages + left)

    def _described(self, node: Node) -> NewPage:
        tree = self._cache.tree
        assert node.parent is not None
        return NewPage(tree.digest(node), tree.digest(node.parent), node.upward()[-1].key.decode(), node.key)

    def _copied(self, nodes: list[Node]) -> list[Node]:
        """Those that the host tier has, or is going to have, a copy of; the others are left for later.

        If these are all, others need its room: to try again at once might go on for ever.
        """
        for node in nodes:
            if node.host is None:
                self._cache.tree.archive_failed(node)
        copied = [node for node in nodes if node.host is not None]
        if nodes and not copied:
            self._failed = True
        return copied
