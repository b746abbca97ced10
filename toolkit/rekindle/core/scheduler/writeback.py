"""When cached pages go to disk: while nothing else is to be done, now and then between ticks, or because a caller asks.

A kernel may be killed at any moment, so pages are written soon; a tick must not wait for it, so a few at a time.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rekindle.core.messages import Archive, CacheSaved, CacheSaving, Message, Written
from rekindle.core.page import NewPage
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.cache.prefix_cache import PrefixCache
from rekindle.core.scheduler.limits import EngineLimits

PAGES_AT_ONCE = 16
TICKS_BETWEEN = 64
"""While requests run, this many ticks lie between two batches of pages, or between a failure and the next try."""


@dataclass(slots=True)
class Ticket:
    """A caller who waits for everything to be on disk."""

    number: int
    pages: int = 0
    complete: bool = True


class DiskWriteback:
    """Decides what is written next; one batch is on its way at a time, of one cache.

    Args:
        limits: whether there is a disk tier, and the size of the host tier.
        caches: whose pages, in turns.
    """

    def __init__(self, limits: EngineLimits, caches: Sequence[PrefixCache]):
        self._caches = deque(caches)  # the first one is that of the batch
        self._enabled = limits.pool.snapshots
        self._at_once = min(PAGES_AT_ONCE, limits.pool.host_pages)
        self._batch: list[Node] | None = None  # on their way to disk
        self._said = False  # whether the host tier was told of the batch, which it is once it has all copies
        self._tickets: list[Ticket] = []
        self._used: set[int] = set()
        self._failed = False
        self._next_tick = TICKS_BETWEEN
        self._retry_tick = 0

    def use(self, cache: PrefixCache, node: Node) -> None:
        """Note that a request found a node, so that its copy leaves the disk after others."""
        cache.tree.records.wanted(node)
        on_disk = next((each.disk for each in node.upward() if each.disk is not None), None)
        if on_disk is not None:
            self._used.add(on_disk)

    def ask(self, ticket: int) -> None:
        """Let a caller wait until all that is cached now is on disk."""
        self._tickets.append(Ticket(ticket, complete=self._enabled))
        self._retry_tick = 0

    def stop(self) -> None:
        """Archive nothing more: the pages that other weights compute do not belong into this store."""
        self._enabled = False
        self._used.clear()

    def written(self, message: Written) -> None:
        """Take in that a batch is on disk, as far as it could be."""
        assert self._batch is not None, "written without a batch"
        cache = self._caches[0]
        for node, record in zip(self._batch, message.records, strict=True):
            if record is None:
                cache.tree.records.archive_failed(node)
                self._failed = True
            else:
                cache.tree.records.archived(node, record)
                cache.drop_spare(node)
        for ticket in self._tickets:
            ticket.pages += sum(record is not None for record in message.records)
        self._batch = None
        for cache in self._caches:
            cache.crowded_out(message.pruned)

    def go_on(self, ticks: int, *, idle: bool) -> Iterator[Message]:
        """Begin a batch or go on with it, if it is time.

        Args:
            ticks: plans made so far.
            idle: whether no request is there.
        """
        if self._batch is None and self._is_time(ticks, idle):
            self._begin(ticks, idle)
        if self._batch is not None and not self._said and not any(map(self._caches[0].is_offloading, self._batch)):
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
        nodes: list[Node] = []
        for _ in range(len(self._caches)):
            self._caches.rotate(-1)
            cache = self._caches[0]
            nodes = cache.tree.records.next_to_archive(self._at_once)
            cache.offload(nodes)
            nodes = self._with_host_copy(nodes)
            if nodes:
                break
        if nodes or (idle and self._used):
            self._batch, self._said = nodes, False
        self._next_tick = ticks + TICKS_BETWEEN

    def _say(self, nodes: list[Node]) -> Iterator[Message]:
        self._batch, self._said = self._with_host_copy(nodes), True
        entries = tuple(node.host for node in self._batch if node.host is not None)
        yield Archive(tuple(map(self._described, self._batch)), entries, tuple(sorted(self._used)))
        self._used.clear()
        left = sum(cache.tree.nodes - cache.tree.disk_pages for cache in self._caches)
        for ticket in self._tickets:
            yield CacheSaving(ticket.number, ticket.pages, ticket.pages + left)

    def _described(self, node: Node) -> NewPage:
        assert node.parent is not None
        tree, namespace = self._caches[0].tree, node.upward()[-1].key.decode()
        return NewPage(tree.digest(node), tree.digest(node.parent), namespace, node.key)

    def _with_host_copy(self, nodes: list[Node]) -> list[Node]:
        """Return those that the host tier has, or is going to have; the others are left for later.

        If these are all, others need its room: to try again at once might go on for ever.
        """
        there = [node for node in nodes if node.host is not None]
        for node in nodes:
            if node.host is None:
                self._caches[0].tree.records.archive_failed(node)
        if nodes and not there:
            self._failed = True
        return there
