"""The memory of this machine, as the bound of a model's size."""

from dataclasses import dataclass

import jax

from rekindle.assembly.devices import device_of, memory_of, shares_memory
from rekindle.assembly.loading.budget import KEPT_FREE
from rekindle.cli.models.table import Row, Size
from rekindle.core.words import quantity


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices for one model.

    Attributes:
        text: their number and kind.
        memory: their bytes of memory together; None if unknown.
        dtype: the dtype of weights, keys and values.
    """

    text: str
    memory: int | None
    dtype: str = "bfloat16"

    def bytes_of(self, size: Size, tokens: int) -> int:
        """Return the bytes of a size with so many tokens."""
        return size.bytes_with(tokens, self.dtype)

    def fits(self, size: Size, tokens: int) -> bool | None:
        """Return True if a size fits with so many tokens, and a part of the memory left free; None if unknown."""
        if self.memory is None:
            return None
        return self.bytes_of(size, tokens) <= self.memory - self.memory // KEPT_FREE

    def largest(self, row: Row, tokens: int) -> Size | None:
        """Return the size of a family with the most parameters that fits, or None."""
        return next((size for size in reversed(row.sizes) if self.fits(size, tokens)), None)


def this_machine(dtype: str | None = None) -> Machine:
    """Return JAX's default device and all of its kind; a CPU is a single device.

    Args:
        dtype: the dtype of weights; None for the default of `open`.
    """
    first = device_of(None)
    memory = memory_of(first)
    if shares_memory(first):
        return Machine("this CPU", memory, dtype or "float32")
    count = sum(each.device_kind == first.device_kind for each in jax.local_devices(backend=first.platform))
    return Machine(quantity(count, first.device_kind), None if memory is None else count * memory, dtype or "bfloat16")
