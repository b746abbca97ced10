"""Loading of a model's weights from a checkpoint's tensors onto the device."""

import math
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.assembly.limits.machine import cores
from rekindle.assembly.weights.copying import ByteBudget, between, copy_into, infinities
from rekindle.core.concurrency.threads import TOO_LATE, ending
from rekindle.core.errors import ModelError
from rekindle.core.models.abstract import AbstractModel
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.config.partition import Order
from rekindle.core.models.decoder import Decoder, abstract_decoder
from rekindle.core.models.shard import WHOLE, Shard
from rekindle.core.models.vision.config import VisionConfig
from rekindle.core.models.weights.form import WeightForm, held_bytes
from rekindle.core.models.weights.requests import JoinedTensors
from rekindle_kernels.api import Implementation
from rekindle_kernels.blocks import Array, FileArray, Tensor
from rekindle_kernels.encode import encode
from rekindle_kernels.layers import pack_blocks
from rekindle_kernels.quantized import Quantized, Turned
from rekindle_kernels.storage import BlockRows

Put = Callable[[Array], jax.Array]
Join = Callable[[JoinedTensors, Sequence[jax.Array], jnp.dtype], jax.Array]

THREADS: Final = min(4, cores())
_ENCODED_AT_ONCE: Final = 1 << 20
"""Numbers quantized at a time, to keep temporary arrays small."""
MAX_RUNS: Final = 64
"""From this number of runs of consecutive rows on, all rows are copied first, and not run by run from the file."""


def load_decoder(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    form: jnp.dtype | WeightForm,
    implementation: Implementation = "xla",
) -> Decoder:
    """Build the whole decoder with weights from `load_weights`. Nothing is traced or compiled.

    Args:
        config, tensors, implementation: see `load_weights`.
        form: the form of the weights, or the dtype of all matrices.
    """
    form = form if isinstance(form, WeightForm) else WeightForm(jnp.dtype(form))
    weights = load_weights(config, tensors, form, implementation=implementation)
    return abstract_decoder(config, form, implementation, WHOLE).with_weights(weights)


def abstract_of(
    config: ModelConfig | VisionConfig, form: WeightForm, implementation: Implementation, shard: Shard
) -> AbstractModel[Any]:
    """Return a decoder or a tower without weights. Each device has a whole tower, whatever its shard of the decoder."""
    if isinstance(config, VisionConfig):
        from rekindle.core.models.vision.tower import abstract_tower

        return abstract_tower(config, form, implementation)
    return abstract_decoder(config, form, implementation, shard)


def load_weights(
    config: ModelConfig | VisionConfig,
    tensors: Mapping[str, Tensor],
    form: WeightForm,
    report_bytes: Callable[[int], None] = lambda _: None,
    put: Put = jax.device_put,
    implementation: Implementation = "xla",
    shard: Shard = WHOLE,
    join: Join | None = None,
    report_infinite: Callable[[int], None] = lambda _: None,
) -> list[jax.Array]:
    """Read each tensor once, in several threads, and return the weights in the programs' order.

    The weights being loaded together take at most the bytes of the largest weight. So loading needs little host memory
    in addition to the device's. Weights to be quantized are read and quantized in pieces.

    Args:
        config: the decoder or the tower.
        tensors: the checkpoint's tensors by Hugging Face name, looked up on demand; or arrays of JAX.
        form: the form of the weights.
        report_bytes: called on this thread with the bytes loaded since the last call.
        put: puts an array on the device; called from several threads.
        implementation: the kernel implementation for the weights.
        shard: the device's shard of the model.
        join: joins tensors that are arrays of JAX on their device, where the packed form is the plain one; None joins
            all on the host.
        report_infinite: called with the number of infinities among the numbers of each float16 matrix, which are beyond
            its range in the checkpoint; from several threads.

    Raises:
        ModelError: the process is exiting.
    """
    abstract = abstract_of(config, form, implementation, shard)
    with ThreadPoolExecutor(THREADS, "rekindle-load") as pool:
        try:
            forms = [request.form(form, implementation) for request in abstract.requests]
            budget = ByteBudget(max(map(size_of, forms)))
            reader = _Reader(tensors, form, put, implementation, budget, join, report_infinite)
            weights = pool.map(reader.read, abstract.requests)
            arrays = [_report(array, report_bytes) for weight in weights for array in weight]
            return [arrays[place] for place in abstract.places]
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, RuntimeError) and ending():  # no thread can be started any more
                raise ModelError(TOO_LATE) from error
            raise


def _report(array: jax.Array, report_bytes: Callable[[int], None]) -> jax.Array:
    report_bytes(held_bytes(array, next(iter(array.devices())).platform))
    return array


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reader of joined tensors, with the arguments of `load_weights` and a budget of device bytes."""

    tensors: Mapping[str, Tensor]
    form: WeightForm
    put: Put
    implementation: Implementation
    budget: ByteBudget
    join: Join | None
    report_infinite: Callable[[int], None]

    def read(self, request: JoinedTensors) -> list[jax.Array]:
        """Join tensors along their first axis, and put them on the device.

        They are always copied, because they may belong to the caller. Nothing else refers to the
        copy, so the CPU backend can use its memory instead of copying again.
        """
        form = request.form(self.form, self.implementation)
        with self.budget.reserve(size_of(form)):
            parts: list[Any] = [self.tensors[name] for name in request.shapes]
            if self.join is not None and _may_join_on_device(request, parts, form):
                arrays = [self.join(request, [self.put(part) for part in parts], self.form.dtype)]
                self._report(arrays)
            else:
                parts = [np.asarray(part) if isinstance(part, jax.Array) else part for part in parts]
                weight = self._matrix(request, parts, form) if request.matrix else _vector(request, parts)
                self._report(jax.tree.leaves(weight))
                arrays = [self.put(array) for array in jax.tree.leaves(weight)]
            jax.block_until_ready(arrays)  # the host copy exists until the transfer ends
            return arrays

    def _report(self, arrays: Iterable[Array | jax.Array]) -> None:
        self.report_infinite(sum(infinities(each) for each in arrays if each.dtype == np.float16))

    def _matrix(self, request: JoinedTensors, parts: list[Tensor], form: Any) -> Any:
        """Return the packed form of a matrix or of several, an array or a tree of arrays."""
        whole = jax.tree.map(lambda each: empty(each.shape, each.dtype), form)
        groups = range(max(1, request.groups)) if request.members is None else request.members
        for place, group in enumerate(groups):
            into = jax.tree.map(lambda each, place=place: each[place], whole) if request.groups else whole
            matrices = _of_group(parts, int(group), request.groups)
            self._pack(request, matrices, into)
        return whole

    def _pack(self, request: JoinedTensors, matrices: list[Tensor], into: Any) -> None:
        """Write the matrices of one group in packed form."""
        storage = request.storage(self.form)
        if storage is None:
            copy_into(_select(request, matrices), into, self.implementation)
            return
        if self.form.quantize is None:
            blocks: Iterable[BlockRows] = _select_blocks(request, matrices)
        else:
            blocks = _encoded(_select(request, matrices), storage.runs[0][0])
        pack_blocks(blocks, into, storage, request.plain[-1], implementation=self.implementation)


def _may_join_on_device(request: JoinedTensors, parts: Sequence[Any], form: Any) -> bool:
    """Return True if the parts are arrays of JAX in this process, and the packed form is a plain matrix or vector."""
    on_device = all(isinstance(each, jax.Array) and each.is_fully_addressable for each in parts)
    return on_device and isinstance(form, jax.ShapeDtypeStruct) and form.shape == request.plain


def size_of(form: Any) -> int:
    """Return the bytes in host memory of an array of this form, or of all arrays of a tree."""
    return sum(math.prod(each.shape) * each.dtype.itemsize for each in jax.tree.leaves(form))


def _vector(request: JoinedTensors, parts: Sequence[Tensor]) -> Array:
    joined = np.concatenate([np.asarray(part).reshape(-1) for part in parts]).astype(np.float32)
    whole = empty((len(joined) if request.order is None else len(request.order),), jnp.dtype(jnp.float32))
    whole[:] = (joined if request.order is None else joined[request.order]) + np.float32(request.offset)
    return whole


def _select(request: JoinedTensors, matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return the matrices of one group, (out, in), with the requested rows and inputs."""
    if request.transposed:
        matrices = [matrix.T if isinstance(matrix, Turned) else np.asarray(matrix).T for matrix in matrices]
    if request.order is not None:
        matrices = _rows(matrices, request.order)
    if request.inputs is None:
        return list(matrices)
    return [_some_inputs(matrix, request.inputs) for matrix in matrices]


def _encoded(matrices: Sequence[Tensor], kind: str) -> Iterator[BlockRows]:
    """Yield the numbers of matrices as codes, piece by piece."""
    rows, step = sum(map(len, matrices)), max(1, _ENCODED_AT_ONCE // matrices[0].shape[1])
    for first in range(0, rows, step):
        views = between(matrices, first, first + step)
        for view in views:
            yield encode(np.asarray(view), kind)


def _select_blocks(request: JoinedTensors, matrices: Sequence[Tensor]) -> list[BlockRows]:
    """Return the matrices of one group in their quantized blocks, with the requested rows and inputs."""
    stored = [matrix.T if isinstance(matrix, Turned) else matrix for matrix in matrices]
    parts = [BlockRows.of(matrix) for matrix in stored]
    if request.order is not None:
        parts = list(_chosen_blocks(parts, request.order))
    return parts if request.inputs is None else [part.columns(request.inputs) for part in parts]


def _chosen_blocks(parts: Sequence[BlockRows], order: Order) -> Iterator[BlockRows]:
    """Yield the rows of concatenated matrices with these indices, for each run of rows of one matrix."""
    starts = np.cumsum([0, *map(len, parts)])
    owners = np.searchsorted(starts, order, side="right") - 1
    for run in np.split(np.arange(len(order)), np.flatnonzero(np.diff(owners)) + 1):
        owner = owners[run[0]]
        rows = order[run] - starts[owner]
        is_consecutive = (np.diff(rows) == 1).all()
        yield parts[owner].rows(slice(rows[0], rows[-1] + 1) if is_consecutive else rows)


def _rows(matrices: Sequence[Tensor], indices: Order) -> list[Tensor]:
    """Return some rows of concatenated matrices, as one view for each run of consecutive rows if these are few."""
    ends = np.flatnonzero(np.diff(indices) != 1) + 1
    if len(ends) >= MAX_RUNS:
        if all(isinstance(matrix, np.ndarray | FileArray) for matrix in matrices):
            return [np.concatenate([np.asarray(matrix) for matrix in matrices])[indices]]
        return [_on_demand(partial(_chosen_rows, matrices, indices), len(indices), matrices[0].shape[1])]
    return [rows for run in np.split(indices, ends) for rows in between(matrices, run[0], run[-1] + 1)]


def _chosen_rows(matrices: Sequence[Tensor], indices: Order, rows: slice) -> Array:
    """Return some of the rows with given indices. All rows between the first and the last of these are computed."""
    some = indices[rows]
    first = int(some.min())
    return np.concatenate([np.asarray(part) for part in between(matrices, first, int(some.max()) + 1)])[some - first]


def _some_inputs(matrix: Tensor, indices: Order) -> Tensor:
    if isinstance(matrix, np.ndarray):
        return _columns(matrix, indices)
    return _on_demand(lambda rows: _columns(np.asarray(matrix[rows]), indices), len(matrix), len(indices))


def _on_demand(reader: Callable[[slice], Array], rows: int, inputs: int) -> Tensor:
    """Return a matrix whose rows are computed when they are copied."""
    return Quantized(inputs, range(rows), reader)


def _columns(matrix: Array, indices: Order) -> Array:
    """Return some columns of a matrix, as a view if they are consecutive; zeros for -1."""
    valid = indices[indices >= 0]
    if len(valid) and valid[-1] - valid[0] == len(valid) - 1:
        columns = matrix[:, valid[0] : valid[-1] + 1]
    else:
        columns = matrix[:, valid]
    return columns if len(valid) == len(indices) else np.pad(columns, ((0, 0), (0, len(indices) - len(valid))))


def _of_group(parts: list[Tensor], group: int, groups: int) -> list[Tensor]:
    """Return the matrices of one of the groups: some of the parts, or a slice of a single part."""
    if not groups:
        return parts
    if parts[0].ndim == 3:
        return [part[group] for part in parts]
    each = len(parts) // groups
    if each:
        return parts[group * each : (group + 1) * each]
    rows = len(parts[0]) // groups
    return [parts[0][group * rows : (group + 1) * rows]]


def empty(shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Allocate whole memory pages of zeros, aligned for the CPU backend and returned to the system when freed.

    The pages are small. numpy would use huge pages: up to five times slower in a virtual machine, where the host has
    to find them first.
    """
    size = int(np.prod(shape)) * dtype.itemsize
    if sys.platform == "win32":
        memory = mmap.mmap(-1, size)
    else:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype).reshape(shape)
