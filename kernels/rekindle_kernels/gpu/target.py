"""Target device of traced kernels: this process's device, another one, or Pallas's interpreter."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from rekindle_kernels.devices import default_device
from rekindle_kernels.gpu.tuning import Tuning, tuning


@dataclass(frozen=True, slots=True)
class Target:
    """The device of a traced kernel.

    Attributes:
        device_kind: `jax.Device.device_kind`, the key of the tuning.
        interpret: whether Pallas's interpreter runs the kernel, on any platform.
        trial: an experimental tuning in place of the device's tuning; None for none.
    """

    device_kind: str = ""
    interpret: bool = False
    trial: Tuning | None = None

    def tuning(self) -> Tuning:
        """Return the tile sizes for the device."""
        return self.trial or tuning(self.device_kind)


_current: ContextVar[Target | None] = ContextVar("target", default=None)


@contextmanager
def tracing_for(target: Target) -> Iterator[None]:
    """Trace kernels for `target` in this thread, within a `with` block. Functions are not traced again."""
    token = _current.set(target)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Target:
    """Return the target of `tracing_for`, else JAX's default GPU, else a target without a device kind."""
    if (target := _current.get()) is not None:
        return target
    device = default_device()
    return Target(device.device_kind if device.platform == "gpu" else "")
