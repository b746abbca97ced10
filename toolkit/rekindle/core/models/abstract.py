"""Models without weights: their modules, with shapes in place of arrays."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.core.models.shard import WHOLE, Shard
from rekindle.core.models.weights.form import WeightForm
from rekindle.core.models.weights.requests import JoinedTensors, Shapes, WeightSource
from rekindle_kernels.api import Implementation

M = TypeVar("M", bound=nnx.Module)
Build = Callable[[WeightSource], M]
"""A constructor of a model from its weights."""


@dataclass(frozen=True)
class AbstractModel(Generic[M]):
    """A model without weights: nothing is read, traced or allocated.

    Attributes:
        graph, structure: the graph of the modules, and the tree structure of their state.
        requests: the requests for weights, in order of construction.
        forms: the shape and dtype of each array, in the programs' order.
        places: the index of each array among those of all `requests`, in the programs' order.
    """

    graph: nnx.GraphDef[M]
    structure: jax.tree_util.PyTreeDef
    requests: tuple[JoinedTensors, ...]
    forms: tuple[jax.ShapeDtypeStruct, ...]
    places: tuple[int, ...]

    def with_weights(self, weights: Sequence[jax.Array]) -> M:
        """Return the model with weights in the programs' order."""
        model: M = nnx.merge(self.graph, jax.tree.unflatten(self.structure, weights))
        return model


class _Abstract:
    """Weight source of shapes and dtypes alone, with a record of requests and results."""

    def __init__(self, form: WeightForm, implementation: Implementation, shard: Shard):
        self.form, self.implementation, self.shard = form, implementation, shard
        self.requests: list[JoinedTensors] = []
        self.forms: list[jax.ShapeDtypeStruct] = []

    def get(self, request: JoinedTensors) -> Any:
        form = request.form(self.form, self.implementation)
        self.requests.append(request)
        self.forms.extend(jax.tree.leaves(form))
        return form


def abstract_model(
    build: Build[M], form: WeightForm, implementation: Implementation, shard: Shard = WHOLE
) -> AbstractModel[M]:
    """Build a model with shapes in place of weights.

    Args:
        build: the constructor of the model.
        form: the form of the weights.
        implementation: the kernel implementation for the weights.
        shard: the device's shard of the model.
    """
    weights = _Abstract(form, implementation, shard)
    graph, state = nnx.split(build(weights))
    forms, structure = jax.tree.flatten(state)
    index_of = {id(form): index for index, form in enumerate(weights.forms)}
    places = tuple(index_of[id(form)] for form in forms)
    return AbstractModel(graph, structure, tuple(weights.requests), tuple(forms), places)


class _Requests:
    """Weight source for a record of the requests alone."""

    form, shard = WeightForm(jnp.dtype(jnp.float32)), WHOLE
    implementation: Implementation = "xla"
    _any: Final = jax.ShapeDtypeStruct((), jnp.dtype(jnp.float32))

    def __init__(self) -> None:
        self.requests: list[JoinedTensors] = []

    def get(self, request: JoinedTensors) -> Any:
        self.requests.append(request)
        return self._any


def requests_of(build: Build[M]) -> Sequence[JoinedTensors]:
    """Return the requests of a whole model for numbers of one dtype, in order of construction."""
    weights = _Requests()
    build(weights)
    return weights.requests


def shapes_of(requests: Iterable[JoinedTensors]) -> Shapes:
    """Return the shape of every tensor of a model, by its name in the checkpoint, given all its requests."""
    return MappingProxyType({name: shape for request in requests for name, shape in request.shapes.items()})
