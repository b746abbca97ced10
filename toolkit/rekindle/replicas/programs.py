"""The programs of all replicas of a session, as these told of them."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from rekindle.core.concurrency.progress import Progress
from rekindle.core.device.programs.readiness import Readiness
from rekindle.core.routing.remote import RemoteLane
from rekindle.core.store.restore_report import RestoreReport
from rekindle.replicas.status import ReplicaStatus


class ReplicaPrograms:
    """The programs of all replicas together; see `rekindle.core.engine.replicas.ProgramsView`.

    Args:
        lanes: those of the replicas.
        actors: the replicas.
        found: what the session found, the programs aside.
    """

    def __init__(self, lanes: Sequence[RemoteLane], actors: Sequence[Any], found: RestoreReport):
        self._lanes, self._actors, self._found = lanes, actors, found

    def __len__(self) -> int:
        return sum(status.held for status in self._statuses)

    @property
    def preparing(self) -> Sequence[Future[None]]:
        """A future of each replica, done when all its programs are ready and stored."""
        return [actor.precompiled.remote().future() for actor in self._actors]

    @property
    def loads(self) -> int:
        """The number that were loaded from stores."""
        return sum(status.loads for status in self._statuses)

    @property
    def compilations(self) -> int:
        """The number that were compiled."""
        return sum(status.compilations for status in self._statuses)

    @property
    def unexpected(self) -> int:
        """The number that were compiled and should have been ready."""
        return sum(status.unexpected for status in self._statuses)

    def restored(self) -> RestoreReport:
        """Return what the session found."""
        return replace(self._found, programs=self.loads, compiled=self.compilations)

    def readiness(self) -> Readiness:
        """Return how many of the programs that are made ahead of need are ready."""
        each = [status.readiness for status in self._statuses]
        return Readiness(
            ready=sum(one.ready for one in each),
            wanted=sum(one.wanted for one in each),
            coming=sum(one.coming for one in each),
            compiled=any(one.compiled for one in each),
        )

    def awaited(self) -> Progress | None:
        """Return the program that some replica waits for; None if none does."""
        return next((status.awaited for status in self._statuses if status.awaited is not None), None)

    def stored(self) -> Sequence[Future[None]]:
        """Return nothing more to wait for: `preparing` covers it."""
        return []

    def workspace(self, devices: int) -> int:
        """Return the bytes that the largest step needs on all devices, which are those of all replicas."""
        return sum(status.workspace for status in self._statuses)

    @property
    def _statuses(self) -> list[ReplicaStatus]:
        return [lane.status for lane in self._lanes if isinstance(lane.status, ReplicaStatus)]
