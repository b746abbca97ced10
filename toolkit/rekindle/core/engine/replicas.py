"""Lanes and programs as a session sees them, in this process or in replicas; `rekindle.replicas` provides those."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from rekindle.core.checkpoints.weights import Weights
from rekindle.core.concurrency.progress import Progress
from rekindle.core.device.programs.readiness import Readiness
from rekindle.core.messages import Message
from rekindle.core.routing.lane_requests import LaneView
from rekindle.core.scheduler.stats import SchedulerStats
from rekindle.core.store.restore_report import RestoreReport

T = TypeVar("T")


class LaneState(LaneView, Protocol):
    """The scheduler of a lane as its session sees it. Any thread may ask."""

    @property
    def stats(self) -> SchedulerStats:
        """The counters of the scheduler."""

    def look(self, at: Callable[[Any], T]) -> T:
        """Return what `at` says of the prefix trees of the lane, one of each group of devices."""


class ProgramsView(Protocol):
    """The compiled programs of an engine as its session sees them, as `HeldPrograms` has them. Any thread may ask."""

    def __len__(self) -> int: ...
    @property
    def preparing(self) -> Sequence[Future[None]]:
        """A future of each program that is made ahead of need."""

    @property
    def loads(self) -> int:
        """The number that were loaded from the store."""

    @property
    def compilations(self) -> int:
        """The number that were compiled."""

    @property
    def unexpected(self) -> int:
        """The number that were compiled and should have been ready."""

    def restored(self) -> RestoreReport:
        """Return what was found of earlier sessions."""

    def readiness(self) -> Readiness:
        """Return how many of the programs that are made ahead of need are ready."""

    def awaited(self) -> Progress | None:
        """Return which program the engine waits for, and how many are ready; None if for none."""

    def stored(self) -> Sequence[Future[None]]:
        """Return futures that are done once all programs that were compiled are stored."""

    def workspace(self, devices: int) -> int:
        """Return the bytes that the largest step needs on all devices."""


class Replicas(Protocol):
    """The processes in which the lanes of an engine are."""

    @property
    def stuck(self) -> str | None:
        """The tick that one of them is stuck in, in words; None if none is."""

    def load(self, weights: Weights) -> list[Any]:
        """Have all of them read weights of the same structure; return what `NewWeights` is to have for each."""

    async def listen(self, post: Callable[[Message], None]) -> None:
        """Post what comes from them, as `ToLane`, for as long as the engine serves."""
