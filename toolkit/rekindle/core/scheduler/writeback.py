"""Writeback of cached pages to disk: while the engine is idle, between ticks, or for a caller.

The process may be killed at any moment, so pages are written soon. Ticks must not wait, so batches are small.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rekindle.core.messages import Archive, CacheSaved, CacheSaving, Message, Written
from rekindle.core.page import NewPage
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.cache.prefix_cache import PrefixCache
from rekindle.core.scheduler.limits import EngineLimits

PAGES_AT_ONCE = 16
TICKS_BETWEEN = 64
"""Ticks between two batches while requests run, and between failures and the next try. The end of all requests is
another occasion."""
MOST_FAILURES = 64
"""Largest number of pages that fail in a row; the next try then waits."""
TRIES = 4
"""Largest number of batches in a row without room in the host tier; the next try then waits."""


@dataclass(slots=True)
class Ticket:
    """A caller waiting for all cached pages to be on disk.

    Attributes:
        number: the caller's ticket.
        complete: whether no page failed so far.
        records: the records of the pages written since the call.
        crowded_out: pages of these that left the disk again, or had no room there.
    """

    number: int
    complete: bool = True
    records: set[int] = field(default_factory=set)
    crowded_out: int = 0

    def take(self, message: Written) -> None:
        """Count the outcome of a batch."""
        records = {record for record in message.records if record is not None}
        missing = len(message.records) - len(records)
        self.records |= records
        self.crowded_out += len(self.records.intersection(message.pruned)) + (missing if message.full else 0)
        self.complete &= not missing or message.full


@dataclass(slots=True)
class Failures:
    """Failures in a row, until the next try.

    Attributes:
        pages: pages that the disk did not take.
        batches: batches without room in the host tier.
        too_many: whether to wait with the next try.
        retry_tick: the tick of the next try.
    """

    pages: int = 0
    batches: int = 0
    too_many: bool = False
    retry_tick: int = 0

    def pause(self, ticks: int) -> None:
        """Count from zero, and wait with the next try."""
        self.pages = self.batches = 0
        self.too_many, self.retry_tick = False, ticks + TICKS_BETWEEN


class DiskWriteback:
    """Writes cached pages to disk in small batches, by way of the host tier. One batch is in progress at a time.

    The `Scheduler` owns it and calls `advance` after each message.

    Args:
        limits: the settings of the disk tier and the host tier.
        caches: the caches to write back, in turns.
    """

    def __init__(self, limits: EngineLimits, caches: Sequence[PrefixCache]):
        self._caches = deque(caches)  # the pages of a batch are from the first cache
        self._enabled = limits.pool.snapshots
        self._at_once = min(PAGES_AT_ONCE, limits.pool.host_pages)
        self._state_pages = max(1, limits.pool.state_pages)
        self._batch: list[Node] | None = None  # being written to disk
        self._is_sent = False  # whether the batch was sent to the host tier, after all its copies
        self._tickets: list[Ticket] = []
        self._used: set[int] = set()
        self._failures = Failures()
        self._was_idle = False
        self._next_tick = TICKS_BETWEEN

    def use(self, cache: PrefixCache, node: Node) -> None:
        """Record the use of a node by a request, so that its copy leaves the disk later than others."""
        cache.tree.records.readmit(node)
        on_disk = next((each.disk for each in node.upward() if each.disk is not None), None)
        if on_disk is not None:
            self._used.add(on_disk)

    def add_ticket(self, ticket: int) -> None:
        """Add the ticket of a caller that waits for all cached pages to be on disk."""
        self._tickets.append(Ticket(ticket, complete=self._enabled))
        self._failures.retry_tick = 0

    def stop(self) -> None:
        """Start no further batch: after a weight exchange, new pages do not belong in this store."""
        self._enabled = False
        self._used.clear()

    def on_written(self, message: Written) -> None:
        """Complete the batch with the records of its pages."""
        assert self._batch is not None, "written without a batch"
        cache = self._caches[0]
        for node, record in zip(self._batch, message.records, strict=True):
            if record is not None:
                cache.tree.records.finish_write(node, record)
                cache.drop_redundant_copy(node)
                self._failures.pages = self._failures.batches = 0
            elif message.full:
                cache.tree.records.crowd_out(node)
            else:
                cache.tree.records.fail_write(node)
                self._failures.pages += 1
        for ticket in self._tickets:
            ticket.take(message)
        self._failures.too_many |= self._failures.pages >= min(MOST_FAILURES, max(1, self._unwritten))
        self._batch = None
        for cache in self._caches:
            cache.crowd_out(message.pruned)

    def advance(self, ticks: int, *, idle: bool) -> Iterator[Message]:
        """Start a batch if it is time, send it once its host copies are complete, and answer waiting callers.

        Args:
            ticks: plans made so far.
            idle: whether there are no requests.
        """
        if idle and not self._was_idle:
            self._failures.retry_tick = 0
        self._was_idle = idle
        if self._batch is None and self._is_time(ticks, idle):
            self._start_batch(ticks, idle)
        if self._batch is not None and not self._is_sent and not any(map(self._caches[0].is_offloading, self._batch)):
            yield from self._send_batch(self._batch)
        if self._failures.too_many:
            self._failures.pause(ticks)
            for ticket in self._tickets:
                ticket.complete = False
        if self._batch is None:
            for ticket in self._tickets:
                yield CacheSaved(ticket.number, len(ticket.records), ticket.complete, ticket.crowded_out)
            self._tickets.clear()

    @property
    def _unwritten(self) -> int:
        """The number of pages and states without a copy on disk."""
        trees = [cache.tree for cache in self._caches]
        return sum(tree.ledger.nodes - tree.records.pages + tree.ledger.states - tree.records.states for tree in trees)

    def _is_time(self, ticks: int, idle: bool) -> bool:
        is_due = bool(self._tickets) or idle or ticks >= self._next_tick
        return self._enabled and not self._failures.too_many and is_due and ticks >= self._failures.retry_tick

    def _start_batch(self, ticks: int, idle: bool) -> None:
        nodes: list[Node] = []
        for _ in range(len(self._caches)):
            self._caches.rotate(-1)
            nodes = self._choose(self._caches[0])
            if nodes:
                break
        if nodes or (idle and self._used):
            self._batch, self._is_sent = nodes, False
        self._next_tick = ticks + TICKS_BETWEEN

    def _choose(self, cache: PrefixCache) -> list[Node]:
        """Return the next nodes to write, with a host copy, finished or in progress; none if none of many has one."""
        for _ in range(TRIES):
            nodes = cache.tree.records.next_to_write(self._at_once, self._state_pages)
            cache.offload(nodes)
            in_host = self._with_host_copy(nodes)
            if in_host or not nodes:
                return in_host
        self._failures.too_many = True
        return []

    def _send_batch(self, nodes: list[Node]) -> Iterator[Message]:
        self._batch, self._is_sent = self._with_host_copy(nodes), True
        if nodes and not self._batch:
            self._failures.batches += 1
            self._failures.too_many |= self._failures.batches >= TRIES or all(node.is_gone for node in nodes)
        entries = tuple(node.host for node in self._batch if node.host is not None)
        yield Archive(tuple(map(self._describe, self._batch)), entries, tuple(sorted(self._used)))
        self._used.clear()
        remaining = self._unwritten
        for ticket in self._tickets:
            yield CacheSaving(ticket.number, len(ticket.records), len(ticket.records) + remaining)

    def _describe(self, node: Node) -> NewPage:
        assert node.parent is not None
        tree, namespace = self._caches[0].tree, node.upward()[-1].key.decode()
        return NewPage(tree.digest(node), tree.digest(node.parent), namespace, node.key)

    def _with_host_copy(self, nodes: list[Node]) -> list[Node]:
        """Return the nodes with a host copy, finished or in progress, and postpone the others."""
        in_host = [node for node in nodes if node.host is not None]
        for node in nodes:
            if node.host is None:
                self._caches[0].tree.records.fail_write(node)
        return in_host
