"""Measure attention kernels on a GPU against the rates of the GPU itself, cuDNN, and JAX's own paged attention.

`python -m tests.bench.kernels_gpu` on a machine with a GPU; `--tiny` runs the same anywhere, interpreted, to see that
it works. `--sweep` tries other tiles than tuning.json's and prints their times.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rekindle_kernels import api
from rekindle_kernels.gpu.target import Target, current, tracing_for
from rekindle_kernels.gpu.tuning import Operation, Tile, Tuning
from rekindle_kernels.xla import scaled
from tests.bench.say import say

Calls = Callable[["Sizes"], Iterator[tuple[str, Callable[[], float]]]]
BLOCK_TOKENS = 16
ROUNDS = 5


@dataclass(frozen=True)
class Sizes:
    """The measured sizes: decode rows over a context, and one chunk over the cached part of its prompt."""

    rows: int = 32
    context: int = 4096
    chunk: int = 2048
    cached: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 16
    dtype: str = "bfloat16"
    copied: int = 2**30
    matrix: int = 8192
    calls: int = 20


TINY = Sizes(
    rows=2, context=64, chunk=32, cached=32, heads=4, kv_heads=2, head_dim=64, copied=2**12, matrix=64, calls=1
)


@dataclass(frozen=True)
class Result:
    """One row of the table; `fraction` is of the copy bandwidth or the matrix rate, measured in the same run."""

    name: str
    seconds: float
    rate: float
    fraction: float


def seconds(function: Callable[..., jax.Array], *arguments: Any, calls: int) -> float:
    """Return the median time of a call, with many calls in flight to hide the host's part."""
    function(*arguments).block_until_ready()
    times = []
    for _ in range(ROUNDS):
        started = perf_counter()
        outputs = [function(*arguments) for _ in range(calls)]
        outputs[-1].block_until_ready()
        times.append((perf_counter() - started) / calls)
    return median(times)


def copy_rate(size: int, calls: int) -> float:
    """Return the bytes a second that are read and written to negate `size` bytes."""
    numbers = jnp.ones(size // 4, jnp.float32)
    return 2 * numbers.nbytes / seconds(jax.jit(jnp.negative), numbers, calls=calls)


def matrix_rate(size: int, dtype: str, calls: int) -> float:
    """Return the operations a second of a square matrix product of random numbers."""
    a, b = (random(key, (size, size), dtype) for key in (0, 1))
    return 2 * size**3 / seconds(jax.jit(jnp.matmul), a, b, calls=calls)


def random(key: int, shape: tuple[int, ...], dtype: str) -> jax.Array:
    """Draw normal numbers on the device."""
    numbers: jax.Array = jax.jit(lambda: jax.random.normal(jax.random.key(key), shape, jnp.dtype(dtype)))()
    return numbers


def pool(sizes: Sizes, sequences: int, positions: int) -> tuple[jax.Array, jax.Array]:
    """Make pages in a random order, and the page table of each sequence."""
    per_sequence = -(-positions // sizes.page_size)
    shape = (1 + sequences * per_sequence, 2, sizes.kv_heads, sizes.page_size, sizes.head_dim)
    order = np.random.default_rng(0).permutation(np.arange(1, shape[0], dtype=np.int32))
    return random(2, shape, sizes.dtype), jnp.asarray(order.reshape(sequences, per_sequence))


def decode_calls(sizes: Sizes) -> Iterator[tuple[str, Callable[[], float]]]:
    """Yield each contender for the decode rows, and how to time it."""
    q = random(3, (sizes.rows, sizes.heads, sizes.head_dim), sizes.dtype)
    pages, table = pool(sizes, sizes.rows, sizes.context)
    scale = sizes.head_dim**-0.5
    lengths = jnp.full(sizes.rows, sizes.context, jnp.int32)
    for implementation in ("gpu", "xla"):
        attend = jax.jit(partial(api.attend_rows, scale=scale, implementation=implementation))
        stored = pages if implementation == "gpu" else jax.lax.bitcast_convert_type(pages, _stored_by_xla(sizes))
        yield f"ours, {implementation}", partial(seconds, attend, q, stored, table, lengths, calls=sizes.calls)
        small = partial(seconds, attend, q, jax.jit(scaled.quantize)(pages), table, lengths, calls=sizes.calls)
        yield f"ours, {implementation}, pages in int8, rate of {sizes.dtype}", small

    def jax_paged() -> float:
        from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

        apart = jnp.moveaxis(pages, 2, 0)
        per_split = max(1, table.shape[1] // 16)
        attend = partial(
            paged_attention, k_splits=min(16, table.shape[1]), pages_per_compute_block=min(8, per_split),
            interpret=current().interpret,
        )  # fmt: skip
        return seconds(attend, q * scale, apart[:, :, 0], apart[:, :, 1], table, lengths, calls=sizes.calls)

    yield "jax.experimental.pallas.ops.gpu.paged_attention", jax_paged
    yield "cuDNN, keys and values contiguous", partial(cudnn_seconds, sizes, sizes.rows, 1, sizes.context)


def prefill_calls(sizes: Sizes) -> Iterator[tuple[str, Callable[[], float]]]:
    """Yield each contender for the chunk, and how to time it."""
    blocks = sizes.chunk // BLOCK_TOKENS
    q = random(3, (blocks, BLOCK_TOKENS, sizes.heads, sizes.head_dim), sizes.dtype)
    pages, table = pool(sizes, 1, sizes.cached + sizes.chunk)
    owners = jnp.zeros(blocks, jnp.int32)
    starts = sizes.cached + BLOCK_TOKENS * jnp.arange(blocks, dtype=jnp.int32)
    attend = jax.jit(partial(api.attend_blocks, scale=sizes.head_dim**-0.5, implementation="gpu"))
    yield "ours, gpu", partial(seconds, attend, q, pages, table, owners, starts, calls=sizes.calls)
    small = partial(seconds, attend, q, jax.jit(scaled.quantize)(pages), table, owners, starts, calls=sizes.calls)
    yield "ours, gpu, pages in int8", small
    # The masks of cuDNN begin at the first key, so it gets as many operations without a mask.
    keys = sizes.cached + sizes.chunk // 2
    yield "cuDNN, as many operations, no mask", partial(cudnn_seconds, sizes, 1, sizes.chunk, keys)


def cudnn_seconds(sizes: Sizes, sequences: int, queries: int, keys: int) -> float:
    """Return the median time of cuDNN's attention without a mask."""
    q = random(3, (sequences, queries, sizes.heads, sizes.head_dim), sizes.dtype)
    k, v = (random(key, (sequences, keys, sizes.kv_heads, sizes.head_dim), sizes.dtype) for key in (4, 5))
    attend = jax.jit(partial(jax.nn.dot_product_attention, implementation="cudnn"))
    return seconds(attend, q, k, v, calls=sizes.calls)


def _stored_by_xla(sizes: Sizes) -> jnp.dtype:
    form = jax.eval_shape(lambda: api.empty((1, 2, 1, 1, 1), jnp.dtype(sizes.dtype), implementation="xla"))
    stored: jnp.dtype = jnp.dtype(form.dtype)
    return stored


def measure(sizes: Sizes) -> dict[str, Any]:
    """Measure the whole table."""
    copy, matrix = copy_rate(sizes.copied, sizes.calls), matrix_rate(sizes.matrix, sizes.dtype, sizes.calls)
    say(f"copy {copy / 1e9:.0f} GB/s, matrix product {matrix / 1e12:.1f} TFLOP/s")
    positions = sizes.rows * sizes.context
    read_bytes = 2 * positions * sizes.kv_heads * sizes.head_dim * jnp.dtype(sizes.dtype).itemsize
    flops = 4 * sizes.chunk * (sizes.cached + (sizes.chunk + 1) / 2) * sizes.heads * sizes.head_dim
    decode = [result for call in decode_calls(sizes) for result in _try(*call, read_bytes, copy, "GB/s", 1e9)]
    prefill = [result for call in prefill_calls(sizes) for result in _try(*call, flops, matrix, "TFLOP/s", 1e12)]
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "sizes": asdict(sizes),
        "copy": copy,
        "matrix": matrix,
        "decode": list(map(asdict, decode)),
        "prefill": list(map(asdict, prefill)),
    }


def _try(name: str, call: Callable[[], float], work: float, limit: float, unit: str, scale: float) -> Iterator[Result]:
    """Yield the result of a contender. If it cannot run here, print why and yield nothing."""
    try:
        result = Result(name, elapsed := call(), work / elapsed, work / elapsed / limit)
    except Exception as error:
        say(f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        return
    say(f"{name:50s} {1e6 * result.seconds:10.1f} us {result.rate / scale:9.1f} {unit} {result.fraction:.3f}")
    yield result


def sweep(sizes: Sizes) -> None:
    """Measure each kernel with each tile; print the tiles that do not fit the GPU."""
    grids: dict[Operation, list[tuple[int, int, int, int]]] = {
        "rows": list(itertools.product((16,), (32, 64, 128), (2, 4, 8), (2, 3, 4))),
        "blocks": list(itertools.product((64, 128, 256), (32, 64, 128), (4, 8), (2, 3, 4))),
    }
    tuning = current().tuning()
    contenders: dict[Operation, Calls] = {"rows": decode_calls, "blocks": prefill_calls}
    for operation, calls in contenders.items():
        for programs in (256, 512, 1024, 2048) if operation == "rows" else (tuning.programs,):
            for numbers in grids[operation]:
                tile = Tile(*numbers)
                tiles = {**tuning.tiles, (operation, sizes.dtype, sizes.head_dim): tile}
                with tracing_for(replace(current(), trial=Tuning(programs, tiles))):
                    _, call = next(iter(calls(sizes)))
                    try:
                        say(f"{operation} {programs} {tile}: {1e6 * call():.1f} us")
                    except Exception as error:
                        say(f"{operation} {programs} {tile}: {type(error).__name__}")


def main() -> None:
    """Parse the arguments, measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in asdict(Sizes()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=None, help=f"default {default}")
    parser.add_argument("--tiny", action="store_true", help="small sizes, interpreted where there is no GPU")
    parser.add_argument("--sweep", action="store_true", help="try other tiles")
    parser.add_argument("--out", help="write the numbers to this JSON file")
    arguments = vars(parser.parse_args())
    options = {name: arguments[name] for name in asdict(Sizes()) if arguments[name] is not None}
    sizes = replace(TINY if arguments["tiny"] else Sizes(), **options)
    interpreted = jax.default_backend() != "gpu"
    if interpreted and not arguments["tiny"]:
        parser.error("there is no GPU here; --tiny shows that the script works")
    with tracing_for(Target(interpret=True)) if interpreted else nullcontext():
        if arguments["sweep"]:
            sweep(sizes)
            return
        results = measure(sizes)
    if arguments["out"]:
        with open(arguments["out"], "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
