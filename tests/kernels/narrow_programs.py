"""Products with codes of weights at the sizes of published models, for the compilers of absent chips."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final

import jax
import jax.numpy as jnp

from rekindle_kernels import layers
from rekindle_kernels.api import Implementation
from rekindle_kernels.storage import Storage, Stored

Shape = jax.ShapeDtypeStruct
OUTPUTS, INPUTS, EXPERTS = 8192, 2048, 8
FLOAT32, INT32 = jnp.dtype("float32"), jnp.dtype("int32")
KINDS: Final = ("int4:128", "int8:128", "float8:128", "int8:256:least", "int4:2048", "int8:2048", "float8:2048")


@dataclass(frozen=True)
class NarrowProgram:
    """One call.

    Attributes:
        function: the operation.
        shapes: its arguments.
        temporary: the most temporary bytes, mainly of partial sums.
    """

    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    temporary: int


def wide_arrays(text: str) -> set[str]:
    """Return the floats of a compiled program's main computation with the size of a weight."""
    arrays = re.findall(r"= ((?:bf16|f16|f32)\[([0-9,]+)\])", text[text.index("ENTRY") :])
    return {array for array, shape in arrays if prod(map(int, shape.split(","))) >= OUTPUTS * INPUTS}


def _programs(implementation: Implementation) -> dict[str, NarrowProgram]:
    programs = {}
    for kind in KINDS:
        storage = Storage(((kind, OUTPUTS),), "bfloat16")
        form = layers.packed((OUTPUTS, INPUTS), storage, implementation=implementation)
        weight, groups = Stored(form, storage), INPUTS // int(kind.split(":")[1])
        for rows in (1, 8, 32) if kind == "int4:128" else (8,):
            product = partial(layers.linear, outputs=OUTPUTS, implementation=implementation)
            shapes: tuple[Any, ...] = (Shape((rows, INPUTS), FLOAT32), weight)
            sums = 4 * rows * OUTPUTS * max(4, groups)  # a dot of one group may be split into four
            programs[f"{kind}, {rows} rows"] = NarrowProgram(product, shapes, sums * 5 // 4 + (2 << 20))
        if kind in ("int4:128", "int8:2048"):
            columns = partial(layers.linear_columns, outputs=OUTPUTS, implementation=implementation)
            programs[f"{kind}, columns"] = NarrowProgram(columns, shapes, sums * 5 // 4 + (4 << 20))
            look_up = partial(layers.look_up, shape=(OUTPUTS, INPUTS), implementation=implementation)
            programs[f"{kind}, rows of a table"] = NarrowProgram(
                lambda ids, weight, look_up=look_up: look_up(weight, ids), (Shape((32,), INT32), weight), 2 << 20
            )
            every = jax.tree.map(lambda each: Shape((EXPERTS, *each.shape), each.dtype), weight)
            grouped = partial(layers.grouped_linear, outputs=OUTPUTS, implementation=implementation)
            # The codes of one expert are copied as they are.
            one = sum(each.size * each.dtype.itemsize for each in jax.tree.leaves(form))
            programs[f"{kind}, experts"] = NarrowProgram(
                grouped, (Shape((32, INPUTS), FLOAT32), Shape((EXPERTS,), INT32), every), one + sums + (4 << 20)
            )
    return programs


TPU: Final = _programs("tpu")
GPU: Final = _programs("gpu")
