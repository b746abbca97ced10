"""The compiled and pending programs of an engine."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from rekindle.assembly.programs.restore_report import RestoreReport
from rekindle.core.concurrency.progress import Progress
from rekindle.core.device.programs.executables import Executables
from rekindle.core.device.programs.functions import DeviceProgram, Key
from rekindle.core.device.programs.readiness import Readiness
from rekindle.core.models.inspection.inputs import Look
from rekindle.core.store.validity import shorten
from rekindle.core.words import quantity


@dataclass(frozen=True, slots=True)
class EnginePrograms:
    """The programs of one engine. Thread-safe.

    Attributes:
        executables: the compiled programs of each lane place.
        preparing: a future for each program prepared in advance, done when the program is ready.
        restored_at_open: the state restored from earlier sessions, without programs loaded later.
        workspace_bytes: the estimated temporary bytes of the largest step, on all devices together.
        requested: the keys of further programs.
    """

    executables: tuple[Executables, ...]
    preparing: list[Future[None]]
    restored_at_open: RestoreReport
    workspace_bytes: int
    requested: set[Key] = field(default_factory=set)

    def __len__(self) -> int:
        return sum(map(len, self.executables))

    @property
    def loads(self) -> int:
        """The number of programs loaded from the store."""
        return sum(each.builder.loads for each in self.executables)

    @property
    def compilations(self) -> int:
        """The number of compiled programs."""
        return sum(each.builder.compilations for each in self.executables)

    @property
    def unexpected(self) -> int:
        """The number of programs compiled though they should have been ready."""
        return sum(each.builder.unexpected for each in self.executables)

    def restored(self) -> RestoreReport:
        """Return the state restored from earlier sessions so far."""
        misses = [miss for each in self.executables for miss in tuple(each.builder.misses.values()) if miss]
        missed = {part: shorten(pair) for miss in misses for part, pair in miss.items()}
        at_open, loads, pending = self.restored_at_open, self.loads, self.readiness().pending
        return replace(
            at_open,
            programs=loads,
            compiled=self.compilations,
            to_compile=max(0, pending - max(0, at_open.stored - loads)),
            differences=at_open.differences | missed,
        )

    def prepare(self, keys: Sequence[Key]) -> None:
        """Prepare more programs in quiet times, unless they were requested before."""
        new = [key for key in keys if key not in self.requested]
        self.requested.update(new)
        self.preparing.extend(ready for each in self.executables for ready in each.prepare(new, patient=True))

    def readiness(self) -> Readiness:
        """Return the readiness of the programs prepared in advance."""
        missed = any(each.builder.misses for each in self.executables)
        return Readiness.of(self.preparing, compiled=missed or self.compilations > 0)

    def awaited(self) -> Progress | None:
        """Return the progress of the program awaited by the engine, or None without one."""
        key = next((each.awaited for each in self.executables if each.awaited is not None), None)
        if key is None:
            return None
        programs = self.readiness()
        total = programs.total if programs.pending else None
        ready = programs.ready if programs.pending else len(self)
        unit = "program ready" if (total or ready) == 1 else "programs ready"
        return Progress(f"waiting for a program ({_capacity_of(key)})", ready, total, unit)

    def stored(self) -> list[Future[None]]:
        """Return futures, all done once every compiled program is stored."""
        return [each.idle() for each in self.executables]

    def workspace(self, devices: int) -> int:
        """Return the temporary bytes of the largest step on all devices, measured as soon as it is ready."""
        measured = self.executables[0].workspace() if self.readiness().ready == self.readiness().total else None
        return self.workspace_bytes if measured is None else measured * devices


def _capacity_of(key: Key) -> str:
    """Describe the capacity of a program for users."""
    if isinstance(key, DeviceProgram):
        return key.name
    if isinstance(key, Look):
        return f"a look at up to {key.tokens:,} tokens"
    parts = [f"prompts of up to {key.prefill_tokens:,} tokens"] if key.prefill_tokens else []
    parts += [f"a step of up to {quantity(key.decode_rows, 'request')}"] if key.decode_rows else []
    return " and ".join(parts)
