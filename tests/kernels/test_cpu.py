"""The native kernels hold to the reference. Rows have the same bits in any call, and only the pool is touched."""

from functools import partial
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from rekindle_kernels import api
from rekindle_kernels.cpu import library
from rekindle_kernels.xla import scaled
from tests.kernels.cases import Contexts, Shape, assert_close, expected_rows, queries, scale_of, shapes, stored
from tests.kernels.suite import Suite, few, many

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(library.unavailable_reason() is not None, reason=str(library.unavailable_reason())),
]
WILD = [-(2**31), -1, 2**31 - 1]


class TestCpu(Suite):
    implementation = "cpu"


def pool(shape: Shape, pages: int) -> jax.Array:
    """Make a pool of random numbers, large enough that a few positions stand out in the softmax."""
    rng = np.random.default_rng(shape.seed)
    return stored(3 * rng.standard_normal((pages, *shape.pool(1)[1:])), shape.dtype, "cpu")


class Context:
    """A sequence of random numbers in pages, and a query at each of its positions.

    Args:
        shape: the shape of the calls.
        length: the number of positions.
    """

    def __init__(self, shape: Shape, length: int):
        self.shape, self.length = shape, length
        places = -(-length // shape.page_size)
        self.pages = pool(shape, places + 2)
        rng = np.random.default_rng(shape.seed + 2)
        self.table = jnp.asarray(rng.permutation(places + 2)[None, :places], jnp.int32)
        self.q = jnp.asarray(queries(shape, length), jnp.float32)

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the bits of the queries at some positions, as rows of one call."""
        table = jnp.repeat(self.table, len(positions), axis=0)
        visible = jnp.asarray(positions + 1, jnp.int32)
        shape = self.shape
        attend = partial(
            api.attend_rows, scale=scale_of(shape), window=shape.window, soft_cap=shape.soft_cap, implementation="cpu"
        )
        return bits(attend(self.q[positions], self.pages, table, visible))

    def blocks(self, first: int, count: int, tokens: int, padding: int) -> NDArray[np.int32]:
        """Return the bits of adjacent blocks of this many tokens in one call, between blocks of padding."""
        starts = first + tokens * np.arange(count)
        q = self.q[starts[:, None] + np.arange(tokens)]
        pad = ((padding, padding), (0, 0), (0, 0), (0, 0))
        start = jnp.asarray(np.pad(starts, padding, constant_values=-1), jnp.int32)
        shape = self.shape
        attend = partial(
            api.attend_blocks, scale=scale_of(shape), window=shape.window, soft_cap=shape.soft_cap, implementation="cpu"
        )
        out = attend(jnp.pad(q, pad), self.pages, self.table, jnp.zeros_like(start), start)
        return bits(out[padding : padding + count]).reshape(-1, self.shape.heads, self.shape.head_dim)

    def check(self, tokens: int, first: int, padding: int, rng: np.random.Generator) -> None:
        """Check all ways to compute a query: each gives the same bits."""
        whole = self.blocks(0, self.length, 1, 0)
        count = (self.length - first) // tokens
        np.testing.assert_array_equal(self.blocks(first, count, tokens, padding), whole[first : first + count * tokens])
        batch = rng.integers(0, self.length, 7)
        np.testing.assert_array_equal(self.rows(batch), whole[batch])
        for position in (0, self.length - 1, int(batch[0])):
            np.testing.assert_array_equal(self.rows(np.asarray([position])), whole[[position]])


def bits(numbers: jax.Array) -> NDArray[np.int32]:
    """Return the bits of float32 numbers without NaN."""
    assert not np.isnan(numbers).any()
    return np.asarray(numbers).view(np.int32)


def check_bits(shape: Shape, length: int, tokens: int, first: int, padding: int) -> None:
    rng = np.random.default_rng(shape.seed)
    Context(shape, length).check(min(tokens, length), min(first, length - min(tokens, length)), padding, rng)


@few
@given(
    shape=shapes(), length=st.integers(1, 700), tokens=st.integers(1, 40), first=st.integers(0, 600),
    padding=st.integers(0, 2),
)  # fmt: skip
def test_a_query_has_the_same_bits_in_any_call(
    shape: Shape, length: int, tokens: int, first: int, padding: int
) -> None:
    check_bits(shape, length, tokens, first, padding)


@pytest.mark.deep
@many
@given(
    shape=shapes(), length=st.integers(1, 1700), tokens=st.integers(1, 70), first=st.integers(0, 1600),
    padding=st.integers(0, 2),
)  # fmt: skip
def test_a_query_has_the_same_bits_in_any_call_of_many_shapes(
    shape: Shape, length: int, tokens: int, first: int, padding: int
) -> None:
    check_bits(shape, length, tokens, first, padding)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (100, None), (700, 2.0)])
def test_contexts_of_several_segments_have_the_same_bits(
    dtype: str, window: int | None, soft_cap: float | None
) -> None:
    check_bits(Shape(dtype=dtype, window=window, soft_cap=soft_cap, group=3), 1100, 16, 500, 1)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize(
    "head_dim", [1, 20, 256, *(pytest.param(width, marks=pytest.mark.wide) for width in (7, 64, 70))]
)
@pytest.mark.parametrize("page_size", [1, 10, pytest.param(64, marks=pytest.mark.wide)])
def test_any_page_size_and_head_dim_have_the_same_bits(head_dim: int, page_size: int, dtype: str) -> None:
    check_bits(Shape(head_dim=head_dim, page_size=page_size, dtype=dtype), 150, 16, 37, 0)


@pytest.mark.parametrize(
    "head_dim", [1, 65, 256, *(pytest.param(width, marks=pytest.mark.wide) for width in (7, 20, 64, 100))]
)
def test_int8_is_written_with_the_same_bits_by_one_token_or_by_many(head_dim: int) -> None:
    """Check against the portable form too: the definition fixes its bits."""
    kv = np.random.default_rng(0).standard_normal((3, 2, 2, 16, head_dim)) * 10.0 ** np.arange(-8, 8)[:, None]
    blocks, ids = jnp.asarray(kv, jnp.float32), jnp.asarray([2, 0, 1], jnp.int32)
    empty = scaled.quantize(jnp.zeros((3, 2, 2, 16, head_dim)))
    whole = api.write(empty, blocks, ids, jnp.zeros(3, jnp.int32), implementation="cpu")
    tokens = jnp.moveaxis(blocks, 3, 1).reshape(48, 2, 2, 1, head_dim)
    offsets = jnp.tile(jnp.arange(16, dtype=jnp.int32), 3)
    np.testing.assert_array_equal(api.write(empty, tokens, jnp.repeat(ids, 16), offsets, implementation="cpu"), whole)
    np.testing.assert_array_equal(whole[ids], scaled.quantize(blocks))


@pytest.mark.parametrize("head_dim", [20, *(pytest.param(width, marks=pytest.mark.wide) for width in (64, 256))])
def test_queries_over_int8_are_rounded_to_16_bits(head_dim: int) -> None:
    shape = Shape(dtype="int8", head_dim=head_dim, pages_per_sequence=8)
    contexts, visible = Contexts(shape, [(0, 128), (0, 70)]), np.asarray([128, 70], np.int32)
    q = np.random.default_rng(0).standard_normal((2, shape.heads, head_dim))
    pages, table = stored(contexts.numbers, "int8", "cpu"), jnp.asarray(contexts.table)
    arrays = (jnp.asarray(q, jnp.float32), pages, table, jnp.asarray(visible))
    out = api.attend_rows(*arrays, scale=scale_of(shape), implementation="cpu")
    assert_close(out, expected_rows(shape, q, contexts, visible), 1e-4)
    means = api.attend_rows(jnp.zeros_like(arrays[0]), *arrays[1:], scale=1.0, implementation="cpu")
    assert_close(means, expected_rows(shape, np.zeros_like(q), contexts, visible), 1e-5)


def test_rows_that_see_nothing_beside_a_long_context_are_zeros() -> None:
    context = Context(Shape(), 1500)
    positions = np.asarray([-1, 1499, -1])
    out = context.rows(positions)
    assert not out[[0, 2]].any()
    np.testing.assert_array_equal(out[1:2], context.rows(positions[1:2]))


# Numbers out of range


@pytest.fixture
def guarded() -> tuple[jax.Array, NDArray[np.float32]]:
    """Return a pool between numbers that must stay NaN, and the whole memory as numbers."""
    page = 2 * 2 * 16 * 64
    before = np.full(6 * page + 16, np.nan, np.float32)
    shift = -(before.ctypes.data // 4) % 16
    everything = before[shift : shift + 6 * page]
    everything[page : 5 * page] = np.random.default_rng(0).standard_normal(4 * page)
    inner = everything[page : 5 * page].reshape(4, 2, 2, 16, 64)
    return jax.dlpack.from_dlpack(inner), everything


def test_page_ids_and_lengths_out_of_range_read_nothing_outside_of_the_pool(
    guarded: tuple[jax.Array, NDArray[np.float32]],
) -> None:
    pages, everything = guarded
    assert pages.unsafe_buffer_pointer() == everything[2 * 2 * 16 * 64 :].ctypes.data
    q = jnp.ones((6, 4, 64))
    table = jnp.asarray([[value, 4] for value in [*WILD, 4, 5, -3]], jnp.int32)
    for window in (None, 5):
        attend = partial(api.attend_rows, scale=0.1, window=window, implementation="cpu")
        for visible in (32, 33, 1000, 2**31 - 1):
            far = window is not None and visible - window >= 32
            out = attend(q, pages, table, jnp.full(6, visible, jnp.int32))
            assert np.isfinite(out).all()
            assert bool(np.asarray(out).any()) != far, "a row sees positions up to the end of its page table"
        assert not np.asarray(attend(q, pages, table, jnp.full(6, -(2**31), jnp.int32))).any()
        blocks = partial(api.attend_blocks, scale=0.1, window=window, implementation="cpu")
        owners, starts = jnp.asarray([*WILD, 0, 6, 7], jnp.int32), jnp.asarray([0, 0, 16, *WILD], jnp.int32)
        assert np.isfinite(blocks(q[:, None].repeat(16, 1), pages, table, owners, starts)).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("tokens", [1, 16])
def test_blocks_and_pages_outside_of_the_pool_are_not_written(dtype: str, tokens: int) -> None:
    shape = Shape(page_size=32, dtype=dtype)
    pages = pool(shape, 4)
    places = [(page, 0) for page in [*WILD, 4, 5, -3]] + [(1, offset) for offset in [*WILD, 33 - tokens, -16]]
    ids, offsets = jnp.asarray(places, jnp.int32).T
    kv = jnp.ones((len(places), 2, shape.kv_heads, tokens, shape.head_dim))
    np.testing.assert_array_equal(api.write(pages, kv, ids, offsets, implementation="cpu"), pages)
    for page in [*WILD, 4, -3]:
        content = api.read_page(pages, jnp.int32(page), implementation="cpu")
        assert not np.asarray(content).any()
        after = api.write_page(pages, jnp.int32(page), content + 1, implementation="cpu")
        np.testing.assert_array_equal(after, pages)


# The pool stays where it is


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_pages_are_read_where_they_were_written(dtype: str) -> None:
    """Compile the work of a step: two writes, then both kinds of attention over the same pages."""
    shape = Shape(dtype=dtype, page_size=64)
    pages = jax.eval_shape(lambda: pool(shape, 64))

    def run(
        pages: jax.Array, kv: jax.Array, q: jax.Array, table: jax.Array, ids: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        pages = api.write(pages, kv, ids[:2], ids[2:4], implementation="cpu")
        pages = api.write(pages, kv[:, :, :, :1] + 1, ids[:2], ids[4:6], implementation="cpu")
        rows = api.attend_rows(q[:, 0], pages, table, ids[:2], scale=0.1, implementation="cpu")
        blocks = api.attend_blocks(q, pages, table, ids[:2], ids[2:4], scale=0.1, implementation="cpu")
        return pages, rows, blocks

    kv, q = jax.ShapeDtypeStruct((2, 2, 2, 16, 64), jnp.float32), jax.ShapeDtypeStruct((2, 16, 4, 64), jnp.float32)
    table, ids = jax.ShapeDtypeStruct((2, 8), jnp.int32), jax.ShapeDtypeStruct((6,), jnp.int32)
    program: Any = jax.jit(run, donate_argnums=0).lower(pages, kv, q, table, ids).compile()
    memory = program.memory_analysis()
    pool_bytes = pages.size * pages.dtype.itemsize
    assert memory.alias_size_in_bytes == pool_bytes
    assert memory.temp_size_in_bytes < pool_bytes / 8
    text = program.as_text()
    assert text.count("custom_call_target=") == 4
    form = {"float32": "f32[64,2,2,64,64]", "bfloat16": "u16[64,2,2,64,64]", "int8": "s8[64,2,2,64,68]"}[dtype]
    assert not [line for line in text.splitlines() if f"= {form}" in line and "copy" in line]
