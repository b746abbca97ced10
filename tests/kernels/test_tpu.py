"""The TPU kernels hold to the reference in an interpreter that finds races and fills unwritten memory with NaN."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax.experimental.pallas import tpu as pltpu
from numpy.typing import NDArray

from rekindle_kernels.tpu import form, tuning
from tests.kernels.cases import Floats, Shape
from tests.kernels.suite import Suite, unoptimized

pytestmark = pytest.mark.wide


class TestTpu(Suite):
    implementation = "tpu"

    def running(self) -> AbstractContextManager[object]:
        return interpreted()

    def stored(self, numbers: Floats, dtype: str) -> jax.Array:
        pool = jax.ShapeDtypeStruct(form.stored_shape(numbers.shape), jnp.dtype(dtype))
        return form.pack(jnp.asarray(numbers, jnp.float32), pool)

    def loaded(self, pages: jax.Array, dtype: str, head_dim: int) -> NDArray[np.float32]:
        numbers = np.asarray(pages, np.float32)
        if numbers.shape[1] == 1 and 2 * head_dim > form.LANES:
            return numbers[..., :head_dim]
        begin = head_dim * (2 - numbers.shape[1])
        return np.concatenate([numbers[:, :1, ..., :head_dim], numbers[:, -1:, ..., begin : begin + head_dim]], axis=1)

    @pytest.mark.parametrize("stages", [2, 3])
    def test_many_small_tiles_go_round_the_buffer(self, stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Go round over several runs and grid steps, with empty runs in between."""
        small = {"row_tile": 32, "block_tile": 32, "row_stages": stages, "block_stages": stages}
        use(monkeypatch, replace(tuning.tuning(), step_rows=3, window_rows=64, **small))
        shape = Shape(pages_per_sequence=20, dtype="bfloat16", kv_heads=1, window=150)
        self.check_rows(shape, [65, 0, 310, 0, 0, 0, 97, 1, 0])
        self.check_blocks(shape, [(3, 5), (0, 1), (17, 3), (9, 2)], 3)

    @pytest.mark.parametrize("visible", [[1], [16 * 40 - 7]])
    def test_a_context_that_is_split_over_cores(self, visible: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        use(monkeypatch, replace(tuning.tuning(), cores=2))
        self.check_rows(Shape(pages_per_sequence=40, dtype="bfloat16", window=520), visible)


def use(monkeypatch: pytest.MonkeyPatch, sizes: tuning.Tuning) -> None:
    """Use other sizes than tuning.json's."""
    monkeypatch.setattr(tuning, "_kinds", lambda: {"default": sizes})


@contextmanager
def interpreted() -> Iterator[None]:
    params = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    try:
        with unoptimized(), pltpu.force_tpu_interpret_mode(params):
            yield
        assert interpreter.races is None or not interpreter.races.races_found
    finally:
        pltpu.reset_tpu_interpret_mode_state()
