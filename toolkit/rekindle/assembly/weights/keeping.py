"""Converted weights on disk, for the next start to read instead of converting the model's files again."""

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

import jax
import numpy as np

from rekindle.assembly.devices import shares_memory
from rekindle.assembly.weights.copying import ByteBudget
from rekindle.assembly.weights.load import THREADS, Put, empty, size_of
from rekindle.assembly.weights.reading import Conversion, ShardWeights, Source
from rekindle.core.concurrency.threads import Work
from rekindle.core.concurrency.warning import warn
from rekindle.core.device.place import Place
from rekindle.core.errors import UnsafeStorage
from rekindle.core.models.shard import WHOLE, Shard
from rekindle.core.models.weights.form import WeightForm, held_bytes
from rekindle.core.store.weight_store import KeptWeights, Stopped, WeightStore, form_of
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.weight_file import Stamp, is_unchanged

DECODER: Final = "decoder"
TOWER: Final = "tower"
LOOK_SECONDS: Final = 0.25
"""Interval between two looks at programs that are not ready."""
QUICK_BYTES: Final = 512 << 20
"""Weights up to this size are still kept when their session closes before it had time to."""
CLOSING_SECONDS: Final = 5.0
"""Longest wait of a closing session for its weights to be kept."""
_NICE: Final = 15


def is_worth_keeping(checkpoint: Checkpoint, form: WeightForm, place: Place) -> bool:
    """Return True if weights are read faster from disk than made from the model's files.

    On CPUs, that is so for weights in quantized blocks, of the files or of their numbers. Plain numbers are copied,
    cast and dequantized as fast as kept ones, which are larger than blocks, are read. On accelerators, a file in the
    device's form is sent as it lies.
    """
    return bool(checkpoint.files) and (bool(form.kinds) or not shares_memory(place.first))


@dataclass
class Keeper:
    """The weights of one opening, from the store or to be stored.

    Attributes:
        store: the store; None to keep nothing.
        stamps: the stamps of the model's files when they were opened; files changed since are not kept.
        bytes_read: bytes of stored weights put on devices.
    """

    store: WeightStore | None
    stamps: Mapping[Path, Stamp] = field(default_factory=dict)
    bytes_read: int = 0
    _converted: dict[str, int] = field(default_factory=dict)

    def over(self, conversion: Conversion, subject: str) -> Source:
        """Return a source of stored weights, with conversion of all others.

        Args:
            subject: `DECODER` or `TOWER`.
        """
        store = self.store
        if store is None:
            return conversion

        def read(shard: Shard, put: Put) -> ShardWeights:
            name, forms = _name(subject, shard), conversion.forms(shard)
            weights = _stored(store, name, forms, put, conversion.report_bytes)
            if weights is None:
                weights = conversion(shard, put)
                self._converted[name] = weights.infinite
            else:
                self.bytes_read += size_of(forms)
            return weights

        return read

    def keep_later(
        self, placed: Sequence[tuple[str, Place, Sequence[jax.Array]]], ready: Sequence[Future[None]]
    ) -> Callable[[], None]:
        """Write new conversions in the background, once the programs are ready, with pauses as long as the work.

        Args:
            placed: the subject, the place and the arrays of weights.

        Returns:
            A function to call before the weights are deleted: small ones are then written, and large ones given up.
        """
        store, shards = self.store, list[tuple[str, list[jax.Array]]]()
        for subject, place, arrays in placed:
            for index, (_, shard) in enumerate(place.local_shards):
                name = _name(subject, shard)
                if arrays and name in self._converted and name not in dict(shards):
                    shards.append((name, [array.addressable_data(index) for array in arrays]))
        if store is None or not shards:
            return lambda: None
        return _Writing(store, self.stamps, shards, self._converted, ready).close


class _Writing:
    """The thread that writes converted weights."""

    def __init__(
        self,
        store: WeightStore,
        stamps: Mapping[Path, Stamp],
        shards: list[tuple[str, list[jax.Array]]],
        infinite: Mapping[str, int],
        ready: Sequence[Future[None]],
    ):
        self._store, self._stamps, self._shards = store, stamps, shards
        self._infinite, self._ready = infinite, ready
        self._size = sum(array.nbytes for _, arrays in shards for array in arrays)
        self._closing, self._stopped = Event(), Event()
        self._work = Work(self._run, "keep-weights", self._closing.set)

    def close(self) -> None:
        """Wait for small weights to be written, or stop."""
        self._closing.set()
        if not self._must_stop():
            self._work.join(CLOSING_SECONDS)
        self._stopped.set()

    def _run(self) -> None:
        _be_patient()
        while not self._closing.is_set() and wait(self._ready, LOOK_SECONDS).not_done:
            pass
        while self._shards and not self._must_stop() and is_unchanged(self._stamps):
            name, arrays = self._shards.pop()
            forms, content = list(map(form_of, arrays)), partial(_bytes_of, arrays)
            try:
                self._store.write(name, forms, content, self._infinite[name], self._pause)
            except UnsafeStorage as error:
                warn(f"the converted weights are not kept: {error}")
                break
        self._shards.clear()

    def _pause(self, seconds: float) -> bool:
        """Wait, unless the session is closing. Return True to stop."""
        self._closing.wait(seconds)
        return self._must_stop()

    def _must_stop(self) -> bool:
        """Return True if the session is closing, and there is too much to write meanwhile."""
        return self._stopped.is_set() or (self._closing.is_set() and self._size > QUICK_BYTES)


def _name(subject: str, shard: Shard) -> str:
    """Return the name of a shard in the store. Each device has the whole tower."""
    shard = WHOLE if subject == TOWER else shard
    return f"{subject} {shard.rank} of {shard.of}"


def _stored(
    store: WeightStore,
    name: str,
    forms: Sequence[jax.ShapeDtypeStruct],
    put: Put,
    report_bytes: Callable[[int], None],
) -> ShardWeights | None:
    """Read stored weights onto a device, in several threads, with at most the largest array in host memory."""

    def load(stored: KeptWeights) -> ShardWeights | Exception:
        budget = ByteBudget(max(map(size_of, forms)))

        def read(index: int) -> jax.Array:
            form = forms[index]
            with budget.reserve(size_of(form)):
                array = empty(form.shape, form.dtype)
                stored.read_into(index, array)
                return put(array).block_until_ready()

        arrays, done = list[jax.Array](), 0
        with ThreadPoolExecutor(THREADS, "rekindle-load") as pool:
            try:
                for array in pool.map(read, range(len(forms))):
                    arrays.append(array)
                    done += (size := held_bytes(array, next(iter(array.devices())).platform))
                    report_bytes(size)
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                report_bytes(-done)
                if isinstance(error, jax.errors.JaxRuntimeError | MemoryError):  # no fault of the file
                    return error
                raise
        return ShardWeights(arrays, stored.infinite)

    weights = store.read(name, list(map(form_of, forms)), load)
    if isinstance(weights, Exception):
        raise weights
    return weights


def _bytes_of(arrays: Sequence[jax.Array], index: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of an array, (bytes,) uint8: its memory on CPUs, else a copy, which only the result holds.

    Raises:
        Stopped: the array was deleted, because other weights took its place.
    """
    array = arrays[index]
    try:
        alone = jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array])
        return np.ascontiguousarray(np.asarray(alone)).reshape(-1).view(np.uint8)
    except RuntimeError as error:
        raise Stopped from error


def _be_patient() -> None:
    """Let other threads go first, where a thread has a priority of its own."""
    if sys.platform != "linux":
        return
    with suppress(OSError):  # a sandbox may refuse
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
