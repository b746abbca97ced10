"""Copies of a running request's state: the positions of the copies, and the place of each in the cache."""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from rekindle.core.buckets import QUERY_BLOCK
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.requests.lease import Lease


@dataclass(slots=True, eq=False)
class StateCopies:
    """The positions of a running request whose state is copied to the host tier, for other requests and later turns.

    A state can only be copied between two ticks, so chunks end there. During decoding, the state is
    copied at the end of each page, in place of the copy before.

    Attributes:
        page_size: tokens of a page.
        stride: the distance of copies within a long prompt, in tokens. States then take no more room than the pages,
            and whole chunks end there anyway.
        cuts: the positions in the prompt still ahead, ascending; whole pages.
        copies: (position, entry) of copies made while decoding, whose tokens are not settled yet.
        newest: the last state put into the cache while decoding, perhaps gone since; the next one replaces it.
    """

    page_size: int
    stride: int
    cuts: list[int] = field(default_factory=list)
    copies: deque[tuple[int, int]] = field(default_factory=deque)
    newest: Node | None = None

    @classmethod
    def of(cls, limits: EngineLimits) -> "StateCopies | None":
        """Return the initial value for a request; None for a model without states, or without a prefix cache."""
        pool = limits.pool
        if not pool.keeps_states:
            return None
        chunk = max(1, limits.prefill_chunk // pool.page_size)
        return cls(pool.page_size, -(-pool.state_pages // chunk) * chunk * pool.page_size)

    def begin(self, start: int, divergence: int, end: int) -> None:
        """Choose the positions for a computation in chunks.

        Args:
            start: the first position to compute.
            divergence: the end of the cached pages, where another request left the prefix.
            end: the end of the last whole page of which a state is of use.
        """
        strides = range(start + self.stride, end, self.stride)
        self.cuts = sorted({cut for cut in (*strides, divergence, end) if start < cut <= end})

    def add(self, positions: Iterable[int], computed: int) -> None:
        """Add positions still ahead, where other requests leave this one."""
        for position in positions:
            if position > computed and position not in self.cuts:
                insort(self.cuts, position)

    def end_of_chunk(self, start: int, end: int) -> int:
        """Return the end of a chunk, shortened to the first position for a copy."""
        at = bisect_right(self.cuts, start)
        return min(end, self.cuts[at]) if at < len(self.cuts) else end

    def reach(self, position: int, lease: Lease, slot: int) -> None:
        """Copy the state of a slot after a chunk, if one of the positions is the end."""
        while self.cuts and self.cuts[0] <= position:
            is_here = self.cuts.pop(0) == position
            if is_here and (node := lease.node_at(position)) is not None:
                lease.cache.keep_state(node, slot)

    def decode(self, position: int, lease: Lease, slot: int) -> None:
        """Copy the state of a slot after a decode row, at the end of a page."""
        if position % self.page_size == 0 and (entry := lease.cache.copy_decoding(slot)) is not None:
            self.copies.append((position, entry))

    def is_due(self, tokens: int) -> bool:
        """Return True if a copy belongs to the first `tokens` tokens, which are settled.

        It waits for one block more: a stop string may still take the newest tokens back.
        """
        return bool(self.copies) and self.copies[0][0] + QUERY_BLOCK <= tokens

    def place(self, tokens: int, lease: Lease) -> None:
        """Put copies of states after settled tokens into the cache, in place of the one before.

        Args:
            tokens: the number of settled tokens, whose whole pages are published.
        """
        while self.copies and self.copies[0][0] <= tokens:
            position, entry = self.copies.popleft()
            node = lease.node_at(position)
            state = None if node is None else lease.cache.place_state(entry, node, provisional=True)
            if node is None:
                lease.cache.drop_state(entry)
            if state is not None:
                if self.newest is not None:
                    lease.cache.forget_state(self.newest)
                self.newest = state

    def end(self, tokens: int, lease: Lease) -> None:
        """Put the last copies into the cache for good, and drop the copies after other tokens than the settled ones."""
        self.place(tokens, lease)
        if self.newest is not None:
            lease.cache.finish_state(self.newest)
        for _, entry in self.copies:
            lease.cache.drop_state(entry)
        self.copies.clear()
        self.cuts, self.newest = [], None
