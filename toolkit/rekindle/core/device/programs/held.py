"""The compiled programs of an engine, and those that are still being made."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from rekindle.core.buckets import Bucket
from rekindle.core.concurrency.progress import Progress
from rekindle.core.device.programs.executables import Executables
from rekindle.core.device.programs.lowering import Key
from rekindle.core.device.programs.readiness import Readiness
from rekindle.core.markup import quantity
from rekindle.core.store.restore_report import RestoreReport
from rekindle.core.store.validity import shorten


@dataclass(frozen=True, slots=True)
class HeldPrograms:
    """The programs of one engine. Any thread may ask.

    Attributes:
        executables: the compiled programs, of each place on which lanes are.
        preparing: a future of each program that is made ahead of need, done when that is ready.
        found: what was found of earlier sessions, the programs that are still being loaded aside.
        workspace_bytes: what the largest step needs while it runs on all devices, as it was reckoned with.
    """

    executables: tuple[Executables, ...]
    preparing: Sequence[Future[None]]
    found: RestoreReport
    workspace_bytes: int

    def __len__(self) -> int:
        return sum(map(len, self.executables))

    @property
    def loads(self) -> int:
        """The number that were loaded from the store."""
        return sum(each.making.loads for each in self.executables)

    @property
    def compilations(self) -> int:
        """The number that were compiled."""
        return sum(each.making.compilations for each in self.executables)

    @property
    def unexpected(self) -> int:
        """The number that were compiled and should have been ready."""
        return sum(each.making.unexpected for each in self.executables)

    def restored(self) -> RestoreReport:
        """Return what was found of earlier sessions."""
        misses = [miss for each in self.executables for miss in tuple(each.making.misses.values()) if miss]
        missed = {part: shorten(pair) for miss in misses for part, pair in miss.items()}
        differences = self.found.differences | missed
        return replace(self.found, programs=self.loads, compiled=self.compilations, differences=differences)

    def readiness(self) -> Readiness:
        """Return how many of the programs that are made ahead of need are ready."""
        missed = any(each.making.misses for each in self.executables)
        return Readiness.of(self.preparing, compiled=missed or self.compilations > 0)

    def awaited(self) -> Progress | None:
        """Return which program the engine waits for, and how many are ready; None if for none."""
        key = next((each.awaited for each in self.executables if each.awaited is not None), None)
        if key is None:
            return None
        programs = self.readiness()
        total = programs.wanted if programs.coming else None
        ready = programs.ready if programs.coming else len(self)
        unit = "program ready" if (total or ready) == 1 else "programs ready"
        return Progress(f"waiting for a program ({_room_of(key)})", ready, total, unit)

    def stored(self) -> list[Future[None]]:
        """Return futures that are done once all programs that were compiled are stored."""
        return [each.idle() for each in self.executables]

    def workspace(self, devices: int) -> int:
        """Return the bytes that the largest step needs on all devices, measured as soon as it is ready."""
        measured = self.executables[0].workspace() if self.readiness().ready == self.readiness().wanted else None
        return self.workspace_bytes if measured is None else measured * devices


def _room_of(key: Key) -> str:
    """Return the work that a program has room for, in words for users."""
    if not isinstance(key, Bucket):
        return key
    room = [f"prompts of up to {key.prefill_tokens:,} tokens"] if key.prefill_tokens else []
    steps = "a step" if key.steps == 1 else f"{key.steps} steps"
    room += [f"{steps} of up to {quantity(key.decode_rows, 'request')}"] if key.decode_rows else []
    return " and ".join(room)
