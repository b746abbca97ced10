"""Looking after replicas from outside of their sessions: what there are, and stopping them."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from rekindle.core.errors import RekindleError
from rekindle.replicas import cluster
from rekindle.replicas.status import About

ANSWER_SECONDS = 10.0
"""How long a replica has to answer; one that opens its model cannot."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A replica of the cluster.

    Attributes:
        name: the one that it is found by.
        about: the facts of it; None if it does not answer.
        trouble: why it does not answer, in words.
    """

    name: str
    about: About | None
    trouble: str = ""


def replicas(address: str | None) -> Iterator[Kept]:
    """Yield all replicas of a cluster.

    Raises:
        ConfigError: there is no such cluster, or Ray is not installed.
    """
    cluster.connect(address, lasting=True)
    for name in cluster.named():
        actor = cluster.find(name)
        if actor is None:  # it has ended meanwhile
            continue
        try:
            (about,) = cluster.answers([actor.about.remote()], seconds=ANSWER_SECONDS)
            yield Kept(name, about)
        except TimeoutError:
            yield Kept(name, None, "it is opening its model, or waits for resources")
        except RekindleError as error:
            yield Kept(name, None, str(error))


def stop(name: str) -> bool:
    """Stop a replica of the cluster that this process is connected to; return whether there was one.

    It has some seconds to write its cached prefixes to disk.
    """
    actor = cluster.find(name)
    if actor is None:
        return False
    with suppress(RekindleError, TimeoutError):
        cluster.answers([actor.close.remote()], seconds=ANSWER_SECONDS)
    cluster.kill(actor)
    return True
