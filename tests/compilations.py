"""What JAX compiles, as JAX itself tells it."""

import jax

COMPILED = "/jax/core/compile/backend_compile_duration"


def listen() -> list[str]:
    """Every tracing, lowering and compilation from now on, in the whole process."""
    events: list[str] = []

    def hear(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.startswith("/jax/core/compile/"):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(hear)  # there is no public way to remove it
    return events
