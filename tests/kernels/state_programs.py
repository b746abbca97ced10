"""Programs of recurrent layers at the sizes of published models, for the compilers of absent chips."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final

import jax
import jax.numpy as jnp

from rekindle_kernels import states
from rekindle_kernels.api import Implementation

Shape = jax.ShapeDtypeStruct
SLOTS, TOKENS = 129, 16
HEADS, KEY_HEADS, WIDTH, CHANNELS, TAPS = 32, 16, 128, 8192, 4


@dataclass(frozen=True)
class StateProgram:
    """One call.

    Attributes:
        function: the operation.
        shapes: its arguments.
        donated: the index of the states among the arguments.
    """

    function: Callable[..., Any]
    shapes: tuple[Shape | None, ...]
    donated: int

    @property
    def state_bytes(self) -> int:
        """The bytes of the states."""
        states = self.shapes[self.donated]
        assert states is not None
        size: int = prod(states.shape)
        return 4 * size


def _floats(*shape: int) -> Shape:
    return Shape(shape, jnp.dtype(jnp.float32))


def _recurrence(lead: tuple[int, ...], delta: bool, by_channel: bool) -> tuple[Shape | None, ...]:
    keys, of_heads = _floats(*lead, KEY_HEADS, WIDTH), (*lead, HEADS)
    decay = _floats(*of_heads, WIDTH) if by_channel else _floats(*of_heads)
    return (
        keys, keys, _floats(*of_heads, WIDTH), decay, _floats(*of_heads) if delta else None,
        _floats(SLOTS, HEADS, WIDTH, WIDTH),
    )  # fmt: skip


def _programs(implementation: Implementation) -> dict[str, StateProgram]:
    """Return the calls of an implementation by name: Qwen3.5-9B's, and others of its sizes."""

    def places(count: int, arrays: int) -> tuple[Shape, ...]:
        return (Shape((count,), jnp.dtype(jnp.int32)),) * arrays

    programs = {}
    for name, delta, by_channel in (("delta", True, False), ("channels", True, True), ("plain", False, False)):
        blocks = partial(states.recur_blocks, implementation=implementation)
        programs[f"{name} blocks"] = StateProgram(
            blocks, (*_recurrence((32, TOKENS), delta, by_channel), *places(32, 3)), 5
        )
        for count in (1, 32):
            rows = partial(states.recur_rows, implementation=implementation)
            shapes = (*_recurrence((count,), delta, by_channel), *places(count, 1))
            programs[f"{name} rows of {count}"] = StateProgram(rows, shapes, 5)
    convolution = (_floats(CHANNELS, TAPS), _floats(CHANNELS), _floats(SLOTS, TAPS - 1, CHANNELS))
    blocks = partial(states.convolve_blocks, implementation=implementation)
    programs["convolution of blocks"] = StateProgram(
        blocks, (_floats(32, TOKENS, CHANNELS), *convolution, *places(32, 3)), 3
    )
    rows = partial(states.convolve_rows, implementation=implementation)
    programs["convolution of rows"] = StateProgram(rows, (_floats(32, CHANNELS), *convolution, *places(32, 1)), 3)
    return programs


TPU: Final = _programs("tpu")
GPU: Final = _programs("gpu")
