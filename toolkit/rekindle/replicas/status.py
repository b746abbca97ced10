"""State of a replica, as sent to its sessions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.assembly.deployment import Deployment
from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.assembly.loading.identity import Part
from rekindle.assembly.programs.restore_report import RestoreReport
from rekindle.assembly.thread import EngineThread
from rekindle.core.concurrency.progress import Progress
from rekindle.core.device.programs.readiness import Readiness
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.stats import SchedulerStats


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The state of a replica at one moment.

    Attributes:
        scheduler: the counters of its scheduler.
        stuck: the description of a stuck tick; None if the replica is not stuck.
        programs, loads, compilations, unexpected: the numbers of its programs, as in `EnginePrograms`.
        readiness: the readiness of the programs prepared in advance.
        awaited: the progress of an awaited program; None if there is none.
        workspace: the bytes for its largest step.
    """

    scheduler: SchedulerStats
    stuck: str | None
    programs: int
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
            programs=len(programs),
            loads=programs.loads,
            compilations=programs.compilations,
            unexpected=programs.unexpected,
            readiness=programs.readiness(),
            awaited=programs.awaited(),
            workspace=programs.workspace(loaded_engine.deployment.devices),
        )


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """The facts of a replica.

    Attributes:
        model, digest: the model and the digest of its recipe.
        limits, settings, deployment: the facts of its engine, as in `LoadedEngine`.
        restored: the state restored from earlier sessions.
        status: its current state.
        since: the start of its process, in seconds since the epoch.
        host: the name of its machine.
        process: the process id.
        sessions: the number of attached sessions.
        weights_version: the number of its weights; above 0 after `update_weights`.
        weights_digest: the digest of their content.
        identity: all content that decides its answers.
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
    weights_version: int
    weights_digest: str
    identity: Mapping[Part, str]


@dataclass(frozen=True, slots=True)
class CachedPage:
    """A page of a replica's prefix cache.

    Attributes:
        parent: the index of the preceding page in the same list; None for the first page of a prefix.
        namespace: the namespace of the prefix.
        key: the key of the page, see `page_key`.
    """

    parent: int | None
    namespace: str
    key: bytes


@dataclass(frozen=True, slots=True)
class AttachReply:
    """The reply of a replica to an attaching session.

    Attributes:
        number: the number of the session in the replica.
        about: the facts of the replica.
        pages: the cached pages, parents before children.
    """

    number: int
    about: ReplicaFacts
    pages: tuple[CachedPage, ...]
