"""The replicas of one session, together."""

import secrets
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from os import PathLike
from typing import Any

import anyio

from rekindle.core.checkpoints.weights import Weights
from rekindle.core.errors import ReplicaLost
from rekindle.core.routing.remote import RemoteLane
from rekindle.replicas import cluster
from rekindle.replicas.link import Link, Loaded, Post
from rekindle.replicas.recipe import located
from rekindle.replicas.status import ReplicaStatus


class Group:
    """The replicas of a session; see `rekindle.core.engine.replicas.Replicas`.

    Args:
        links: the link to each.
        lanes: the lane of each.
        keep: whether they stay when the session ends.
    """

    def __init__(self, links: Sequence[Link], lanes: Sequence[RemoteLane], keep: bool):
        self._links, self._lanes, self._keep = links, lanes, keep
        self._numbers = count(secrets.randbits(60))  # other sessions may have the same replicas

    @property
    def stuck(self) -> str | None:
        """The tick that one of them is stuck in, in words; None if none is."""
        for number, lane in enumerate(self._lanes):
            if isinstance(lane.status, ReplicaStatus) and lane.status.stuck is not None:
                return f"lane {number} {lane.status.stuck}" if len(self._lanes) > 1 else lane.status.stuck
        return None

    def load(self, weights: Weights) -> list[Any]:
        """Have all replicas read weights; those that are lost do so when they are back.

        Raises:
            ModelError: the weights cannot be read, or have another structure.
            ReplicaLost: all replicas are lost.
        """
        # Arrays are in Ray's store once for all replicas, also for one that is started again.
        source = located(weights) if isinstance(weights, str | PathLike) else cluster.stored(dict(weights))
        loaded = Loaded(next(self._numbers), source)
        gone = weakref.finalize(loaded, _forget, [link.actor for link in self._links], loaded.number)
        gone.atexit = False
        lost: list[ReplicaLost] = []
        for call in [link.actor.load.remote(loaded.number, loaded.source) for link in self._links]:
            try:
                cluster.answers([call])
            except ReplicaLost as error:
                lost.append(error)
        if len(lost) == len(self._links):  # nobody knows whether they can be read
            raise lost[-1]
        return [[loaded] for _ in self._lanes]

    async def listen(self, post: Post) -> None:
        """Post what comes from the replicas, as `ToLane`, for as long as the engine serves."""
        async with anyio.create_task_group() as tasks:
            for link, lane in zip(self._links, self._lanes, strict=True):
                tasks.start_soon(link.serve, lane, post)

    def close(self) -> None:
        """Let kept replicas go, and end the others."""
        for link in self._links:
            with suppress(Exception):  # of a cluster that is gone, or that ends with this process
                if self._keep:
                    link.detach()
                else:
                    cluster.kill(link.actor)


def _forget(actors: Sequence[Any], number: int) -> None:
    """Have replicas delete weights that nobody will use."""
    for actor in actors:
        with suppress(Exception):
            actor.forget.options(num_returns=0).remote(number)
