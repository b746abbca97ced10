"""From a checkpoint's tensors to a decoder on the device."""

import mmap
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.concurrency.threads import TOO_LATE, ending
from rekindle.errors import ModelError
from rekindle.models.config import ModelConfig
from rekindle.models.decoder import Decoder, abstract_decoder
from rekindle.models.layers import Shapes

Array = np.ndarray[Any, np.dtype[Any]]

_THREADS: Final = min(4, os.cpu_count() or 1)


def load_decoder(
    config: ModelConfig,
    tensors: Mapping[str, Array],
    dtype: jnp.dtype,
    loaded: Callable[[int], None] = lambda _: None,
) -> Decoder:
    """Build the decoder, reading each tensor once, in several threads. Nothing is traced or compiled.

    Args:
        config: the model.
        tensors: by Hugging Face name, looked up when needed.
        dtype: that all weights are cast to.
        loaded: told, on the calling thread, how many tensors were read since it was last called.

    Raises:
        ModelError: the process is ending.
    """
    _, requests = abstract_decoder(config)
    with ThreadPoolExecutor(_THREADS, "rekindle-load") as pool:
        try:
            reading = deque(pool.submit(_joined, tensors, tuple(request), dtype) for request in requests)

            def weights(request: Shapes) -> jax.Array:
                array = reading.popleft().result()
                loaded(len(request))
                return array

            return Decoder(config, weights)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, RuntimeError) and ending():  # it takes nothing to do any more
                raise ModelError(TOO_LATE) from error
            raise


def _joined(tensors: Mapping[str, Array], names: tuple[str, ...], dtype: jnp.dtype) -> jax.Array:
    """The tensors, joined along their first axis, on the device.

    They are copied in every case: they may be views of a file, or the caller's. The copy is nobody else's, so that the
    CPU backend may keep it and need not make its own.
    """
    parts = [tensors[name] for name in names]
    whole = _empty((sum(len(part) for part in parts), *parts[0].shape[1:]), dtype)
    np.concatenate(parts, out=whole, casting="unsafe")
    array: jax.Array = jax.device_put(whole)
    return array


def _empty(shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Memory of whole pages: the CPU backend takes no array that begins anywhere, and free pages leave the process.

    The pages are small ones. numpy asks for huge ones, which in a virtual machine were seen to take five times as long
    at worst, where the host has to find them first.
    """
    size = int(np.prod(shape)) * dtype.itemsize
    if sys.platform == "win32":
        memory = mmap.mmap(-1, size)
    else:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype).reshape(shape)
