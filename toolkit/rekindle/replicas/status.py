"""How a replica stands, as it tells its sessions."""

from dataclasses import dataclass
from typing import Any

from rekindle.core.concurrency.progress import Progress
from rekindle.core.device.programs.readiness import Readiness
from rekindle.core.engine.deployment import Deployment
from rekindle.core.engine.loaded_engine import LoadedEngine
from rekindle.core.engine.thread import EngineThread
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.stats import SchedulerStats
from rekindle.core.store.restore_report import RestoreReport


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The state of a replica at one moment.

    Attributes:
        scheduler: the counters of its scheduler.
        stuck: the tick that it is stuck in, in words; None if none is.
        held, loads, compilations, unexpected: the numbers of its programs, as `HeldPrograms` has them.
        readiness: how many programs that are made ahead of need are ready.
        awaited: the program that it waits for; None if for none.
        workspace: the bytes that its largest step needs.
    """

    scheduler: SchedulerStats
    stuck: str | None
    held: int
    loads: int
    compilations: int
    unexpected: int
    readiness: Readiness
    awaited: Progress | None
    workspace: int

    @classmethod
    def of(cls, engine: EngineThread, loaded_engine: LoadedEngine) -> "ReplicaStatus":
        """Return the state of an engine now."""
        programs = loaded_engine.programs
        return cls(
            scheduler=loaded_engine.stats().scheduler,
            stuck=engine.stuck,
            held=len(programs),
            loads=programs.loads,
            compilations=programs.compilations,
            unexpected=programs.unexpected,
            readiness=programs.readiness(),
            awaited=programs.awaited(),
            workspace=programs.workspace(loaded_engine.deployment.devices),
        )


@dataclass(frozen=True, slots=True)
class About:
    """The facts of a replica.

    Attributes:
        model, digest: of its recipe.
        limits, settings, deployment: of its engine, as `LoadedEngine` has them.
        restored: what it found of earlier sessions.
        status: how it stands.
        since: when its process began, in seconds since the epoch.
        host: the machine that it is on.
        process: its number there.
        sessions: how many sessions are attached to it.
        exchanged: whether `update_weights` replaced its weights.
    """

    model: str
    digest: str
    limits: EngineLimits
    settings: Any
    deployment: Deployment
    restored: RestoreReport
    status: ReplicaStatus
    since: float
    host: str
    process: int
    sessions: int
    exchanged: bool


@dataclass(frozen=True, slots=True)
class CachedPage:
    """A page of a replica's prefix cache.

    Attributes:
        parent: the index of the page before it in the list that has it; None for the first of a prefix.
        namespace: of its prefix.
        tokens: those of the page.
    """

    parent: int | None
    namespace: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attached:
    """The answer to a session that attaches itself to a replica.

    Attributes:
        number: of the session there.
        about: what the replica is.
        pages: those that it has cached, parents before children.
    """

    number: int
    about: About
    pages: tuple[CachedPage, ...]
