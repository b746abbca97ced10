"""A request in the waiting queue: its cached prefix, and the copies that it waits for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rekindle.core.scheduler.cache.nodes import Node


@dataclass(slots=True, eq=False)
class Fetching:
    """The copies that a waiting request gets from the host tier and the disk.

    Attributes:
        nodes: whose copies; the last one is locked.
        from_disk: those of them whose copy is on disk alone.
        staged: the copy of each on the device, once they are there.
    """

    nodes: list[Node]
    from_disk: set[Node]
    staged: Sequence[Any] = ()


@dataclass(slots=True, eq=False)
class Queued:
    """The standing of a request in the waiting queue.

    Attributes:
        joined: the last tick that was planned before it joined the queue, the last time that it did.
        owed: tokens that it was to compute when it joined.
        found: the nodes of its cached prefix when it was last looked for.
        fetching: what it waits for from the host tier and the disk, or has from there.
        fetchable: False after the host tier had no room to stage its pages.
    """

    joined: int = 0
    owed: int = 0
    found: list[Node] = field(default_factory=list)
    fetching: Fetching | None = None
    fetchable: bool = True
