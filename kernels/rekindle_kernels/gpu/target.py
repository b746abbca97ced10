"""What the kernels are traced for: another device than the one here, or Pallas's interpreter."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import jax

from rekindle_kernels.gpu.tuning import Tuning, tuning


@dataclass(frozen=True, slots=True)
class Target:
    """Where a traced kernel will run.

    Attributes:
        device_kind: as `jax.Device.device_kind` gives it, for the tuning.
        interpret: by Pallas's interpreter, on any platform.
        trial: a tuning to try instead of the one that is kept for the device.
    """

    device_kind: str = ""
    interpret: bool = False
    trial: Tuning | None = None

    def tuning(self) -> Tuning:
        """How kernels are cut for it."""
        return self.trial or tuning(self.device_kind)


_current: ContextVar[Target | None] = ContextVar("target", default=None)


@contextmanager
def tracing_for(target: Target) -> Iterator[None]:
    """Inside of it this thread traces kernels for `target`; what jax has traced before stays as it was."""
    token = _current.set(target)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Target:
    """The target of `tracing_for`, else the first GPU here, else no device in particular."""
    if (target := _current.get()) is not None:
        return target
    return Target(jax.devices()[0].device_kind if jax.default_backend() == "gpu" else "")
