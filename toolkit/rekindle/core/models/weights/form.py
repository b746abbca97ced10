"""Forms of a model's weights in memory: a dtype, or quantized blocks, of the checkpoint or made from its numbers."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal

import jax.numpy as jnp

from rekindle_kernels.blocks import Tensor
from rekindle_kernels.quantized import Turned
from rekindle_kernels.storage import LEAST, Activations, BlockRows, has_floats, layout_of

Kinds = tuple[tuple[str, str], ...]
"""Names of tensors, each with a kind of quantized blocks, in ascending order."""
Orders = tuple[tuple[str, str], ...]
"""Names of tensors with inputs in another order (act-order), each with the first name of all with this order."""
Quantize = Literal["int8", "int4"]
"""The codes made from a checkpoint's numbers."""


@dataclass(frozen=True)
class WeightForm:
    """The form of all weights of a model.

    Attributes:
        dtype: the dtype of all other matrices, float32, bfloat16 or float16.
        kinds: the tensors to keep in quantized blocks.
        activations: the numbers multiplied with packed codes.
        quantize: the codes made from the checkpoint's numbers, in these kinds; None for blocks of the checkpoint.
        orders: the packed tensors with inputs in another order. Only tensors of one order are joined.
    """

    dtype: jnp.dtype
    kinds: Kinds = ()
    activations: Activations = "int16"
    quantize: Quantize | None = None
    orders: Orders = ()

    @cached_property
    def kind_of(self) -> Mapping[str, str]:
        """The kind of each packed tensor, by name."""
        return dict(self.kinds)

    @cached_property
    def order_of(self) -> Mapping[str, str]:
        """The order of each tensor with inputs in another order, by name."""
        return dict(self.orders)

    def __str__(self) -> str:
        if not self.kinds:
            return self.dtype.name
        counts = Counter(kind for _, kind in self.kinds).most_common()
        is_float = self.activations not in ("bfloat16", "float16") and all(has_floats(kind) for kind, _ in counts)
        activations = "float32" if is_float else self.activations
        order = ", act-order" if self.orders else ""
        return f"{', '.join(kind for kind, _ in counts)} with {activations} activations{order}"

    @property
    def is_narrow(self) -> bool:
        """True if all kernels multiply the packed codes without widening them in each step."""
        has_arrays = all(kind.startswith(("int", "float8")) for _, kind in self.kinds)
        is_large = all(layout_of(kind).numbers >= LEAST for _, kind in self.kinds)
        return has_arrays and is_large and self.activations != "exact"

    @property
    def digest(self) -> str:
        """A digest of the form."""
        parts = self.dtype.name, self.kinds, self.activations, self.quantize, *([self.orders] if self.orders else [])
        return sha256(repr(parts).encode()).hexdigest()[:16]


def held_bytes(array: Any, platform: str) -> int:
    """Return the bytes of an array on a platform; two codes of 4 bits share a byte, except on CPUs.

    Args:
        array: an array, or its shape and dtype.
    """
    size: int = array.size * array.dtype.itemsize
    return (size + 1) // 2 if array.dtype == jnp.int4 and platform != "cpu" else size


def kinds_in(tensors: Mapping[str, Tensor], names: Iterable[str], turned: Container[str]) -> tuple[Kinds, Orders]:
    """Return the kinds of the tensors in blocks supported by the kernels, and their orders, from a first row of each.

    Args:
        turned: the tensors with matrices that the decoder transposes. Only tensors with blocks along the inputs after
            it are packed.
    """
    kinds, orders, first = list[tuple[str, str]](), list[tuple[str, str]](), dict[bytes, str]()
    for name in sorted(names):
        row = _first_row(tensors[name], turned=name in turned)
        if row is None:
            continue
        kinds.append((name, row.kind))
        if row.order is not None:
            orders.append((name, first.setdefault(row.order.tobytes(), name)))
    return tuple(kinds), tuple(orders)


def kept_orders(orders: Orders, kinds: Kinds) -> Orders:
    """Return the orders of the tensors with these kinds."""
    names, first = dict(kinds), dict[str, str]()
    return tuple((name, first.setdefault(order, name)) for name, order in orders if name in names)


def _first_row(tensor: Tensor, *, turned: bool) -> BlockRows | None:
    """Return the first row of a tensor in blocks; None if it is not in blocks, or a stack of several orders."""
    if tensor.ndim not in (2, 3):
        return None
    matrix: Any = tensor[0] if tensor.ndim == 3 else tensor
    if turned and not isinstance(matrix, Turned):
        return None
    try:
        row = BlockRows.of((matrix.T if isinstance(matrix, Turned) else matrix)[:1])
    except (TypeError, ValueError):
        return None
    return None if tensor.ndim == 3 and row.order is not None else row
