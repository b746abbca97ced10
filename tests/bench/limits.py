"""Print the memory bandwidth and the matrix rate of this machine, as XLA reaches both, as one line of JSON."""

import json
import statistics
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

READ_BYTES = 1 << 30
MATRIX = 2048
REPEATS = 5


def measure() -> dict[str, float]:
    """Measure the bytes read in a second, and the operations a second of a square product in each dtype."""
    return {
        "bandwidth": _bandwidth(),
        "float32": _matrix_rate(jnp.float32),
        "bfloat16": _matrix_rate(jnp.bfloat16),
    }


def _bandwidth() -> float:
    """Measure the fastest of a few reductions, because not every machine reads memory best by the same one."""
    values = jnp.ones((READ_BYTES // 4096, 1024), jnp.float32)
    programs = [
        jax.jit(lambda x: x.sum()),
        jax.jit(lambda x: x.sum(axis=1)),
        jax.jit(lambda x: x.reshape(64, -1, 1024).sum(axis=1)),
    ]
    return READ_BYTES / min(_median_s(partial(program, values)) for program in programs)


def _matrix_rate(dtype: jax.typing.DTypeLike) -> float:
    key_a, key_b = jax.random.split(jax.random.key(0))
    a = jax.random.normal(key_a, (MATRIX, MATRIX), jnp.float32).astype(dtype)
    b = jax.random.normal(key_b, (MATRIX, MATRIX), jnp.float32).astype(dtype)
    product = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
    return float(2 * MATRIX**3 / _median_s(partial(product, a, b)))


def _median_s(call: Callable[[], jax.Array]) -> float:
    call().block_until_ready()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call().block_until_ready()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    print(json.dumps(measure()))
