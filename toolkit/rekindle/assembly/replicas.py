"""Interfaces of lanes and programs to a session, in this process or in the processes of `rekindle.replicas`."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rekindle.assembly.programs.restore_report import RestoreReport
from rekindle.assembly.routing.lane_requests import LaneView
from rekindle.core.concurrency.progress import Progress
from rekindle.core.device.programs.readiness import Readiness
from rekindle.core.messages import Message
from rekindle.core.scheduler.stats import SchedulerStats
from rekindle.formats.checkpoints.weights import Weights
from rekindle.formats.weight_file import Stamp

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadWeights:
    """Weights ready for use.

    Attributes:
        payload: the weights for `NewWeights`.
        digest: the digest of their content.
        stamps: the stamps of the files; empty for arrays.
    """

    payload: list[Any]
    digest: str
    stamps: Mapping[Path, Stamp] = field(default_factory=dict)


class LaneState(LaneView, Protocol):
    """The scheduler of a lane in the view of its session. Thread-safe."""

    @property
    def stats(self) -> SchedulerStats:
        """Counters of the scheduler."""

    def look(self, at: Callable[[Any], T]) -> T:
        """Return the result of `at` for the prefix trees of the lane, one tree per group of devices."""


class ProgramsView(Protocol):
    """The compiled programs of an engine in the view of its session, implemented by `EnginePrograms`. Thread-safe."""

    def __len__(self) -> int: ...
    @property
    def preparing(self) -> Sequence[Future[None]]:
        """A future for each program prepared ahead of use."""

    @property
    def loads(self) -> int:
        """Number of programs loaded from the store."""

    @property
    def compilations(self) -> int:
        """Number of programs compiled."""

    @property
    def unexpected(self) -> int:
        """Number of programs compiled on demand that should have been ready."""

    def restored(self) -> RestoreReport:
        """Return the report on state restored from earlier sessions."""

    def readiness(self) -> Readiness:
        """Return the number of programs ready, of all prepared ahead of use."""

    def awaited(self) -> Progress | None:
        """Return the progress of the program that the engine waits for; None if it waits for none."""

    def stored(self) -> Sequence[Future[None]]:
        """Return futures that complete once all compiled programs are stored."""

    def workspace(self, devices: int) -> int:
        """Return the bytes of temporary memory of the largest step, on all devices."""


class Replicas(Protocol):
    """The processes of an engine's lanes, if other processes compute them; `rekindle.replicas` implements it."""

    @property
    def stuck(self) -> str | None:
        """A stuck tick of a replica, as text; None if no tick is stuck."""

    def load(self, weights: Weights) -> ReadWeights:
        """Let all replicas read weights of the same structure."""

    async def listen(self, post: Callable[[Message], None]) -> None:
        """Post messages from the replicas, as `ToLane`, while the engine serves."""
