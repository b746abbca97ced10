"""Joining of weights already on a device, without the host, to the same bits as by `load_weights` from files."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.core.device.jax_settings import with_overrides
from rekindle.core.models.weights.requests import JoinedTensors

_SHARING: Final = ("cpu", "gpu")
"""Platforms with DLPack, by which two arrays share memory."""


def join(request: JoinedTensors, parts: Sequence[jax.Array], dtype: jnp.dtype) -> jax.Array:
    """Join tensors on a device into a new array. The first call for a request compiles a small program.

    The result shares no memory with the parts, which the caller may donate or delete.

    Args:
        request: the request for the weight.
        parts: the tensors of the request, all on one device.
        dtype: the dtype of matrices; vectors are float32.

    Returns:
        The weight, with the shape `request.plain`.
    """
    joined: jax.Array
    if not request.matrix:
        joined = with_overrides(_vector, tuple(parts), request.order, np.float32(request.offset))
        return joined
    members = None if request.members is None else tuple(int(member) for member in request.members)
    form = {"groups": request.groups, "members": members, "transposed": request.transposed, "dtype": dtype}
    joined = with_overrides(_matrix, tuple(parts), request.order, request.inputs, **form)
    return joined


def share(request: JoinedTensors, parts: Sequence[jax.Array], dtype: jnp.dtype) -> jax.Array:
    """Return a weight over the memory of its only tensor if both have the same numbers in the same order; else `join`.

    The tensor may be deleted, but not donated, while the weight is in use. Memory of TPUs cannot be shared.

    Args:
        request, parts, dtype: as in `join`.
    """
    part, *others = parts
    (device,) = part.devices()
    form = request.plain, dtype if request.matrix else jnp.dtype(jnp.float32)
    if others or not _keeps_order(request) or (part.shape, part.dtype) != form or device.platform not in _SHARING:
        return join(request, parts, dtype)
    weight: jax.Array = with_overrides(jnp.from_dlpack, part)  # deleting one of the two leaves the other
    return weight


def _keeps_order(request: JoinedTensors) -> bool:
    """Return True if a request changes neither the order of its tensors' numbers nor the numbers."""
    changes = request.offset, request.groups, request.transposed
    return not any(changes) and request.order is None and request.inputs is None and request.members is None


@jax.jit
def _vector(parts: tuple[jax.Array, ...], order: jax.Array | None, offset: jax.Array) -> jax.Array:
    joined = jnp.concatenate([part.reshape(-1).astype(jnp.float32) for part in parts])
    return (joined if order is None else joined[order]) + offset


@partial(jax.jit, static_argnames=("groups", "members", "transposed", "dtype"))
def _matrix(
    parts: tuple[jax.Array, ...],
    order: jax.Array | None,
    inputs: jax.Array | None,
    *,
    groups: int,
    members: tuple[int, ...] | None,
    transposed: bool,
    dtype: jnp.dtype,
) -> jax.Array:
    stacked = bool(groups) and parts[0].ndim == 3  # each part has the rows of every group
    whole = jnp.concatenate(parts, axis=1 if stacked else 0).astype(dtype)
    whole = whole.reshape(max(1, groups), -1, whole.shape[-1])
    if members is not None:
        whole = whole[np.array(members)]
    if transposed:
        whole = whole.swapaxes(1, 2)
    if order is not None:
        whole = whole[:, order]
    if inputs is not None:
        whole = jnp.where(inputs >= 0, whole[:, :, inputs], 0)
    return jnp.copy(whole if groups else whole[0])
