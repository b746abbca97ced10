"""Digests of weights given as arrays, from all their numbers, on the devices where they are."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.core.content import content_digest

BLOCK: Final = 1 << 18
"""Numbers of an array of the host digested at once, which stay in a core's cache."""
THREADS: Final = 4
_UNSIGNED: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def arrays_digest(arrays: Mapping[str, Any]) -> str:
    """Return a digest of the names and all numbers of arrays, the same for arrays of NumPy and of JAX.

    Arrays on accelerators are summed there, so that nothing is copied to the host.
    """
    on_devices = {name: _device_sums(array) for name, array in arrays.items() if _is_on_accelerator(array)}
    rest = {name: np.asarray(array) for name, array in arrays.items() if name not in on_devices}
    with ThreadPoolExecutor(THREADS) as threads:
        sums = {**on_devices, **dict(zip(rest, threads.map(_host_sums, rest.values()), strict=True))}
    content = {
        name: [array.dtype.name, list(array.shape), [int(each) for each in sums[name]]]
        for name, array in sorted(arrays.items())
    }
    return content_digest(content)


def _is_on_accelerator(array: Any) -> bool:
    """Return True for an array to be summed on its devices."""
    if not isinstance(array, jax.Array) or array.dtype.itemsize not in _UNSIGNED:
        return False
    return any(device.platform != "cpu" for device in array.devices())


def _host_sums(array: np.ndarray[Any, Any]) -> list[int]:
    """Return two sums over the mixed bits and places of an array's numbers."""
    width = array.dtype.itemsize if array.dtype.itemsize in _UNSIGNED else 1
    bits = np.ascontiguousarray(array).reshape(-1).view(_UNSIGNED[width])
    total = np.zeros(2, np.uint32)
    for begin in range(0, len(bits), BLOCK):
        block = bits[begin : begin + BLOCK].astype(np.uint32)
        places = np.arange(begin, begin + len(block), dtype=np.uint64).astype(np.uint32)
        total += np.array([np.sum(each, dtype=np.uint32) for each in _mixed(block, places)], np.uint32)
    return total.tolist()


@jax.jit
def _device_sums(array: jax.Array) -> list[jax.Array]:
    """Return the sums of `_host_sums`, computed where the array is."""
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    bits = jax.lax.bitcast_convert_type(array, _UNSIGNED[array.dtype.itemsize]).reshape(-1).astype(jnp.uint32)
    places = jax.lax.iota(jnp.uint32, bits.size)
    return [jnp.sum(each, dtype=jnp.uint32) for each in _mixed(bits, places)]


def _mixed(bits: Any, places: Any) -> Iterator[Any]:
    """Yield two mixtures of the bits and the places of numbers, by the finalizer of MurmurHash3."""
    for seed in (0x9E3779B1, 0x85EBCA6B):
        mixed = bits ^ (places * np.uint32(seed))
        mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        yield mixed ^ (mixed >> np.uint32(16))
