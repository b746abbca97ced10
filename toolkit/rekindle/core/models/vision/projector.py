"""The projector of a vision tower: from patches to embeddings, step by step."""

from collections.abc import Callable

import jax
from flax import nnx

from rekindle.core.models.layers import ACTIVATIONS, Linear, norm_of
from rekindle.core.models.vision.config import Activate, Merge, Multiply, Pool, Product, Scaling, Standardize, Step
from rekindle.core.models.weights.requests import JoinedTensors, WeightSource


class Projector(nnx.Module, pytree=False):
    """The steps from patches, (patches, size), to embeddings, (patches // merge², output_size) float32.

    Steps with weights are attributes, as the layers of a decoder are.
    """

    def __init__(self, steps: tuple[Step, ...], size: int, weights: WeightSource):
        self.count = len(steps)
        for i, step in enumerate(steps):
            module, size = _module_of(step, size, weights)
            setattr(self, f"step_{i}", module)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map patches to embeddings. The patches of a square are successive."""
        for i in range(self.count):
            x = getattr(self, f"step_{i}")(x)
        return x


def _module_of(step: Step, size: int, weights: WeightSource) -> tuple[Callable[[jax.Array], jax.Array], int]:
    """Return the function of a step, and the size of its results, given the size of its inputs."""
    match step:
        case Merge(side, by_channel):
            return lambda x: _joined(x, side**2, by_channel), size * side**2
        case Pool(side):
            return lambda x: x.reshape(-1, side**2, x.shape[1]).mean(1), size
        case Scaling(name, norm):
            return norm_of(weights, name, size, norm), size
        case Product(name, outputs, bias, transposed):
            return Linear(weights, size, {name: outputs}, bias, transposed=transposed), outputs
        case Multiply(factor):
            return lambda x: x * factor, size
        case Standardize(bias, scale):
            return Standardization(bias, scale, size, weights), size
        case Activate(activation):
            return ACTIVATIONS[activation], size


class Standardization(nnx.Module, pytree=False):
    """A difference to learned numbers, multiplied by others."""

    def __init__(self, bias: str, scale: str, size: int, weights: WeightSource):
        self.numbers = nnx.Param(weights.get(JoinedTensors({bias: (size,), scale: (size,)}, False)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (patches, size) to the same shape."""
        bias, scale = self.numbers[...].reshape(2, 1, -1)
        result: jax.Array = (x - bias) * scale
        return result


def _joined(x: jax.Array, count: int, by_channel: bool) -> jax.Array:
    """Return each `count` successive vectors as one."""
    squares = x.reshape(-1, count, x.shape[1])
    return (squares.swapaxes(1, 2) if by_channel else squares).reshape(len(squares), -1)
