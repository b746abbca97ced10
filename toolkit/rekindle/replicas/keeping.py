"""Listing and stopping replicas from outside their sessions."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from rekindle.core.errors import RekindleError
from rekindle.replicas import cluster
from rekindle.replicas.status import ReplicaFacts

ANSWER_SECONDS = 10.0
"""Seconds to wait for an answer of a replica; a replica does not answer while it opens its model."""


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A replica in a cluster.

    Attributes:
        name: the name of the replica.
        about: its facts; None without an answer.
        trouble: the reason for a missing answer.
    """

    name: str
    about: ReplicaFacts | None
    trouble: str = ""


def replicas(address: str | None) -> Iterator[ReplicaInfo]:
    """Yield all replicas of a cluster.

    Raises:
        ConfigError: there is no such cluster, or Ray is not installed.
    """
    cluster.connect(address, lasting=True)
    for name in cluster.replica_names():
        actor = cluster.find(name)
        if actor is None:  # ended meanwhile
            continue
        try:
            (about,) = cluster.answers([actor.about.remote()], seconds=ANSWER_SECONDS)
            yield ReplicaInfo(name, about)
        except TimeoutError:
            yield ReplicaInfo(name, None, "it is opening its model, or waits for resources")
        except RekindleError as error:
            yield ReplicaInfo(name, None, str(error))


def stop(name: str) -> bool:
    """Stop a replica of the connected cluster; return whether it existed.

    The replica has some seconds to write its cached prefixes to disk.
    """
    actor = cluster.find(name)
    if actor is None:
        return False
    with suppress(RekindleError, TimeoutError):
        cluster.answers([actor.close.remote()], seconds=ANSWER_SECONDS)
    cluster.kill(actor)
    return True
