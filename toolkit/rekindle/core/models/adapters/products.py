"""The linear layers of a model in view of its adapters: their names, their places and their shapes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.core.models.config import ModelConfig
from rekindle.core.models.config.partition import Order
from rekindle.core.models.decoder import Decoder
from rekindle.core.models.layers import Linear
from rekindle.core.models.shard import WHOLE, Shard, rows_of
from rekindle.core.models.weights.form import WeightForm
from rekindle.core.models.weights.requests import JoinedTensors
from rekindle_kernels import layers as kernels
from rekindle_kernels.api import Implementation

Path = tuple[str, ...]
HEAD: Path = ("head",)
"""The place of the head, a layer of its own or the transposed embedding."""
WITHOUT: frozenset[Path] = frozenset({HEAD, ("embedding_out",)})
"""Layers over other rows than the tick's: the head, with a product of its own, and the projection before it."""


@dataclass(frozen=True, slots=True)
class AdapterSizes:
    """The room for adapters.

    Attributes:
        slots: the number of adapters on the device at a time.
        rank: the largest rank of one.
    """

    slots: int
    rank: int


NO_ROOM = AdapterSizes(0, 0)


@dataclass(frozen=True)
class LinearShard:
    """A linear layer of one device.

    Attributes:
        path: the names of the modules around it in the decoder, and its own.
        parts: the number of outputs of each joined projection, by its name in the checkpoint, without ".weight".
        inputs: the number of inputs of the whole layer.
        outputs: the number of outputs on this device.
        order, columns: the rows and the inputs on this device, as `order` and `inputs` of `JoinedTensors`.
    """

    path: Path
    parts: Mapping[str, int]
    inputs: int
    outputs: int
    order: Order | None
    columns: Order | None

    def rank(self, sizes: AdapterSizes) -> int:
        """Return the rank of the layer's summand: an adapter's rank for each projection."""
        return len(self.parts) * sizes.rank

    def forms(
        self, sizes: AdapterSizes, dtype: jnp.dtype, implementation: Implementation
    ) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """Return the packed forms of one adapter's two matrices: (rank, in) and (out, rank)."""
        rank, inputs = self.rank(sizes), self.inputs if self.columns is None else len(self.columns)
        first = kernels.packed((rank, inputs), dtype, implementation=implementation)
        return first, kernels.packed((self.outputs, rank), dtype, implementation=implementation)


@lru_cache(maxsize=8)
def products_of(config: ModelConfig, shard: Shard = WHOLE) -> tuple[LinearShard, ...]:
    """Return the linear layers of a device with room for adapters, in a fixed order."""
    weights = _Shapes(shard)
    decoder = Decoder(config, weights)
    products = [_product(path, linear, weights) for path, linear in linears(decoder) if path not in WITHOUT]
    own, size = shard.units(config.vocab_size), config.embedding_size or config.hidden_size
    rows = None if shard.of == 1 else rows_of((own, 1, 0))
    head = LinearShard(HEAD, {config.names.head: config.vocab_size}, size, len(own), rows, None)
    return (*sorted(products, key=lambda product: product.path), head)


def linears(module: nnx.Module, path: Path = ()) -> Iterator[tuple[Path, Linear]]:
    """Yield the linear layers of a module, each with its path."""
    for name, value in vars(module).items():
        if isinstance(value, Linear):
            yield (*path, name), value
        elif isinstance(value, nnx.Module):
            yield from linears(value, (*path, name))


def _product(path: Path, linear: Linear, weights: "_Shapes") -> LinearShard:
    forms = jax.tree.leaves(nnx.split(linear)[1])
    request = next(weights.matrices[id(form)] for form in forms if id(form) in weights.matrices)
    axis = 1 if request.transposed else 0
    parts = {name.removesuffix(".weight"): shape[axis] for name, shape in request.shapes.items()}
    inputs = next(iter(request.shapes.values()))[1 - axis]
    return LinearShard(path, parts, inputs, linear.outputs, request.order, request.inputs)


class _Shapes:
    """Weight source of shapes alone, with a record of the requests for matrices."""

    implementation: Implementation = "xla"
    form = WeightForm(jnp.dtype(jnp.float32))

    def __init__(self, shard: Shard):
        self.shard = shard
        self.matrices: dict[int, JoinedTensors] = {}
        self._forms: list[jax.ShapeDtypeStruct] = []  # kept, so that no other object gets an id again

    def get(self, request: JoinedTensors) -> Any:
        form = request.form(self.form, self.implementation)
        self._forms.append(form)
        if request.matrix:
            self.matrices[id(form)] = request
        return form
