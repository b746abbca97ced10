"""Make ragged inputs of the operations. The reference and every implementation get the same numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from rekindle_kernels import api, reference
from rekindle_kernels.api import Implementation
from rekindle_kernels.xla import scaled

RTOL = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3, "int8": 1e-5}
HEAD_DIMS = (64, 80, 96, 128, 256)
HEADS = (
    (64, "float32"), (80, "bfloat16"), (128, "bfloat16"), (128, "float16"), (256, "int8"),
    *(pytest.param(*each, marks=pytest.mark.wide) for each in (
        (64, "bfloat16"), (96, "float32"), (256, "bfloat16"), (64, "int8"), (80, "int8"), (128, "int8"),
    )),
)  # fmt: skip
"""Each head_dim, and each dtype for a narrow and for a wide one. The property tests draw the others."""
PAGE_SIZES = (16, 32, 64, 128)
BLOCK_TOKENS = 16
Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Shape:
    """The sizes and options of an attention call, without how much each query sees."""

    kv_heads: int = 2
    group: int = 2
    head_dim: int = 64
    page_size: int = 16
    pages_per_sequence: int = 4
    dtype: str = "float32"
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    sides: int = 2
    seed: int = 0

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def longest(self) -> int:
        """The most tokens in a row of the page table."""
        return self.page_size * self.pages_per_sequence

    def pool(self, sequences: int) -> tuple[int, ...]:
        """Return the shape of a pool: a page for each place of each page table, the null page, and one unused page."""
        pages = 2 + sequences * self.pages_per_sequence
        return (pages, self.sides, self.kv_heads, self.page_size, self.head_dim)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Draw any plausible shape of a model, but small."""
    return Shape(
        kv_heads=draw(st.sampled_from([1, 2, 3])),
        group=draw(st.sampled_from([1, 2, 3, 4, 7])),
        head_dim=draw(st.sampled_from(HEAD_DIMS)),
        page_size=draw(st.sampled_from(PAGE_SIZES)),
        pages_per_sequence=draw(st.integers(1, 5)),
        dtype=draw(st.sampled_from(["float32", "bfloat16", "float16", "int8"])),
        window=draw(st.sampled_from([None, None, 1, 17, 40])),
        soft_cap=draw(st.sampled_from([None, None, 1.5])),
        sinks=draw(st.booleans()),
        sides=draw(st.sampled_from([2, 2, 1])),
        seed=draw(st.integers(0, 2**16)),
    )


def rounded(numbers: Floats, dtype: str) -> Floats:
    """Round numbers to a dtype: the reference gets the same ones."""
    if dtype == "int8":
        return np.asarray(scaled.dequantize(scaled.quantize(jnp.asarray(numbers, jnp.float32))), np.float64)
    return np.asarray(jnp.asarray(numbers, jnp.float32).astype(dtype), np.float64)


def stored(numbers: Floats, dtype: str, implementation: Implementation) -> jax.Array:
    """Make a pool of some numbers, for implementations that store numbers in their own shape."""
    if dtype == "int8":
        return scaled.quantize(jnp.asarray(numbers, jnp.float32))
    pool = jax.eval_shape(lambda: api.empty(numbers.shape, jnp.dtype(dtype), implementation=implementation))
    return jax.lax.bitcast_convert_type(jnp.asarray(numbers, jnp.float32).astype(dtype), pool.dtype)


def loaded(pages: jax.Array, dtype: str) -> NDArray[np.float32]:
    """Return the numbers of a pool of `stored`."""
    if dtype == "int8":
        return np.asarray(scaled.dequantize(pages))
    return np.asarray(jax.lax.bitcast_convert_type(pages, jnp.dtype(dtype)), np.float32)


class Contexts:
    """Page tables over a pool, with NaN outside of the visible positions.

    Args:
        shape: the shape of the call.
        spans: (sequences, 2) the visible positions `[first, last)` of each sequence.

    Attributes:
        numbers: the pool.
        table: (sequences, pages_per_sequence), garbage where a sequence sees nothing.
    """

    def __init__(self, shape: Shape, spans: list[tuple[int, int]]):
        rng = np.random.default_rng(shape.seed)
        pool = shape.pool(len(spans))
        self.numbers = np.full(pool, np.nan)
        owned = rng.permutation(np.arange(1, pool[0] - 1)).reshape(len(spans), -1)
        self.table = rng.integers(-(2**31), 2**31, owned.shape).astype(np.int32)
        for sequence, (first, last) in enumerate(spans):
            for position in range(first, last):
                place, offset = divmod(position, shape.page_size)
                self.table[sequence, place] = owned[sequence, place]
                values = rng.standard_normal((shape.sides, shape.kv_heads, shape.head_dim))
                self.numbers[owned[sequence, place], :, :, offset] = rounded(values, shape.dtype)


def queries(shape: Shape, *leading: int) -> Floats:
    """Draw random queries (leading, heads, head_dim), without rounding in the dtype's products.

    For int8 they are integers of 16 bits up to a power of two, as `cpu` rounds queries.
    """
    numbers = np.random.default_rng(shape.seed + 1).standard_normal((*leading, shape.heads, shape.head_dim))
    if shape.dtype != "int8":
        return rounded(numbers, shape.dtype)
    most = min(2**15 - 1, (2**31 - 1) // (scaled.LARGEST * shape.head_dim))
    integers = np.clip(np.rint(numbers * 2.0**13), -most, most)
    integers[..., 0] = most
    return integers * 2.0**-13


def scale_of(shape: Shape) -> float:
    """Return a power of two: products of queries by it are exact in any dtype."""
    return float(2.0 ** -round(np.log2(shape.head_dim) / 2))


def sinks_of(shape: Shape) -> Floats | None:
    """Draw a sink for each head, if the shape has sinks; some outweigh all visible positions."""
    return np.random.default_rng(shape.seed + 2).normal(scale=4, size=shape.heads) if shape.sinks else None


def expected_rows(shape: Shape, q: Floats, contexts: Contexts, visible: Ints) -> Floats:
    """Compute `attend_rows` by its definition in float64."""
    return _in_float64(reference.attend_rows, shape, q, contexts.numbers, contexts.table, visible)


def expected_blocks(
    shape: Shape, q: Floats, contexts: Contexts, owners: Ints, starts: Ints, until: Ints | None = None
) -> Floats:
    """Compute `attend_blocks` by its definition in float64."""
    further = [] if until is None else [until]
    return _in_float64(reference.attend_blocks, shape, q, contexts.numbers, contexts.table, owners, starts, *further)


def until_of(starts: list[int], groups: list[tuple[int, int]]) -> Ints:
    """Return the end of the positions visible to each token of blocks, if tokens of a group see all of the group."""
    positions = np.asarray(starts, np.int32)[:, None] + np.arange(BLOCK_TOKENS, dtype=np.int32)[None]
    until = positions + 1
    for first, last in groups:
        until = np.where((positions >= first) & (positions < last), last, until)
    return until


def _in_float64(attend: Callable[..., jax.Array], shape: Shape, *arrays: Floats | Ints) -> Floats:
    with jax.enable_x64(True):
        sinks = jnp.asarray(sinks_of(shape)) if shape.sinks else None
        call = partial(attend, scale=scale_of(shape), window=shape.window, soft_cap=shape.soft_cap, sinks=sinks)
        return np.asarray(jax.jit(call)(*map(jnp.asarray, arrays)))


def assert_close(actual: jax.Array, expected: Floats, rtol: float) -> None:
    """Check the dtype, float32, and the numbers, within this part of the largest number."""
    assert actual.dtype == jnp.float32
    assert expected.dtype == np.float64
    largest = np.abs(expected).max(initial=1e-30)
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=rtol, atol=rtol * largest)
