"""One model's programs in the executable store, found by what they are for."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import cast

import jax

from rekindle.device.programs.key import Build, ProgramKey, Target
from rekindle.device.programs.lowering import Key, Program, Programs, program_name
from rekindle.device.programs.store import ProgramStore, Serialized
from rekindle.models.config import ModelConfig
from rekindle.store.validity import Difference

Options = Mapping[str, str | bool | int | float]


class ProgramShelf:
    """Loads and saves the programs of one model for some devices. None of it is for an event loop's thread.

    Args:
        store: where they are kept.
        programs: how each is made.
        config: the model.
        target: what they are compiled for.
        devices: that run them; none where nothing is loaded.
        options: the compiler's.
    """

    def __init__(
        self,
        store: ProgramStore,
        programs: Programs,
        config: ModelConfig,
        target: Target,
        devices: Sequence[jax.Device] = (),
        options: Options | None = None,
    ):
        self.store = store
        self._programs = programs
        self._config = config
        self._target = target
        self._devices = devices
        self._options = options or {}

    def load(self, key: Key) -> Program | None:
        """A stored program, or None."""
        return self.store.load(self.key(key), self._devices)

    def serialize(self, program: Program) -> Serialized | None:
        """A compiled program that was not called yet, as `save` takes it; None, with a warning, if it cannot be had."""
        return self.store.serialize(cast(jax.stages.Compiled, program))

    def save(self, key: Key, program: Serialized) -> bool:
        """Store a program; whether it is there now."""
        return self.store.save(self.key(key), program)

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """Those that are not stored."""
        return [key for key in keys if not self.store.holds(self.key(key))]

    def explain(self, key: Key) -> dict[str, Difference] | None:
        """How a program's key differs from the stored one most like it; see `ProgramStore.explain`."""
        return self.store.explain(self.key(key))

    def key(self, key: Key) -> ProgramKey:
        """All that makes the program valid."""
        return ProgramKey.of(self._build, program_name(key), self._programs.statics, self._programs.arguments(key))

    @cached_property
    def _build(self) -> Build:
        """Made in the first thread that loads or saves: jax keeps some of its configuration for each thread."""
        return Build.of(self._config, self._target, self._options)
