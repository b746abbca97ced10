"""All replicas of one session."""

import secrets
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from os import PathLike
from typing import Any

import anyio

from rekindle.assembly.replicas import ReadWeights
from rekindle.core.errors import ConfigError, ReplicaLost
from rekindle.formats.checkpoints.weights import Weights
from rekindle.replicas import cluster
from rekindle.replicas.link import LoadedWeights, Post, ReplicaLink
from rekindle.replicas.recipe import resolve_model
from rekindle.replicas.remote import RemoteLane
from rekindle.replicas.status import ReplicaStatus


class ReplicaGroup:
    """The replicas of a session; see `rekindle.assembly.replicas.Replicas`.

    Args:
        links: the link to each replica.
        lanes: the lane of each replica.
        keep: whether the replicas outlive the session.
    """

    def __init__(self, links: Sequence[ReplicaLink], lanes: Sequence[RemoteLane], keep: bool):
        self._links, self._lanes, self._keep = links, lanes, keep
        self._numbers = count(secrets.randbits(60))  # random, since other sessions may share the replicas

    @property
    def stuck(self) -> str | None:
        """Description of a stuck tick of a replica; None if no replica is stuck."""
        for number, lane in enumerate(self._lanes):
            if isinstance(lane.status, ReplicaStatus) and lane.status.stuck is not None:
                return f"lane {number} {lane.status.stuck}" if len(self._lanes) > 1 else lane.status.stuck
        return None

    def load(self, weights: Weights) -> ReadWeights:
        """Make all replicas read weights; lost replicas read them on their return.

        Raises:
            ConfigError: the replicas read different weights, since their machines have different files of this name.
            ModelError: the weights cannot be read, or have another structure.
            ReplicaLost: all replicas are lost.
        """
        # Arrays are put into Ray's store once, for all replicas and for their restarts.
        source = resolve_model(weights) if isinstance(weights, str | PathLike) else cluster.put(dict(weights))
        entry = LoadedWeights(next(self._numbers), source)
        finalizer = weakref.finalize(entry, _forget, [link.actor for link in self._links], entry.number)
        finalizer.atexit = False
        losses: list[ReplicaLost] = []
        digests: list[str] = []
        for call in [link.actor.load.remote(entry.number, entry.source) for link in self._links]:
            try:
                digests += cluster.answers([call])
            except ReplicaLost as error:
                losses.append(error)
        if len(losses) == len(self._links):  # no replica has checked the weights
            raise losses[-1]
        if len(set(digests)) > 1:
            raise ConfigError(
                f"{weights!r:.80} is not the same on all machines of the replicas: copy the files to all of them"
            )
        entry.digest = digests[0]
        return ReadWeights([[entry] for _ in self._lanes], entry.digest)

    async def listen(self, post: Post) -> None:
        """Post the messages of the replicas, as `ToLane`, while the engine serves."""
        async with anyio.create_task_group() as tasks:
            for link, lane in zip(self._links, self._lanes, strict=True):
                tasks.start_soon(link.serve, lane, post)

    def close(self) -> None:
        """Detach from kept replicas, and kill the others."""
        for link in self._links:
            with suppress(Exception):  # the cluster may be gone, or end with this process
                if self._keep:
                    link.detach()
                else:
                    cluster.kill(link.actor)


def _forget(actors: Sequence[Any], number: int) -> None:
    """Make replicas delete unused weights."""
    for actor in actors:
        with suppress(Exception):
            actor.forget.options(num_returns=0).remote(number)
