"""What JAX compiles, as JAX itself reports it, and the programs of an engine of this process."""

import jax

from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.assembly.programs.engine_programs import EnginePrograms

COMPILED = "/jax/core/compile/backend_compile_duration"


def listen() -> list[str]:
    """Return a list that takes every tracing, lowering and compilation of this process from now on."""
    events: list[str] = []

    def hear(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.startswith("/jax/core/compile/"):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(hear)  # there is no public way to remove it
    return events


def programs_of(loaded_engine: LoadedEngine) -> EnginePrograms:
    """Return the programs of an engine whose lanes are in this process."""
    assert isinstance(loaded_engine.programs, EnginePrograms)
    return loaded_engine.programs
