"""The GPU kernels hold to the reference in float64, however they are cut. Without a GPU, they are interpreted."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle_kernels import api
from rekindle_kernels.gpu.rows import _splits
from rekindle_kernels.gpu.target import Target, current, tracing_for
from rekindle_kernels.gpu.tuning import tuning
from tests.kernels.cases import HEAD_DIMS, RTOL, Contexts, Shape, queries, scale_of, stored
from tests.kernels.suite import Suite, unoptimized

pytestmark = pytest.mark.wide


@contextmanager
def interpreted() -> Iterator[None]:
    with unoptimized(), tracing_for(Target(interpret=jax.default_backend() != "gpu")):
        yield


class TestGpu(Suite):
    implementation = "gpu"

    def running(self) -> AbstractContextManager[object]:
        return interpreted()

    def rtol(self, dtype: str) -> float:
        """Return the tolerance for pages of a dtype: products over int8 are of bfloat16."""
        return RTOL["bfloat16" if dtype == "int8" else dtype]

    def test_a_large_group_of_heads(self) -> None:
        """Check heads in several tiles: one tile of queries has no room for all."""
        shape = Shape(group=12, kv_heads=1, dtype="bfloat16")
        self.check_rows(shape, [40, 0])
        self.check_blocks(shape, [(0, 3)], 1)

    @pytest.mark.parametrize("window", [None, 150])
    def test_positions_that_a_whole_tile_of_queries_sees_are_not_masked(self, window: int | None) -> None:
        shape = Shape(dtype="bfloat16", kv_heads=1, pages_per_sequence=24, window=window)
        self.check_blocks(shape, [(12, 12)], 0)

    def test_one_sequence_s_nan_stays_out_of_another_in_the_same_tile(self) -> None:
        shape = Shape(group=1, dtype="bfloat16")
        contexts = Contexts(shape, [(0, 32), (0, 32)])
        contexts.numbers[contexts.table[1, 0], 1] = np.nan
        q = jnp.asarray(queries(shape, 4, 16), jnp.float32)
        arrays = (contexts.table, np.asarray([0, 0, 1, 1], np.int32), np.asarray([0, 16, 0, 16], np.int32))
        pages = stored(contexts.numbers, shape.dtype, "gpu")
        with self.running():
            out = api.attend_blocks(q, pages, *map(jnp.asarray, arrays), scale=scale_of(shape), implementation="gpu")
        assert np.isfinite(out[:2]).all()
        assert np.isnan(out[2:]).all()

    def test_blocks_of_any_length(self) -> None:
        """Check blocks of any length, each with a neighbour: inside, a block is padded to a power of two."""
        shape = Shape(dtype="bfloat16", pages_per_sequence=6)
        contexts = Contexts(shape, [(0, 96)])
        q = jnp.asarray(queries(shape, 96), jnp.float32)
        pages, table = stored(contexts.numbers, shape.dtype, "gpu"), jnp.asarray(contexts.table)
        outs = []
        with self.running():
            for tokens in (12, 8):
                blocks = 96 // tokens
                starts = jnp.arange(blocks, dtype=jnp.int32) * tokens
                out = api.attend_blocks(
                    q.reshape(blocks, tokens, *q.shape[1:]), pages, table, jnp.zeros_like(starts), starts,
                    scale=scale_of(shape), implementation="gpu",
                )  # fmt: skip
                outs.append(np.asarray(out).reshape(q.shape))
        np.testing.assert_allclose(outs[0], outs[1], rtol=1e-2, atol=1e-2)


def test_contexts_are_split_until_the_programs_are_enough_and_no_further_than_tiles() -> None:
    assert _splits(8, 512, 1000) == 64
    assert _splits(256, 1056, 64) == 8
    assert _splits(8, 512, 3) == 4
    assert _splits(4096, 512, 1000) == 1


@pytest.mark.parametrize("head_dim", [16, *HEAD_DIMS])
@pytest.mark.parametrize("kind", ["", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "unheard of"])
def test_every_device_has_tiles_of_powers_of_two(kind: str, head_dim: int) -> None:
    for operation in ("rows", "blocks"):
        for dtype in (jnp.bfloat16, jnp.float16, jnp.float32, jnp.int8):
            tile = tuning(kind).tile(operation, jnp.dtype(dtype), head_dim)
            for size in (tile.queries, tile.keys, tile.warps):
                assert size > 0
                assert size & (size - 1) == 0
            assert min(tile.queries, tile.keys) >= 16


def test_a_named_device_is_tuned_apart_from_the_default() -> None:
    assert tuning("NVIDIA H100 80GB HBM3") == tuning("NVIDIA H100")
    assert tuning("NVIDIA H100 80GB HBM3") != tuning("")
    assert tuning("unheard of") == tuning("")


def test_the_target_is_this_process_s_own_outside_of_another() -> None:
    here = Target(jax.devices()[0].device_kind if jax.default_backend() == "gpu" else "")
    with tracing_for(Target("NVIDIA H100")):
        assert current() == Target("NVIDIA H100")
    assert current() == here


def test_other_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="numbers must be float32, bfloat16, float16 or int8"):
        api.empty((2, 2, 1, 16, 64), jnp.dtype("float8_e4m3fn"), implementation="gpu")
