"""The platform and the pool decide which kernels run, and wrong arguments are refused."""

import subprocess
import sys
from typing import get_args

import jax
import jax.numpy as jnp
import pytest

from rekindle_kernels import api
from rekindle_kernels.cpu import library
from rekindle_kernels.operations import Operations

POOL = (4, 2, 2, 16, 64)
HERE = "cpu" if library.unavailable_reason() is None else "xla"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("platform", "name"), [("cpu", HERE), ("tpu", "tpu"), ("gpu", "gpu"), ("cuda", "gpu")])
def test_a_platform_gets_its_own_kernels(platform: str, name: str, dtype: str) -> None:
    assert api.choose(platform, POOL, jnp.dtype(dtype)) == name


@pytest.mark.parametrize("platform", ["tpu", "gpu", "another"])
def test_pages_that_only_the_portable_kernels_can_read_choose_them(platform: str) -> None:
    assert api.choose(platform, POOL, jnp.dtype("uint16")) == "xla"


def test_this_process_runs_the_kernels_of_its_platform_without_being_told() -> None:
    pages = api.empty(POOL, jnp.dtype("bfloat16"))
    assert pages.dtype == jnp.uint16
    program = jax.jit(api.read_page).lower(pages, jnp.int32(0)).as_text()
    assert ("rekindle_read_page" in program) == (HERE == "cpu")


def test_pallas_is_imported_only_where_its_kernels_are_asked_for() -> None:
    script = (
        "import sys, jax.numpy as jnp; from rekindle_kernels import api; "
        "api.read_page(api.empty((2, 2, 1, 16, 8), jnp.dtype('float32')), jnp.int32(0)); "
        "assert not [name for name in sys.modules if 'pallas' in name]"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_arguments_that_do_not_fit_are_named() -> None:
    pages = api.empty((4, 2, 2, 16, 8), jnp.dtype("float32"))
    q, table, visible = jnp.zeros((3, 4, 8)), jnp.zeros((3, 2), jnp.int32), jnp.zeros(3, jnp.int32)
    with pytest.raises(ValueError, match="5 query heads cannot share 2"):
        api.attend_rows(jnp.zeros((3, 5, 8)), pages, table, visible, scale=1.0)
    with pytest.raises(ValueError, match="visible"):
        api.attend_rows(q, pages, table, visible[:2], scale=1.0)
    with pytest.raises(ValueError, match=r"pages must be \(pages, sides, kv_heads, page_size, width\)"):
        api.attend_rows(q, pages[0], table, visible, scale=1.0)
    with pytest.raises(
        ValueError,
        match=r"pages of head_dim 12 must be \(4, 2, 2, 16, 12\) or \(4, 1, .* got \(4, 2, 2, 16, 8\)",
    ):
        api.attend_rows(jnp.zeros((3, 4, 12)), pages, table, visible, scale=1.0)
    with pytest.raises(ValueError, match="page_table must be"):
        api.attend_rows(q, pages, table[0], visible, scale=1.0)
    with pytest.raises(ValueError, match=r"4 heads have a sink each, got \(3,\)"):
        api.attend_rows(q, pages, table, visible, scale=1.0, sinks=jnp.zeros(3))
    with pytest.raises(ValueError, match="window must be at least 1"):
        api.attend_rows(q, pages, table, visible, scale=1.0, window=0)
    with pytest.raises(ValueError, match="soft_cap must be above 0"):
        api.attend_rows(q, pages, table, visible, scale=1.0, soft_cap=0.0)
    with pytest.raises(ValueError, match="block_sequence and block_start must be"):
        api.attend_blocks(q[:, None], pages, table, visible, visible[:1], scale=1.0)
    with pytest.raises(ValueError, match='one of "xla", "reference", "cpu", "tpu", "gpu", got \'cuda\''):
        api.attend_rows(q, pages, table, visible, scale=1.0, implementation="cuda")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="do not fit pages"):
        api.write(pages, jnp.zeros((1, 2, 3, 1, 8)), jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))
    with pytest.raises(ValueError, match="as many page ids and offsets"):
        api.write(pages, jnp.zeros((1, 2, 2, 1, 8)), jnp.zeros(2, jnp.int32), jnp.zeros(1, jnp.int32))
    with pytest.raises(ValueError, match="page_id must be a scalar"):
        api.read_page(pages, jnp.zeros(1, jnp.int32))
    with pytest.raises(ValueError, match=r"a page of these pages is \(2, 2, 16, 8\) float32, got .* int32"):
        api.write_page(pages, jnp.int32(1), jnp.zeros((2, 2, 16, 8), jnp.int32))
    with pytest.raises(ValueError, match=r"a page of these pages is .*, got \(2, 16, 8\)"):
        api.write_page(pages, jnp.int32(1), jnp.zeros((2, 16, 8)))
    with pytest.raises(ValueError, match=r'"reference" cannot serve pages .* int32: numbers must be floating'):
        api.read_page(pages.astype(jnp.int32), jnp.int32(1), implementation="reference")


@pytest.mark.parametrize("implementation", get_args(api.Implementation))
def test_each_implementation_has_every_operation(implementation: api.Implementation) -> None:
    operations = api.operations_of(implementation)
    names = [name for name in vars(Operations) if not name.startswith("_")]
    assert "attend_rows" in names
    assert [name for name in names if not callable(getattr(operations, name, None))] == []
