"""Accelerators of notebooks' machines by name, with their memory for JAX."""

from dataclasses import dataclass
from typing import Final

_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU, or a chip of a TPU.

    Attributes:
        name: its name for people.
        kinds: its names as a `device_kind` of JAX.
        memory: its bytes for JAX's programs: of a GPU, the three quarters that JAX reserves by default.
    """

    name: str
    kinds: tuple[str, ...]
    memory: int


ACCELERATORS: Final = (
    Accelerator("T4", ("Tesla T4",), int(0.75 * 14.56 * _GIB)),
    Accelerator("v5e-1", ("TPU v5 lite", "TPU v5e"), int(15.75 * _GIB)),
    Accelerator("L4", ("NVIDIA L4",), int(0.75 * 22.03 * _GIB)),
    Accelerator("A100", ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"), int(0.75 * 39.42 * _GIB)),
    Accelerator("v6e-1", ("TPU v6 lite", "TPU v6e"), int(31.25 * _GIB)),
    Accelerator("A100-80GB", ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"), int(0.75 * 79.25 * _GIB)),
)
"""Ascending by memory. TPUs have all of theirs for programs."""


def named(name: str) -> Accelerator | None:
    """Return an accelerator by its name, in any case; None if the name is unknown."""
    return next((each for each in ACCELERATORS if each.name.casefold() == name.casefold()), None)


def memory_of_kind(kind: str) -> int | None:
    """Return the usual memory for JAX of a `device_kind`; None if the kind is unknown."""
    return next((each.memory for each in ACCELERATORS if kind in each.kinds), None)


def holding(count: int) -> tuple[str, ...]:
    """Return the names of the accelerators with memory for so many bytes."""
    return tuple(each.name for each in ACCELERATORS if count <= each.memory)
