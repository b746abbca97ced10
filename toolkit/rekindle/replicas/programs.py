"""Programs of all replicas of a session, from the replicas' statuses."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from rekindle.assembly.programs.restore_report import RestoreReport
from rekindle.core.concurrency.progress import Progress
from rekindle.core.device.programs.readiness import Readiness
from rekindle.replicas.remote import RemoteLane
from rekindle.replicas.status import ReplicaStatus


class ReplicaPrograms:
    """The programs of all replicas; see `rekindle.assembly.replicas.ProgramsView`.

    Args:
        lanes: the lanes of the replicas.
        actors: the replicas.
        restore_report: the report of restored state, apart from programs.
    """

    def __init__(self, lanes: Sequence[RemoteLane], actors: Sequence[Any], restore_report: RestoreReport):
        self._lanes, self._actors, self._restore_report = lanes, actors, restore_report

    def __len__(self) -> int:
        return sum(status.programs for status in self._statuses)

    @property
    def preparing(self) -> Sequence[Future[None]]:
        """A future for each replica, done when all its programs are ready and stored."""
        return [actor.wait_for_programs.remote().future() for actor in self._actors]

    @property
    def loads(self) -> int:
        """The number of programs loaded from stores."""
        return sum(status.loads for status in self._statuses)

    @property
    def compilations(self) -> int:
        """The number of compiled programs."""
        return sum(status.compilations for status in self._statuses)

    @property
    def unexpected(self) -> int:
        """The number of programs compiled on demand that should have been ready."""
        return sum(status.unexpected for status in self._statuses)

    def restored(self) -> RestoreReport:
        """Return the report of restored state."""
        return replace(self._restore_report, programs=self.loads, compiled=self.compilations)

    def readiness(self) -> Readiness:
        """Return the readiness of the programs prepared in advance, over all replicas."""
        each = [status.readiness for status in self._statuses]
        return Readiness(
            ready=sum(one.ready for one in each),
            total=sum(one.total for one in each),
            pending=sum(one.pending for one in each),
            compiled=any(one.compiled for one in each),
        )

    def awaited(self) -> Progress | None:
        """Return the progress of a program awaited by a replica; None if no replica waits."""
        return next((status.awaited for status in self._statuses if status.awaited is not None), None)

    def stored(self) -> Sequence[Future[None]]:
        """Return no futures, since `preparing` includes storing."""
        return []

    def workspace(self, devices: int) -> int:
        """Return the workspace of the largest step in bytes, on all devices of all replicas."""
        return sum(status.workspace for status in self._statuses)

    @property
    def _statuses(self) -> list[ReplicaStatus]:
        return [lane.status for lane in self._lanes if isinstance(lane.status, ReplicaStatus)]
