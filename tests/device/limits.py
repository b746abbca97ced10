"""Measure what steps are compared with: the rate of a copy, and of a matrix product."""

import jax

from tests.bench.kernels_gpu import copy_rate, matrix_rate
from tests.device.parts import Rows, main


def measure(rows: Rows) -> None:
    """Measure both limits."""
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit", 0)
    rows.add(**{"": "device", "value": f"{device.device_kind}, jax {jax.__version__}, {memory / 2**30:.0f} GiB"})
    copied, side, calls = (2**12, 64, 1) if rows.tiny else (2**30, 8192, 20)
    rows.attempt("copy, GB/s", lambda: {"value": copy_rate(copied, calls) / 1e9})
    rows.attempt("bfloat16 product, TFLOP/s", lambda: {"value": matrix_rate(side, "bfloat16", calls) / 1e12})
    rows.attempt("float32 product, TFLOP/s", lambda: {"value": matrix_rate(side, "float32", calls) / 1e12})


if __name__ == "__main__":
    main(measure)
