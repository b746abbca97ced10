"""Building a decoder on the device from a checkpoint's tensors."""

import math
import mmap
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.core.concurrency.threads import TOO_LATE, ending
from rekindle.core.errors import ModelError
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.copying import Room, between, copy_into, release
from rekindle.core.models.decoder import Decoder, abstract_decoder
from rekindle.core.models.layers import JoinedTensors
from rekindle.core.models.shard import WHOLE, Order, Shard
from rekindle_kernels.api import Implementation
from rekindle_kernels.blocks import Array, Tensor

Put = Callable[[Array], jax.Array]

_THREADS: Final = min(4, os.cpu_count() or 1)
MOST_RUNS: Final = 64
"""Rows in fewer runs are copied one run after the other, straight from a file; others from a copy of all of them."""


def load_decoder(
    config: ModelConfig, tensors: Mapping[str, Tensor], dtype: jnp.dtype, implementation: Implementation = "xla"
) -> Decoder:
    """Build the whole decoder, and read its weights as `load_weights` does. Nothing is traced or compiled."""
    weights = load_weights(config, tensors, dtype, implementation=implementation)
    return abstract_decoder(config, dtype, implementation, WHOLE).with_weights(weights)


def load_weights(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    dtype: jnp.dtype,
    loaded: Callable[[int], None] = lambda _: None,
    put: Put = jax.device_put,
    implementation: Implementation = "xla",
    shard: Shard = WHOLE,
) -> list[jax.Array]:
    """Read each tensor once, in several threads, and return the weights in the order in which programs take them.

    Tensors that are joined are a group, and the groups that are read at once are together no larger on the device than
    the largest of all. So host memory holds little that is not on the device.

    Args:
        tensors: by Hugging Face name, looked up when needed.
        loaded: called on this thread with the bytes that came onto the device since the last call.
        put: puts an array on the device, from several threads.
        implementation: of the kernels that will read the weights.
        shard: the share of the device that they are put on.

    Raises:
        ModelError: the process is ending.
    """
    abstract = abstract_decoder(config, dtype, implementation, shard)
    with ThreadPoolExecutor(_THREADS, "rekindle-load") as pool:
        try:
            room = Room(max(size_of(request.form(dtype, implementation)) for request in abstract.requests))
            reader = _Reader(tensors, dtype, put, implementation, room)
            arrays = [_counted(array, loaded) for array in pool.map(reader.read, abstract.requests)]
            return [arrays[place] for place in abstract.places]
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, RuntimeError) and ending():  # no thread can be started any more
                raise ModelError(TOO_LATE) from error
            raise


def _counted(array: jax.Array, loaded: Callable[[int], None]) -> jax.Array:
    loaded(array.nbytes)
    return array


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads tensors and joins them; the fields are those of `load_weights`, and the room for what is read at once."""

    tensors: Mapping[str, Tensor]
    dtype: jnp.dtype
    put: Put
    implementation: Implementation
    room: Room

    def read(self, asked: JoinedTensors) -> jax.Array:
        """Join tensors along their first axis, and put them on the device.

        They are always copied, because they may be views of a file or belong to the caller. Nothing else refers to the
        copy, so the CPU backend can use its memory instead of copying it again.
        """
        form = asked.form(self.dtype, self.implementation)
        with self.room.taken(size_of(form)):
            parts = [self.tensors[name] for name in asked.shapes]
            whole = self._matrix(asked, parts, form) if asked.matrix else _vector(asked, parts)
            array = self.put(whole)
            jax.block_until_ready(array)  # until the device has it, the copy takes host memory
            return array

    def _matrix(self, asked: JoinedTensors, parts: list[Tensor], form: jax.ShapeDtypeStruct) -> Array:
        whole = _empty(form.shape, self.dtype)
        groups = range(max(1, asked.groups)) if asked.members is None else asked.members
        for group, into in zip(groups, whole if asked.groups else [whole], strict=True):
            stored = _of_group(parts, group, asked.groups)
            copy_into(_as_asked(asked, stored), into, self.implementation)
            release(stored)
        return whole


def size_of(form: jax.ShapeDtypeStruct) -> int:
    """Return the bytes of an array of this form."""
    size: int = math.prod(form.shape) * form.dtype.itemsize
    return size


def _vector(asked: JoinedTensors, parts: Sequence[Tensor]) -> Array:
    joined = np.concatenate([np.asarray(part).reshape(-1) for part in parts]).astype(np.float32)
    whole = _empty((len(joined) if asked.order is None else len(asked.order),), jnp.dtype(jnp.float32))
    whole[:] = (joined if asked.order is None else joined[asked.order]) + np.float32(asked.offset)
    return whole


def _as_asked(asked: JoinedTensors, matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return the matrices of one group, (out, in), with the rows and inputs that are asked for."""
    if asked.turned:
        matrices = [np.asarray(matrix).T for matrix in matrices]
    if asked.order is not None:
        matrices = _rows(matrices, asked.order)
    if asked.inputs is None:
        return list(matrices)
    return [_columns(np.asarray(matrix), asked.inputs) for matrix in matrices]


def _rows(matrices: Sequence[Tensor], chosen: Order) -> list[Tensor]:
    """Return some rows of matrices that lie one behind the other, as views of those that follow each other."""
    ends = np.flatnonzero(np.diff(chosen) != 1) + 1
    if len(ends) >= MOST_RUNS:
        return [np.concatenate([np.asarray(matrix) for matrix in matrices])[chosen]]
    return [rows for run in np.split(chosen, ends) for rows in between(matrices, run[0], run[-1] + 1)]


def _columns(matrix: Array, chosen: Order) -> Array:
    """Return some columns of a matrix, as a view if they lie together; zeros for -1."""
    there = chosen[chosen >= 0]
    if len(there) and there[-1] - there[0] == len(there) - 1:
        found = matrix[:, there[0] : there[-1] + 1]
    else:
        found = matrix[:, there]
    return found if len(there) == len(chosen) else np.pad(found, ((0, 0), (0, len(chosen) - len(there))))


def _of_group(parts: list[Tensor], group: int, groups: int) -> list[Tensor]:
    """Return the matrices of one of the groups: its own parts, or its share of a single one."""
    if not groups:
        return parts
    if parts[0].ndim == 3:
        return [part[group] for part in parts]
    each = len(parts) // groups
    if each:
        return parts[group * each : (group + 1) * each]
    rows = len(parts[0]) // groups
    return [parts[0][group * rows : (group + 1) * rows]]


def _empty(shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Allocate whole pages of zeros: they are aligned as the CPU backend needs it, and are returned when freed.

    The pages are small. numpy asks for huge pages, which took up to five times as long in a virtual machine, where the
    host has to find them first.
    """
    size = int(np.prod(shape)) * dtype.itemsize
    if sys.platform == "win32":
        memory = mmap.mmap(-1, size)
    else:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype).reshape(shape)
