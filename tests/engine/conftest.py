"""What JAX compiles, as JAX itself tells it."""

import jax
import pytest

TOLD = ("/jax/core/compile/backend_compile_duration", "/jax/core/compile/jaxpr_trace_duration")


@pytest.fixture(scope="session")
def _listener() -> list[str]:
    events: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event in TOLD:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)  # there is no public way to remove it
    return events


@pytest.fixture
def compilations(_listener: list[str]) -> list[str]:
    """Every program that is traced or compiled from now on, in the whole process."""
    jax.clear_caches()  # or a small program that an earlier test compiled would not be compiled again
    _listener.clear()
    return _listener
