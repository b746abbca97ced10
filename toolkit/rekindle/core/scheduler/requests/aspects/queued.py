"""State of a request in the waiting queue: its cached prefix, and its copies being fetched."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rekindle.core.scheduler.cache.nodes import Node


@dataclass(slots=True, eq=False)
class Fetching:
    """Copies being fetched from the host tier and the disk for a queued request.

    Attributes:
        nodes: the nodes of the copies, of pages and then perhaps of a state; the last one is locked.
        from_disk: the nodes with only a copy on disk.
        staged: the staged copy of each node, once all are on the device.
    """

    nodes: list[Node]
    from_disk: set[Node]
    staged: Sequence[Any] = ()

    @property
    def state(self) -> Node | None:
        """The state among the nodes, or None."""
        return self.nodes[-1] if self.nodes[-1].is_state else None


@dataclass(slots=True, eq=False)
class Queued:
    """The state of a request in the waiting queue.

    Attributes:
        joined: the last tick planned before it joined the queue; updated after a preemption.
        uncached: tokens to compute, estimated when it joined.
        prefix_nodes: the nodes of its cached prefix at the last lookup.
        fetching: its copies being fetched or staged.
        shared: the tokens shared with other requests, by their ids; see `waiting`.
        fetchable: False after the device had no room for its staged copies.
    """

    joined: int = 0
    uncached: int = 0
    prefix_nodes: list[Node] = field(default_factory=list)
    fetching: Fetching | None = None
    fetchable: bool = True
    shared: dict[int, int] = field(default_factory=dict)
