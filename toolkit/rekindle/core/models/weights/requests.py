"""Requests of a decoder for its weights."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.models.config.partition import Order
from rekindle.core.models.shard import Shard
from rekindle.core.models.weights.form import WeightForm
from rekindle_kernels import layers as kernels
from rekindle_kernels.api import Implementation
from rekindle_kernels.storage import Storage, Stored, Weight, in_blocks, layout_of, storage_of

Shapes = Mapping[str, tuple[int, ...]]
"""The required shapes of checkpoint tensors, by name."""


MOST_RUNS: Final = 8
"""Runs of rows of one kind in a packed matrix; kernels pad each to whole panels of rows."""


@dataclass(frozen=True)
class JoinedTensors:
    """A decoder's request for one weight: checkpoint tensors, joined along their first axis.

    Attributes:
        shapes: the shapes of the tensors, by name.
        matrix: whether the tensors are matrices (out, in), to be packed for the kernels; else they are joined as
            float32 vectors.
        order: for each row (or element) of the result, its index among the joined rows; None for the same order.
        offset: a number added to the elements of vectors.
        groups: the number of equal matrices to split the joined rows into; 0 for a single matrix. `order` applies
            within each group.
        transposed: whether each matrix is stored as (in, out); there is only one tensor then.
        inputs: the indices of the inputs to keep, with -1 for zeros; None for all.
        members: the indices of the groups to keep; None for all.
    """

    shapes: Shapes
    matrix: bool
    order: Order | None = None
    offset: float = 0.0
    groups: int = 0
    transposed: bool = False
    inputs: Order | None = None
    members: Order | None = None

    def form(self, form: WeightForm, implementation: Implementation) -> Any:
        """Return the packed shape and dtype of the result, or a tree of them. Groups form an additional first axis."""
        if not self.matrix:
            return jax.ShapeDtypeStruct(self.plain, jnp.float32)
        *groups, outputs, inputs = self.plain
        one = kernels.packed((outputs, inputs), self.storage(form) or form.dtype, implementation=implementation)
        return jax.tree.map(lambda each: jax.ShapeDtypeStruct((*groups, *each.shape), each.dtype), one)

    def storage(self, form: WeightForm) -> Storage | None:
        """Return the storage of each matrix if all its rows and inputs keep their quantized blocks, else None."""
        if not self.matrix or any(name not in form.kind_of for name in self.shapes):
            return None
        parts = self._parts(form.kind_of) if form.quantize is None else self._quantized_parts(form.kind_of)
        kinds = {kind for kind, _ in parts}
        is_whole = all(self.inputs is None or in_blocks(self.inputs, kind) is not None for kind in kinds)
        orders = self._orders(form.order_of)
        if len(orders) > 1 or None in orders or (True in orders and self.inputs is not None):
            return None
        if not parts or not is_whole or any(self.plain[-1] % layout_of(kind).numbers for kind in kinds):
            return None
        if self.order is not None and form.quantize is None:
            parts = _reordered(parts, self.order)
        storage = storage_of(parts, form.activations, ordered=orders == {True})
        return storage if len(storage.runs) <= MOST_RUNS else None

    def _parts(self, kind_of: Mapping[str, str]) -> list[tuple[str, int]]:
        """Return the kind and the rows of each part of a matrix; nothing if the matrices of several groups differ."""
        parts = [(kind_of[name], shape[-1 if self.transposed else -2]) for name, shape in self.shapes.items()]
        if not self.groups or len(next(iter(self.shapes.values()))) == 3:
            return parts
        each = len(parts) // self.groups
        if not each:  # the rows of all groups, one after the other
            return [(kind, rows // self.groups) for kind, rows in parts]
        return parts[:each] if parts == parts[:each] * self.groups else []

    def _orders(self, order_of: Mapping[str, str]) -> set[bool | None]:
        """Return True for matrices with their own order of inputs, False for others, and None for those of several."""
        names = list(self.shapes)
        each = max(1, len(names) // max(1, self.groups))
        matrices = ({order_of.get(name) for name in names[at : at + each]} for at in range(0, len(names), each))
        return {None if len(orders) > 1 else orders != {None} for orders in matrices}

    def _quantized_parts(self, kind_of: Mapping[str, str]) -> list[tuple[str, int]]:
        """Return the kind and the rows of a matrix to be quantized; nothing if its tensors have several kinds."""
        kinds = {kind_of[name] for name in self.shapes}
        return [(kinds.pop(), self.plain[-2])] if len(kinds) == 1 else []

    @property
    def plain(self) -> tuple[int, ...]:
        """The shape of the result without packing: (out, in) of a matrix, after the number of groups if any."""
        shapes = list(self.shapes.values())
        if not self.matrix:
            return (sum(math.prod(shape) for shape in shapes) if self.order is None else len(self.order),)
        rows, inputs = sum(math.prod(shape[:-1]) for shape in shapes) // max(1, self.groups), shapes[0][-1]
        outputs, inputs = (inputs, rows) if self.transposed else (rows, inputs)
        outputs = outputs if self.order is None else len(self.order)
        inputs = inputs if self.inputs is None else len(self.inputs)
        groups = self.groups if self.members is None else len(self.members)
        return (groups, outputs, inputs) if self.groups else (outputs, inputs)


def _reordered(parts: Sequence[tuple[str, int]], order: Order) -> list[tuple[str, int]]:
    """Return the runs of rows of one kind among rows in this order."""
    kinds = list(dict.fromkeys(kind for kind, _ in parts))
    rows = np.repeat([kinds.index(kind) for kind, _ in parts], [count for _, count in parts])[order]
    ends = [0, *(np.flatnonzero(np.diff(rows)) + 1), len(rows)]
    return [(kinds[rows[first]], int(last - first)) for first, last in pairwise(ends)]


class WeightSource(Protocol):
    """Source of the weights of a decoder under construction, either arrays or only shapes and dtypes.

    Attributes:
        implementation: the kernel implementation for the matrices.
        shard: the device's shard of the model.
        form: the form of the weights.
    """

    implementation: Implementation
    shard: Shard
    form: WeightForm

    def get(self, request: JoinedTensors) -> Any:
        """Return matrices in the form of `kernels.packed`, and vectors as (elements,) float32."""


class Matrix(nnx.Module, pytree=False):
    """A matrix, or several equal ones, in the kernels' packed form.

    Attributes:
        data: the numbers, the blocks, or the first of several arrays; the others are `part_1`, ….
        storage: the storage of each matrix in quantized blocks; None for numbers.
    """

    def __init__(self, weights: WeightSource, request: JoinedTensors):
        (first, *others), self._tree = jax.tree.flatten(weights.get(request))
        self.data, self.storage = nnx.Param(first), request.storage(weights.form)
        self._others = tuple(f"part_{index}" for index in range(1, len(others) + 1))
        for name, other in zip(self._others, others, strict=True):
            setattr(self, name, nnx.Param(other))

    def __call__(self) -> Weight:
        """Return the weight for the kernels."""
        data: jax.Array = self.data[...]
        if self.storage is None:
            return data
        arrays = [data, *(getattr(self, name)[...] for name in self._others)]
        return Stored(jax.tree.unflatten(self._tree, arrays), self.storage)
