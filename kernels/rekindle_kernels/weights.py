"""Linear layers, over weights in the form that an implementation reads: arguments are checked."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rekindle_kernels.api import Implementation, operations_of

Array = np.ndarray[Any, np.dtype[Any]]


def packed(shape: tuple[int, int], dtype: jnp.dtype, *, implementation: Implementation) -> jax.ShapeDtypeStruct:
    """Return the form in which an implementation reads a weight.

    Args:
        shape: (out, in) of the weight.
        dtype: float32 or bfloat16.
        implementation: the one that will read it.

    Raises:
        ValueError: an unknown implementation.
    """
    return operations_of(implementation).packed(shape, jnp.dtype(dtype))


def pack(parts: Sequence[Array], into: Array, *, implementation: Implementation) -> None:
    """Join matrices along their outputs, and write them in the form in which an implementation reads them.

    Args:
        parts: (out, in) each, of any floating dtype.
        into: of the shape and dtype that `packed` has for all of them together; its memory is zeros.
        implementation: the one that will read it.

    Raises:
        ValueError: arrays that do not fit together, or an unknown implementation.
    """
    outputs, inputs = sum(len(part) for part in parts), {part.shape[1] for part in parts}
    wanted = packed((outputs, max(inputs)), into.dtype, implementation=implementation)
    if len(inputs) > 1 or into.shape != wanted.shape:
        shapes = ", ".join(str(part.shape) for part in parts)
        raise ValueError(f"weights {shapes} have the form {wanted.shape} together, and were to go into {into.shape}")
    operations_of(implementation).pack(parts, into)


def linear(x: jax.Array, weight: jax.Array, outputs: int, *, implementation: Implementation) -> jax.Array:
    """Compute `x @ weight.T` with float32 sums; x is rounded to the weight's dtype first.

    Args:
        x: (rows, in) float32.
        weight: in the form of `packed`.
        outputs: the number of outputs of the weight.
        implementation: the one that the weight was packed for.

    Returns:
        (rows, outputs) float32.

    Raises:
        ValueError: arguments that do not fit together, or an unknown implementation.
    """
    _check(weight, (outputs, x.shape[1]), implementation)
    return operations_of(implementation).linear(x, weight, outputs)


def look_up(weight: jax.Array, ids: jax.Array, shape: tuple[int, int], *, implementation: Implementation) -> jax.Array:
    """Return rows of a weight, such as the embeddings of tokens.

    Args:
        weight: in the form of `packed`.
        ids: (any,) int32, each less than `out`.
        shape: (out, in) of the weight.
        implementation: the one that the weight was packed for.

    Returns:
        (any, in) float32.

    Raises:
        ValueError: arguments that do not fit together, or an unknown implementation.
    """
    _check(weight, shape, implementation)
    return operations_of(implementation).look_up(weight, ids, shape[1])


def _check(weight: jax.Array, shape: tuple[int, int], implementation: Implementation) -> None:
    wanted = packed(shape, weight.dtype, implementation=implementation)
    if weight.shape != wanted.shape:
        raise ValueError(
            f'a weight {shape} has the form {wanted.shape} for implementation "{implementation}", got {weight.shape}'
        )
