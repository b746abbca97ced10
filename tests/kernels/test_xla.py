"""The portable implementation holds to the reference."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from rekindle_kernels import api
from tests.kernels.suite import Suite

pytestmark = pytest.mark.kernel


@pytest.mark.wide
class TestXla(Suite):
    implementation = "xla"


@pytest.mark.parametrize(("dtype", "count"), [("float32", 2), ("bfloat16", 0), ("int8", 0)])
def test_both_products_over_float32_pages_are_rounded_on_no_device(dtype: str, count: int) -> None:
    """Read the program, since a CPU rounds to TF32 in no case."""
    empty = partial(api.empty, (5, 2, 1, 16, 64), jnp.dtype(dtype), implementation="xla")
    row = jax.ShapeDtypeStruct((1,), jnp.int32)
    q, table = jax.ShapeDtypeStruct((1, 2, 64), jnp.float32), jax.ShapeDtypeStruct((1, 4), jnp.int32)
    attend = jax.jit(partial(api.attend_rows, scale=0.125, implementation="xla"))
    program = attend.lower(q, jax.eval_shape(empty), table, row).as_text()
    assert program.count("precision = [HIGHEST, HIGHEST]") == count
