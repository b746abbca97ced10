"""Compare both kernels for prompts' attention with cuDNN: the entry "wgmma" of tuning.json names the better tiles.

The kernel by warpgroups comes last in the run, because it has not run on a device yet: if it hangs, the other parts
have their rows.
"""

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from rekindle_kernels import api
from rekindle_kernels.gpu.target import Target, tracing_for
from tests.bench.kernels_gpu import BLOCK_TOKENS, TINY, Sizes, cudnn_seconds, pool, random, seconds
from tests.device.kernels import run_suite
from tests.device.parts import Rows, main
from tests.kernels.warpgroups import with_warpgroups

TILES = {64: ((128, 4), (128, 2), (64, 4)), 128: ((128, 2), (64, 4), (64, 2))}
"""The keys and the stages to try, by head_dim."""
HEADS = ((64, 32, 8), (128, 32, 8))
CACHED = (0, 4096, 14_336)


class Prompt:
    """A chunk of a prompt after a cached part.

    Args:
        sizes: the sizes of both.
    """

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        blocks = sizes.chunk // BLOCK_TOKENS
        pages, table = pool(sizes, 1, sizes.cached + sizes.chunk)
        starts = sizes.cached + BLOCK_TOKENS * jnp.arange(blocks, dtype=jnp.int32)
        q = random(3, (blocks, BLOCK_TOKENS, sizes.heads, sizes.head_dim), sizes.dtype)
        self._arrays = (q, pages, table, jnp.zeros(blocks, jnp.int32), starts)
        self._operations = 4 * sizes.chunk * (sizes.cached + (sizes.chunk + 1) / 2) * sizes.heads * sizes.head_dim
        self._expected: jax.Array | None = None

    def ours(self, kernel: AbstractContextManager[None]) -> dict[str, Any]:
        """Return the rate of one of our kernels, and the difference of its results from those of the first."""
        attend = jax.jit(partial(api.attend_blocks, scale=self.sizes.head_dim**-0.5, implementation="gpu"))
        with kernel:
            results = attend(*self._arrays)
            rate = self._operations / seconds(attend, *self._arrays, calls=self.sizes.calls)
        self._expected = results if self._expected is None else self._expected
        difference = float(jnp.abs(results - self._expected).max() / jnp.abs(self._expected).max())
        return {"TFLOP/s": rate / 1e12, "difference": difference}

    def cudnn(self) -> dict[str, Any]:
        """Return the rate of cuDNN for as many operations, without a mask."""
        elapsed = cudnn_seconds(self.sizes, 1, self.sizes.chunk, self.sizes.cached + self.sizes.chunk // 2)
        return {"TFLOP/s": self._operations / elapsed / 1e12}


def measure(rows: Rows) -> None:
    """Run the kernel's tests, then measure each prompt, as far as the limit allows.

    A tiny run has float32, so all of its rows are of the first kernel: the other one is slow to interpret.
    """
    if not rows.tiny:
        run_suite(rows, "tests/kernels/test_warpgroups.py")
    device_kind = jax.devices()[0].device_kind
    cases = [(64, 2, 1)] if rows.tiny else list(HEADS)
    for cached, (head_dim, heads, kv_heads) in product((32,) if rows.tiny else CACHED, cases):
        size: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "cached": cached}
        prompt = Prompt(replace(replace(TINY, dtype="float32") if rows.tiny else Sizes(), **size))
        name = f"heads of {head_dim}, {prompt.sizes.chunk} tokens after {cached}"
        first = tracing_for(Target(device_kind, interpret=rows.tiny))
        rows.attempt(f"{name}: blocks", partial(prompt.ours, first))
        for keys, stages in TILES[head_dim][: 1 if rows.tiny else None]:
            tiles = with_warpgroups(device_kind, keys, stages)
            kernel = tracing_for(Target(device_kind, interpret=rows.tiny, trial=tiles))
            rows.attempt(f"{name}: warpgroups, {keys} keys, {stages} stages", partial(prompt.ours, kernel))
        if not rows.tiny:
            rows.attempt(f"{name}: cuDNN without a mask", prompt.cudnn)


if __name__ == "__main__":
    main(measure)
