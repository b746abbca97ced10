"""The memory of this machine, as the bound of a model's size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import jax

from rekindle.assembly.counts import parameters
from rekindle.assembly.devices import default_dtype, device_of, memory_of, shares_memory
from rekindle.assembly.limits.accelerators import ACCELERATORS, memory_of_kind, named
from rekindle.assembly.loading.budget import KEPT_FREE
from rekindle.core.errors import ConfigError
from rekindle.core.models.vision.tower import tower_shapes
from rekindle.core.words import quantity
from rekindle.formats.checkpoints.local.header import Header

BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of a number by its dtype."""
_FLOATS: Final = ("F16", "BF16", "F32", "FP16", "FP32")
"""Kinds of GGUF files without blocks."""


class Size(Protocol):
    """A model of a known size."""

    def bytes_with(self, tokens: int, dtype: str) -> int: ...


S = TypeVar("S", bound=Size)


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices for one model.

    Attributes:
        text: their number and kind.
        memory: their bytes of memory together; None if unknown.
        dtype: the dtype of weights, keys and values.
        packs: whether quantized blocks of GGUF files are kept, as on CPUs.
    """

    text: str
    memory: int | None
    dtype: str = "bfloat16"
    packs: bool = False

    def bytes_of(self, size: Size, tokens: int) -> int:
        """Return the bytes of a size with so many tokens."""
        return size.bytes_with(tokens, self.dtype)

    def fits(self, size: Size, tokens: int) -> bool | None:
        """Return True if a size fits with so many tokens, and a part of the memory left free; None if unknown."""
        return self.has_room(self.bytes_of(size, tokens))

    def has_room(self, count: int | None) -> bool | None:
        """Return True if so many bytes fit, and a part of the memory left free; None if one of both is unknown."""
        if self.memory is None or count is None:
            return None
        return count <= self.memory - self.memory // KEPT_FREE

    def largest(self, sizes: Sequence[S], tokens: int) -> S | None:
        """Return the last of some sizes that fits, or None."""
        return next((size for size in reversed(sizes) if self.fits(size, tokens)), None)

    def needs(self, header: Header, size: int, tokens: int) -> int | None:
        """Return the bytes of a model with so many tokens, about; None if the number of its parameters is unknown.

        Args:
            header: the facts about its files.
            size: the bytes of its weight files.
            tokens: the tokens of context.
        """
        if header.config is not None:
            of_tower = 0 if header.tower is None else sum(map(math.prod, tower_shapes(header.tower).values()))
            weights: float | None = BYTES[self.dtype] * (parameters(header.config) + of_tower)
        elif self.packs and header.numbers not in _FLOATS:
            weights = size
        else:
            bits = bits_of(header.numbers)
            weights = None if bits is None else BYTES[self.dtype] * 8 * size / bits
        states = 0 if header.config is None else header.config.state_bytes
        return (
            None if weights is None else int(weights) + BYTES[self.dtype] * header.numbers_per_token * tokens + states
        )


def bits_of(numbers: str) -> float | None:
    """Return the bits of a number of a GGUF file by its kind; None for an unknown kind."""
    import gguf

    name = numbers.upper().removeprefix("UD-")
    name = name.replace("FP", "F") if name in _FLOATS else name
    while name:
        if (kind := gguf.GGMLQuantizationType.__members__.get(name)) is not None:
            count, size = gguf.GGML_QUANT_SIZES[kind]
            return 8 * size / count
        name = name.rpartition("_")[0]  # such as Q4_K of Q4_K_M
    return None


def this_machine(dtype: str | None = None) -> Machine:
    """Return JAX's default device and all of its kind; a CPU is a single device.

    Args:
        dtype: the dtype of weights; None for the default of `open`.
    """
    first = device_of(None)
    memory = memory_of(first) or memory_of_kind(str(first.device_kind))
    if shares_memory(first):
        return Machine("this CPU", memory, dtype or default_dtype(first), packs=True)
    count = sum(each.device_kind == first.device_kind for each in jax.local_devices(backend=first.platform))
    memory = None if memory is None else count * memory
    return Machine(quantity(count, first.device_kind), memory, dtype or default_dtype(first))


def other_machine(name: str, dtype: str | None = None) -> Machine:
    """Return a machine with one accelerator, such as "T4" or "v5e-1".

    Args:
        name: the name of the accelerator.
        dtype: the dtype of weights; None for bfloat16, whose numbers take as many bytes as those of float16.

    Raises:
        ConfigError: the name is unknown.
    """
    accelerator = named(name)
    if accelerator is None:
        names = ", ".join(each.name for each in ACCELERATORS)
        raise ConfigError(f"machine must be one of {names}; got {name!r:.80}")
    return Machine(quantity(1, accelerator.name), accelerator.memory, dtype or "bfloat16")
