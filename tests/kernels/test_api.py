"""The platform and the pool decide which kernels run, and wrong arguments are refused."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle_kernels import api
from rekindle_kernels.cpu import library
from rekindle_kernels.devices import capability_of
from rekindle_kernels.operations import Operations

POOL = (4, 2, 2, 16, 64)
HERE = "cpu" if library.unavailable_reason() is None else "xla"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("platform", "name"), [("cpu", HERE), ("tpu", "tpu"), ("gpu", "gpu"), ("cuda", "gpu")])
def test_a_platform_gets_its_own_kernels(platform: str, name: str, dtype: str) -> None:
    assert api.choose(platform, [POOL], jnp.dtype(dtype)) == api.Choice(cast(Any, name))


@pytest.mark.parametrize(
    ("capability", "name"),
    [((6, 1), "xla"), ((7, 0), "xla"), ((7, 5), "xla"), ((8, 0), "gpu"), ((8, 9), "gpu"), ((12, 0), "gpu")],
)
def test_a_gpu_gets_pallas_from_the_compute_capability_on_that_triton_compiles_for(
    capability: tuple[int, int], name: str
) -> None:
    dtype = jnp.dtype("float16")
    chosen, reason = choice = api.choose("gpu", [POOL], dtype, weights=dtype, capability=capability)
    assert chosen == name
    own = ".".join(map(str, capability))
    assert reason == ("" if name == "gpu" else f"Pallas needs compute capability 8.0, and this GPU has {own}")
    assert str(choice) == (f"xla kernels ({reason})" if reason else "gpu kernels")
    assert api.choose("gpu", [POOL], dtype, "xla", capability=capability) == ("xla", ""), "they are wanted"


def test_kernels_that_do_not_compile_for_a_gpu_are_refused_with_what_to_do() -> None:
    with pytest.raises(
        ValueError,
        match=r'implementation "gpu" cannot serve .* on gpu: Pallas needs compute capability 8\.0, and this GPU has '
        r'7\.5\. Leave it out, or take "xla"',
    ):
        api.choose("gpu", [POOL], jnp.dtype("float16"), "gpu", capability=(7, 5))


def test_a_jax_without_the_triton_lowering_leaves_the_portable_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    dtype = jnp.dtype("bfloat16")
    chosen, reason = api.choose("gpu", [POOL], dtype, capability=(9, 0))
    assert chosen == "xla"
    assert reason == f"JAX {jax.__version__} cannot compile Pallas kernels by Triton"
    with pytest.raises(ValueError, match=r"cannot compile Pallas kernels by Triton\. Leave it out"):
        api.choose("gpu", [POOL], dtype, "gpu", capability=(9, 0))
    assert api.choose("tpu", [POOL], dtype) == ("tpu", "")


@pytest.mark.parametrize(
    ("text", "capability"), [("7.5", (7, 5)), ("12.0", (12, 0)), ("gfx942", None), ("", None), (None, None)]
)
def test_the_capability_of_a_device_is_that_of_nvidia_s_gpus(
    text: str | None, capability: tuple[int, int] | None
) -> None:
    device = SimpleNamespace() if text is None else SimpleNamespace(compute_capability=text)
    assert capability_of(cast(jax.Device, device)) == capability


@pytest.mark.parametrize("pages", ["float32", "float16", "int8"])
def test_native_kernels_have_no_weights_of_float16(pages: str) -> None:
    half = jnp.dtype("float16")
    chosen, reason = api.choose("cpu", [POOL], jnp.dtype(pages), weights=half)
    assert chosen == "xla"
    assert reason
    with pytest.raises(ValueError, match="weights must be float32 or bfloat16"):
        api.choose("cpu", [POOL], jnp.dtype(pages), "cpu", weights=half)


@pytest.mark.parametrize("platform", ["tpu", "gpu", "another"])
def test_pages_that_only_the_portable_kernels_can_read_choose_them(platform: str) -> None:
    assert api.choose(platform, [POOL], jnp.dtype("uint16")).implementation == "xla"


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


@pytest.mark.parametrize("implementation", ["xla", "cpu", "reference"])
def test_scores_have_a_summand_by_the_distance_of_the_key(implementation: api.Implementation) -> None:
    tokens, heads, kv_heads, size, farthest = 32, 4, 2, 32, 5
    chance = np.random.default_rng(0)
    q, k, v = (chance.standard_normal((tokens, count, size)) for count in (heads, kv_heads, kv_heads))
    bias = chance.standard_normal((heads, 2 * farthest + 1))
    pages = api.empty((3, 2, kv_heads, 16, size), jnp.dtype(jnp.float32), implementation=implementation)
    blocks = np.moveaxis(np.stack([k, v], 1).reshape(2, 16, 2, kv_heads, size), 1, 3)
    ids, starts = jnp.array([2, 1], jnp.int32), jnp.array([0, 16], jnp.int32)
    pages = api.write(pages, jnp.asarray(blocks, jnp.float32), ids, starts * 0, implementation=implementation)
    actual = api.attend_blocks(
        jnp.asarray(q.reshape(2, 16, heads, size), jnp.float32),
        pages,
        ids[None],
        jnp.zeros(2, jnp.int32),
        starts,
        jnp.full((2, 16), tokens, jnp.int32),
        scale=0.3,
        bias=jnp.asarray(bias, jnp.float32),
        implementation=implementation,
    )
    places = np.clip(np.arange(tokens)[None] - np.arange(tokens)[:, None], -farthest, farthest) + farthest
    scores = 0.3 * np.einsum("qhd,shd->hqs", q, np.repeat(k, 2, axis=1)) + bias[:, places]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("hqs,shd->qhd", weights, np.repeat(v, 2, axis=1))
    np.testing.assert_allclose(np.asarray(actual).reshape(tokens, heads, size), expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"bias must be \(4, an odd number\); got \(4, 10\)"):
        api.attend_blocks(
            jnp.zeros((2, 16, heads, size)),
            pages,
            ids[None],
            jnp.zeros(2, jnp.int32),
            starts,
            scale=1.0,
            bias=jnp.zeros((4, 10)),
            implementation=implementation,
        )
