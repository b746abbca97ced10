"""Display of a session: its device, sizes, memory and current state."""

from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from rekindle import markup
from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.assembly.stats import cached_suffix
from rekindle.core.scheduler.stats import SchedulerStats
from rekindle.core.words import quantity, size_text
from rekindle.results.facts.stats import prompt_shares

if TYPE_CHECKING:
    from rekindle.formats.checkpoints.model_facts import ModelFacts

OPTIONAL: Final = ("states", "adapters")
"""Memory left out of a repr while there is none."""
ASLEEP: Final = "asleep"
"""The state of an engine without weights and pages."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a session in bytes (except `devices` and `tokens`), from `session.memory`.

    Attributes:
        weights: the weights on all devices.
        workspace: the scratch memory of the largest step, as reported by the compiler; an upper bound until this step
            is compiled.
        pool: all pages on all devices, in use or free.
        devices: the number of devices; each holds an equal part of weights, workspace and pool.
        token: the pool memory per token of context.
        tokens: the capacity of the pool, in tokens of context.
        host, host_limit: the copies of cached pages and states in host memory, and their limit.
        disk, disk_limit: the cached pages and states of this model on disk, and the limit for those of all models.
        states: the states of running requests on all devices, for a model whose layers keep one; 0 for others.
        adapters: the room for adapters on all devices, in use or free; 0 before the first one.
    """

    weights: int
    workspace: int
    pool: int
    devices: int
    token: int
    tokens: int
    host: int
    host_limit: int
    disk: int
    disk_limit: int
    states: int = 0
    adapters: int = 0

    @classmethod
    def of(cls, loaded_engine: LoadedEngine, *, asleep: bool, adapters: int = 0) -> "Memory":
        """Return the current memory of an engine; one that is asleep has only adapters on its devices."""
        limits, counts, deployment = loaded_engine.limits, loaded_engine.stats().scheduler, loaded_engine.deployment
        page, state, groups = limits.pool.page_bytes, limits.pool.state_bytes, limits.groups
        awake = int(not asleep)
        return cls(
            weights=awake * deployment.copies * deployment.weight_bytes,
            workspace=loaded_engine.programs.workspace(deployment.devices),
            pool=awake * groups * limits.pool.num_pages * page,
            devices=deployment.devices,
            token=page // limits.pool.page_size,
            tokens=groups * limits.pool.tokens,
            host=counts.host_pages * page + counts.host_states * state,
            host_limit=groups * limits.pool.host_pages * page,
            disk=counts.disk_pages * page + counts.disk_states * state,
            disk_limit=loaded_engine.settings.disk_cache_bytes if limits.pool.snapshots else 0,
            states=awake * groups * (limits.max_running + 1) * state,
            adapters=adapters,
        )

    def facts(self) -> dict[str, str | None]:
        """Return the memory as text for cards, by label; None for an absent tier."""
        on_each = ", ".join(f"{size_text(size)} for {name}" for name, size in self.on_each.items())
        return {
            "weights": size_text(self.weights),
            "workspace": size_text(self.workspace),
            "pool": f"{size_text(self.pool)} for {quantity(self.tokens, 'token')}",
            "states": f"{size_text(self.states)} of running requests" if self.states else None,
            "adapters": size_text(self.adapters) if self.adapters else None,
            f"on each of {self.devices} devices": on_each if self.devices > 1 else None,
            "host memory": self._of_limit(self.host, self.host_limit),
            "disk": self._of_limit(self.disk, self.disk_limit),
        }

    @property
    def on_each(self) -> dict[str, int]:
        """Bytes of weights, workspace and pool per device, by these names."""
        sizes = {"weights": self.weights, "workspace": self.workspace, "pool": self.pool}
        return {name: size // self.devices for name, size in sizes.items()}

    def _of_limit(self, used: int, limit: int) -> str | None:
        return f"{size_text(used)} of {size_text(limit)}" if limit else None

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        rows = [(name, value) for name, value in self.facts().items() if value is not None]
        return markup.bundle(repr(self), markup.card("Memory", "", markup.table(rows)))

    def __repr__(self) -> str:
        names = [field.name for field in fields(self) if field.name not in OPTIONAL or getattr(self, field.name)]
        sizes = {name: size_text(getattr(self, name)) for name in names}
        rows = sizes | {"devices": f"{self.devices:,}", "tokens": f"{self.tokens:,}"}
        return "\n".join(f"{name:10}  {value}" for name, value in rows.items())


def facts_of(loaded_engine: LoadedEngine) -> "ModelFacts":
    """Return the facts about the model of an engine, and about its weight files as they were opened."""
    from rekindle.assembly.counts import parameters
    from rekindle.formats.checkpoints.model_facts import ModelFacts

    checkpoint, form = loaded_engine.checkpoint, loaded_engine.deployment.form
    kinds = Counter(kind for _, kind in form.kinds).most_common(1)
    stamps = checkpoint.stamps.values()
    return ModelFacts(
        checkpoint.family,
        parameters(checkpoint.config),
        kinds[0][0] if kinds else form.dtype.name,
        checkpoint.files[0].suffix.removeprefix(".") if stamps else "",
        sum(size for _, _, size, _ in stamps),
        loaded_engine.weights_digest,
        max((time for *_, time in stamps), default=0) / 1e9,
        checkpoint.uses.generates and not checkpoint.uses.both_ways,
    )


@dataclass(frozen=True, slots=True)
class SessionCard:
    """Representations of a session: the repr, the text and the HTML card.

    Attributes:
        name: the name of the model, as passed to `open`.
        loaded_engine: the engine of the session.
        error: the error that ended the session; None while it is open.
        state: "paused", "asleep" or a description of a stuck tick; None while the engine runs.
        adapters: the bytes of the room for adapters.
    """

    name: str
    loaded_engine: LoadedEngine
    error: Exception | None
    state: str | None
    adapters: int = 0

    def line(self) -> str:
        """Return the session on one line."""
        if self.error is not None:
            return f"<rekindle.Session {self.name}: {self.error}>"
        deployment = self.loaded_engine.deployment
        counts, state = self._counts, f"{self.state}, " if self.state else ""
        preparing = f"; {words}" if (words := self.loaded_engine.programs.readiness().summary) else ""
        free = f"{self._free()} pages free{cached_suffix(counts)}"
        return (
            f"<rekindle.Session {self.name} ({deployment.dtypes} on {deployment}): "
            f"{state}{counts.running} running, {counts.waiting} waiting, {free}{preparing}>"
        )

    def text(self) -> str:
        """Return the session as text: its line, the model and the memory."""
        if self.error is not None:
            return self.line()
        rows = {"model": self._model(), "memory": self._memory.facts()}
        return "\n".join([self.line(), *(f"  {name:8}{_joined(facts)}" for name, facts in rows.items())])

    def html(self) -> str:
        """Return the HTML card."""
        if self.error is not None:
            return markup.card("Session", self.name, markup.passage(str(self.error)))
        counts = self._counts
        now = {
            "engine": self.state,
            "running": f"{counts.running:,}",
            "waiting": f"{counts.waiting:,}",
            "pages free": self._free() + cached_suffix(counts),
            "generated": quantity(counts.generated_tokens, "token"),
            "meanwhile": self.loaded_engine.programs.readiness().summary or None,
        }
        memory = self._memory.facts()
        parts = (*map(markup.facts, (now, self._model(), memory)), prompt_shares(counts))
        return markup.card("Session", self.name, *parts)

    @property
    def _counts(self) -> SchedulerStats:
        return self.loaded_engine.stats().scheduler

    @property
    def _memory(self) -> Memory:
        return Memory.of(self.loaded_engine, asleep=self.state == ASLEEP, adapters=self.adapters)

    def _free(self) -> str:
        """Return the numbers of free pages and of all pages as text."""
        return f"{self._counts.free_pages:,} of {self._counts.pages:,}"

    def _model(self) -> dict[str, str | None]:
        """Return the devices, dtype, limits and programs as text, by label."""
        from rekindle.results.facts.traffic import Wire

        loaded_engine = self.loaded_engine
        limits = loaded_engine.limits
        programs, wire = (
            loaded_engine.programs.readiness(),
            Wire.of(loaded_engine.model, loaded_engine.deployment.tensor),
        )
        wire_bytes = size_text(wire.per_token + wire.per_sample)
        return {
            "on": ", ".join(filter(None, [str(loaded_engine.deployment), loaded_engine.deployment.spread])),
            "sending": None if wire.devices == 1 else f"{wire_bytes} from each device to decode a token",
            "with": loaded_engine.deployment.kernels or None,
            "computes in": loaded_engine.deployment.numbers,
            "context": quantity(limits.max_context, "token"),
            "serves": f"{quantity(limits.groups * limits.max_running, 'request')} at once",
            "programs": f"{programs.ready} of {programs.total} ready"
            if programs.total and not programs.summary
            else None,
        }


def _joined(facts: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
