"""The tests of every implementation. A test file subclasses `Suite` once for each."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from numpy.typing import NDArray

from rekindle_kernels import api
from rekindle_kernels.api import Implementation
from tests.kernels.cases import (
    BLOCK_TOKENS,
    HEAD_DIMS,
    HEADS,
    RTOL,
    Contexts,
    Floats,
    Shape,
    assert_close,
    expected_blocks,
    expected_rows,
    loaded,
    queries,
    rounded,
    scale_of,
    shapes,
    sinks_of,
    stored,
    until_of,
)

# Each example is a compilation, so shrinking one would take minutes.
PHASES = (Phase.explicit, Phase.generate)
few = settings(max_examples=2, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
many = settings(few, max_examples=50, derandomize=False)
lengths = st.one_of(st.sampled_from([0, 1, 16, 128]), st.integers(0, 640))


@contextmanager
def unoptimized() -> Iterator[None]:
    """Compile without optimization, because an interpreter's programs take longer to compile than to run."""
    optimized = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", optimized)


class Suite:
    """The tests of one implementation. It skips unsupported shapes, and a call with one must raise.

    Attributes:
        implementation: the name of the implementation.
    """

    implementation: Implementation

    def running(self) -> AbstractContextManager[object]:
        """Return a context for every call of an operation; a subclass turns its interpreter on here."""
        return nullcontext()

    def stored(self, numbers: Floats, dtype: str) -> jax.Array:
        """Make a pool of some numbers as the implementation stores it: here in their own shape."""
        return stored(numbers, dtype, self.implementation)

    def loaded(self, pages: jax.Array, dtype: str, head_dim: int) -> NDArray[np.float32]:
        """Return the numbers of a stored pool."""
        return loaded(pages, dtype)

    def rtol(self, dtype: str) -> float:
        """Return the tolerance for pages of a dtype."""
        return RTOL[dtype]

    # Helpers

    def skip_unserved(self, shape: Shape) -> None:
        if reason := api.unsupported_reason(self.implementation, shape.pool(1), jnp.dtype(shape.dtype)):
            pytest.skip(reason)

    def options(self, shape: Shape) -> dict[str, Any]:
        """Return the options of an attention call."""
        return {
            "scale": scale_of(shape),
            "window": shape.window,
            "soft_cap": shape.soft_cap,
            "sinks": jnp.asarray(sinks_of(shape), jnp.float32) if shape.sinks else None,
            "implementation": self.implementation,
        }

    def check_rows(self, shape: Shape, visible: list[int]) -> None:
        """Check decode rows with `visible` positions each."""
        window = shape.longest if shape.window is None else shape.window
        contexts = Contexts(shape, [(max(0, last - window), last) for last in visible])
        q, last = queries(shape, len(visible)), np.asarray(visible, np.int32)
        call = partial(api.attend_rows, **self.options(shape))
        pages = self.stored(contexts.numbers, shape.dtype)
        with self.running():
            actual = jax.jit(call)(jnp.asarray(q, jnp.float32), pages, jnp.asarray(contexts.table), jnp.asarray(last))
            actual.block_until_ready()
        assert_close(actual, expected_rows(shape, q, contexts, last), self.rtol(shape.dtype))
        assert not np.asarray(actual)[last == 0].any(), "a row that sees nothing gives zeros"

    def check_blocks(
        self, shape: Shape, chunks: list[tuple[int, int]], padding: int, groups: list[tuple[int, int]] | None = None
    ) -> None:
        """Check chunks of one sequence each, as (first block, blocks), followed by blocks of padding.

        Args:
            groups: ranges of positions, within each chunk or outside, whose tokens see each other; None for causal
                attention.
        """
        window = shape.longest if shape.window is None else shape.window
        spans = [(max(0, first * BLOCK_TOKENS + 1 - window), (first + count) * BLOCK_TOKENS) for first, count in chunks]
        contexts = Contexts(shape, spans)
        starts = [BLOCK_TOKENS * (first + i) for first, count in chunks for i in range(count)] + [-1] * padding
        owners = [sequence for sequence, (_, count) in enumerate(chunks) for _ in range(count)] + [0] * padding
        block_owner, block_start = np.asarray(owners, np.int32), np.asarray(starts, np.int32)
        q = queries(shape, len(starts), BLOCK_TOKENS)
        call = partial(api.attend_blocks, **self.options(shape))
        pages = self.stored(contexts.numbers, shape.dtype)
        until = None if groups is None else until_of(starts, groups)
        arrays = (contexts.table, block_owner, block_start, *([] if until is None else [until]))
        with self.running():
            actual = jax.jit(call)(jnp.asarray(q, jnp.float32), pages, *map(jnp.asarray, arrays))
            actual.block_until_ready()
        expected = expected_blocks(shape, q, contexts, block_owner, block_start, until)
        assert_close(actual, expected, self.rtol(shape.dtype))
        assert not np.asarray(actual)[block_start < 0].any(), "a block that sees nothing gives zeros"

    def check_write(self, shape: Shape, tokens: int, places: list[tuple[int, int]]) -> None:
        """Check writing blocks of `tokens` to (page, place in the page) each; before, there was NaN."""
        before = np.full(shape.pool(2), np.nan)
        kv = np.random.default_rng(shape.seed).standard_normal(
            (len(places), *shape.pool(1)[1:3], tokens, shape.head_dim)
        )
        ids, offsets = np.asarray(places, np.int32).T * np.asarray([[1], [tokens]], np.int32)
        pages = self.stored(before, shape.dtype)
        with self.running():
            call = partial(api.write, implementation=self.implementation)
            arrays = (jnp.asarray(kv, jnp.float32), jnp.asarray(ids), jnp.asarray(offsets))
            after = jax.jit(call, donate_argnums=0)(pages, *arrays)
            after.block_until_ready()
        for block, page, offset in zip(rounded(kv, shape.dtype), ids, offsets, strict=True):
            before[page, :, :, offset : offset + tokens] = block
        assert after.dtype == self.stored(before, shape.dtype).dtype
        np.testing.assert_array_equal(self.loaded(after, shape.dtype, shape.head_dim), before.astype(np.float32))

    # Attention of decode rows

    @few
    @given(shape=shapes(), visible=st.lists(lengths, min_size=1, max_size=5))
    def test_rows_equal_the_float64_reference(self, shape: Shape, visible: list[int]) -> None:
        assume(api.unsupported_reason(self.implementation, shape.pool(1), jnp.dtype(shape.dtype)) is None)
        self.check_rows(shape, [min(last, shape.longest) for last in visible])

    @pytest.mark.deep
    @many
    @given(shape=shapes(), visible=st.lists(lengths, min_size=1, max_size=19))
    def test_rows_equal_the_float64_reference_for_many_shapes(self, shape: Shape, visible: list[int]) -> None:
        assume(api.unsupported_reason(self.implementation, shape.pool(1), jnp.dtype(shape.dtype)) is None)
        self.check_rows(shape, [min(last, shape.longest) for last in visible])

    @pytest.mark.parametrize(("head_dim", "dtype"), HEADS)
    def test_rows_of_every_head_dim(self, head_dim: int, dtype: str) -> None:
        shape = Shape(head_dim=head_dim, dtype=dtype, group=3)
        self.skip_unserved(shape)
        self.check_rows(shape, [37, 5])

    @pytest.mark.parametrize("page_size", [16, 64, *(pytest.param(size, marks=pytest.mark.wide) for size in (32, 128))])
    def test_rows_that_see_nothing_one_position_and_exactly_a_page(self, page_size: int) -> None:
        shape = Shape(page_size=page_size, pages_per_sequence=2, dtype="bfloat16")
        self.skip_unserved(shape)
        self.check_rows(shape, [0, 1, page_size, page_size + 1, 2 * page_size])

    def test_rows_that_all_see_nothing_are_zeros(self) -> None:
        shape = Shape()
        self.skip_unserved(shape)
        self.check_rows(shape, [0] * 9)

    def test_a_lone_row_with_a_long_context(self) -> None:
        shape = Shape(page_size=16, pages_per_sequence=40, dtype="bfloat16", group=4, head_dim=128)
        self.skip_unserved(shape)
        self.check_rows(shape, [633])

    @pytest.mark.parametrize(("window", "soft_cap"), [(20, None), (33, 2.0)])
    def test_rows_with_a_sliding_window_and_a_soft_cap(self, window: int | None, soft_cap: float | None) -> None:
        shape = Shape(window=window, soft_cap=soft_cap, head_dim=128, pages_per_sequence=6)
        self.skip_unserved(shape)
        self.check_rows(shape, [90, 1, 20, 0, 53])

    @pytest.mark.parametrize(("window", "splits"), [(None, 1), (20, 5)])
    def test_rows_with_sinks(self, window: int | None, splits: int) -> None:
        shape = Shape(window=window, sinks=True, group=3, pages_per_sequence=6)
        self.skip_unserved(shape)
        self.check_rows(shape, [90, 1, 20, 0, 53][:splits])

    @pytest.mark.parametrize("head_dim", [64, 160])
    def test_rows_over_int8_with_a_window_a_soft_cap_and_sinks(self, head_dim: int) -> None:
        shape = Shape(1, 3, head_dim, dtype="int8", window=33, soft_cap=2.0, sinks=True, pages_per_sequence=8)
        self.skip_unserved(shape)
        self.check_rows(shape, [90, 1, 0, 128, 53])

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
    def test_rows_whose_keys_are_values_too(self, dtype: str) -> None:
        shape = Shape(kv_heads=1, group=16, head_dim=576, sides=1, dtype=dtype)
        self.skip_unserved(shape)
        self.check_rows(shape, [37, 0, 64])

    # Attention of prefill blocks

    @few
    @given(
        shape=shapes(),
        chunks=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=3),
        padding=st.integers(0, 3),
    )
    def test_blocks_equal_the_float64_reference(
        self, shape: Shape, chunks: list[tuple[int, int]], padding: int
    ) -> None:
        assume(api.unsupported_reason(self.implementation, shape.pool(1), jnp.dtype(shape.dtype)) is None)
        self.check_blocks(shape, _fitting(shape, chunks), padding)

    @pytest.mark.deep
    @many
    @given(
        shape=shapes(),
        chunks=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=5),
        padding=st.integers(0, 9),
    )
    def test_blocks_equal_the_float64_reference_for_many_shapes(
        self, shape: Shape, chunks: list[tuple[int, int]], padding: int
    ) -> None:
        assume(api.unsupported_reason(self.implementation, shape.pool(1), jnp.dtype(shape.dtype)) is None)
        self.check_blocks(shape, _fitting(shape, chunks), padding)

    @pytest.mark.parametrize(("head_dim", "dtype"), HEADS)
    def test_blocks_of_every_head_dim(self, head_dim: int, dtype: str) -> None:
        shape = Shape(head_dim=head_dim, dtype=dtype, group=3)
        self.skip_unserved(shape)
        self.check_blocks(shape, [(1, 2)], 1)

    @pytest.mark.parametrize("page_size", [16, 64, *(pytest.param(size, marks=pytest.mark.wide) for size in (32, 128))])
    def test_chunks_over_a_cached_prefix_beside_chunks_without(self, page_size: int) -> None:
        shape = Shape(page_size=page_size, pages_per_sequence=-(-192 // page_size), dtype="bfloat16", group=1)
        self.skip_unserved(shape)
        self.check_blocks(shape, [(0, 3), (8, 4), (7, 1)], 0)

    def test_blocks_that_all_see_nothing_are_zeros(self) -> None:
        shape = Shape()
        self.skip_unserved(shape)
        self.check_blocks(shape, [(0, 0)], 4)

    @pytest.mark.parametrize(("window", "soft_cap"), [(20, None), (33, 2.0)])
    def test_blocks_with_a_sliding_window_and_a_soft_cap(self, window: int | None, soft_cap: float | None) -> None:
        shape = Shape(window=window, soft_cap=soft_cap, head_dim=128, pages_per_sequence=8)
        self.skip_unserved(shape)
        self.check_blocks(shape, [(4, 3), (0, 2)], 1)

    def test_blocks_with_sinks(self) -> None:
        shape = Shape(window=33, sinks=True, group=3, pages_per_sequence=8)
        self.skip_unserved(shape)
        self.check_blocks(shape, [(4, 3), (0, 2)], 1)

    @pytest.mark.parametrize("head_dim", [64, 160])
    def test_blocks_over_int8_with_a_window_a_soft_cap_and_sinks(self, head_dim: int) -> None:
        shape = Shape(1, 3, head_dim, dtype="int8", window=33, soft_cap=2.0, sinks=True, pages_per_sequence=8)
        self.skip_unserved(shape)
        self.check_blocks(shape, [(4, 3), (0, 2)], 1)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
    def test_blocks_whose_keys_are_values_too(self, dtype: str) -> None:
        shape = Shape(kv_heads=1, group=8, head_dim=576, sides=1, dtype=dtype)
        self.skip_unserved(shape)
        self.check_blocks(shape, [(1, 2), (0, 1)], 1)

    # Attention to later tokens

    @pytest.mark.parametrize(("head_dim", "dtype"), HEADS)
    def test_tokens_of_an_image_see_each_other(self, head_dim: int, dtype: str) -> None:
        shape = Shape(head_dim=head_dim, dtype=dtype, group=3, pages_per_sequence=8)
        self.skip_unserved(shape)
        self.check_blocks(shape, [(0, 7), (1, 5), (0, 6)], 1, [(18, 85)])

    @pytest.mark.parametrize(("window", "soft_cap", "sinks"), [(20, None, False), (33, 2.0, True)])
    def test_a_window_bounds_earlier_tokens_and_not_the_later_ones_of_an_image(
        self, window: int, soft_cap: float | None, sinks: bool
    ) -> None:
        shape = Shape(window=window, soft_cap=soft_cap, sinks=sinks, head_dim=128, pages_per_sequence=12)
        self.skip_unserved(shape)
        self.check_blocks(shape, [(2, 9), (0, 5)], 1, [(35, 76), (76, 80), (100, 170)])

    def test_a_text_is_read_in_both_directions(self) -> None:
        shape = Shape(pages_per_sequence=8, dtype="bfloat16", group=1)
        self.skip_unserved(shape)
        self.check_blocks(shape, [(0, 8), (0, 8)], 0, [(0, 128)])

    @few
    @given(shape=shapes(), first=st.integers(0, 40), tokens=st.integers(1, 40))
    def test_later_tokens_are_seen_as_in_the_float64_reference(self, shape: Shape, first: int, tokens: int) -> None:
        assume(api.unsupported_reason(self.implementation, shape.pool(1), jnp.dtype(shape.dtype)) is None)
        chunks = _fitting(shape, [(0, 3), (0, 4)])
        end = BLOCK_TOKENS * min(count for _, count in chunks)
        self.check_blocks(shape, chunks, 1, [(first, min(first + tokens, end))])

    # Writing and copying pages

    def test_writing_keys_that_are_values_too(self) -> None:
        shape = Shape(kv_heads=1, head_dim=96, sides=1, dtype="bfloat16")
        self.skip_unserved(shape)
        self.check_write(shape, 1, [(3, 0), (1, 7)])
        self.check_write(shape, 16, [(3, 0), (1, 0)])

    @pytest.mark.parametrize(("head_dim", "dtype"), HEADS)
    @pytest.mark.parametrize("tokens", [pytest.param(1, marks=pytest.mark.wide), 16])
    def test_writing_changes_the_named_places_and_nothing_else(self, dtype: str, head_dim: int, tokens: int) -> None:
        shape = Shape(dtype=dtype, head_dim=head_dim, page_size=32)
        self.skip_unserved(shape)
        places = (
            [(3, 0), (8, 1), (1, 1), (5, 0)] if tokens == 16 else [(3, 0), (8, 31), (1, 7), (2, 8), (5, 16), (0, 1)]
        )
        self.check_write(shape, tokens, places)

    @pytest.mark.parametrize(("page_size", "tokens"), [(16, 16), (64, 1), (128, 16)])
    def test_writing_into_pages_of_other_sizes(self, page_size: int, tokens: int) -> None:
        shape = Shape(dtype="bfloat16", page_size=page_size, kv_heads=3)
        self.skip_unserved(shape)
        self.check_write(shape, tokens, [(2, 0), (7, page_size // tokens - 1)])

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
    def test_writing_the_successive_tokens_of_a_draft(self, dtype: str) -> None:
        shape = Shape(dtype=dtype, page_size=32)
        self.skip_unserved(shape)
        draft = [(3, place) for place in (5, 6, 7, 8, 9, 10, 15, 16, 17)]
        self.check_write(shape, 1, [*draft, (8, 31), (0, 0), (0, 1), (1, 7)])

    def test_of_several_blocks_for_one_place_one_is_kept(self) -> None:
        """Check this because padding may write anywhere in the null page."""
        shape = Shape(dtype="bfloat16")
        self.skip_unserved(shape)
        kv = np.random.default_rng(0).standard_normal((4, 2, shape.kv_heads, 1, shape.head_dim))
        pages = self.stored(np.zeros(shape.pool(1)), shape.dtype)
        ids, offsets = jnp.asarray([0, 0, 2, 0], jnp.int32), jnp.asarray([3, 3, 3, 3], jnp.int32)
        with self.running():
            after = api.write(pages, jnp.asarray(kv, jnp.float32), ids, offsets, implementation=self.implementation)
            numbers = self.loaded(after, shape.dtype, shape.head_dim)
        blocks = rounded(kv, shape.dtype)[:, :, :, 0]
        np.testing.assert_array_equal(numbers[2, :, :, 3], blocks[2])
        assert any((numbers[0, :, :, 3] == blocks[i]).all() for i in (0, 1, 3))
        assert not numbers[1].any()

    @pytest.mark.parametrize("head_dim", [96, 256])
    def test_each_64_numbers_of_int8_have_a_scale_of_their_own(self, head_dim: int) -> None:
        shape = Shape(dtype="int8", head_dim=head_dim)
        self.skip_unserved(shape)
        kv = np.random.default_rng(0).standard_normal((1, 2, shape.kv_heads, 1, head_dim))
        sizes = 1000.0 ** np.arange(-(-head_dim // 64))
        kv *= np.repeat(sizes, 64)[:head_dim]
        pages = self.stored(np.zeros(shape.pool(1)), shape.dtype)
        ones = jnp.ones(1, jnp.int32)
        with self.running():
            after = api.write(pages, jnp.asarray(kv, jnp.float32), ones, ones, implementation=self.implementation)
            numbers = self.loaded(after, shape.dtype, head_dim)[1, :, :, 1]
        for start in range(0, head_dim, 64):
            actual, expected = (each[..., start : start + 64] for each in (numbers, kv[0, :, :, 0]))
            step = np.abs(expected).max(-1, keepdims=True) / 127
            assert (np.abs(actual - expected) <= 0.5001 * step).all()
            assert (np.abs(actual - expected) > 0).any(), "int8 has no more bits than these"

    def test_numbers_of_any_size_are_written_as_int8_of_their_own_row(self) -> None:
        """Check rows of zeros, tiny, huge, infinite and missing numbers, each beside a usual one."""
        shape = Shape(dtype="int8", kv_heads=1)
        self.skip_unserved(shape)
        sizes = [0.0, 1e-38, 1e-25, 1e30, np.inf, np.nan]
        kv = np.random.default_rng(0).standard_normal((len(sizes), 2, 1, 1, shape.head_dim))
        kv[:, 1, 0, 0] *= np.asarray(sizes)[:, None]
        ids, offsets = jnp.ones(len(sizes), jnp.int32), jnp.arange(len(sizes), dtype=jnp.int32)
        pages = self.stored(np.zeros(shape.pool(1)), shape.dtype)
        with self.running(), np.errstate(invalid="ignore"):
            after = api.write(pages, jnp.asarray(kv, jnp.float32), ids, offsets, implementation=self.implementation)
            numbers = self.loaded(after, shape.dtype, shape.head_dim)[1, :, 0, : len(sizes)]
            expected = rounded(kv, shape.dtype)[:, :, 0, 0].astype(np.float32)
        np.testing.assert_array_equal(numbers[0], expected[:, 0])
        np.testing.assert_array_equal(numbers[1, :4], expected[:4, 1])
        assert not np.isfinite(numbers[1, 4:]).any(), "a NaN is seen by all that read it"

    @pytest.mark.parametrize(
        ("head_dim", "page_size", "dtype"),
        [(64, 16, "bfloat16"), (80, 32, "float32"), (128, 128, "bfloat16"), (64, 32, "int8")],
    )
    def test_a_page_that_was_read_is_written_into_one_page_and_no_other(
        self, head_dim: int, page_size: int, dtype: str
    ) -> None:
        shape = Shape(dtype=dtype, head_dim=head_dim, page_size=page_size)
        self.skip_unserved(shape)
        numbers = np.random.default_rng(0).standard_normal(shape.pool(2))
        numbers[3] = np.nan
        pages, expected = self.stored(numbers, dtype), rounded(numbers, dtype).astype(np.float32)
        with self.running():
            content = api.read_page(pages, jnp.int32(5), implementation=self.implementation)
            np.testing.assert_array_equal(self.loaded(content[None], dtype, head_dim)[0], expected[5])
            for page_id in (0, len(expected) - 1):
                write = partial(api.write_page, implementation=self.implementation)
                pages = jax.jit(write, donate_argnums=0)(pages, jnp.int32(page_id), content)
                expected[page_id] = expected[5]
            np.testing.assert_array_equal(self.loaded(pages, dtype, head_dim), expected)

    # Refusals

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
    @pytest.mark.parametrize("head_dim", [*HEAD_DIMS, 60])
    def test_pages_that_are_not_served_are_refused_and_why(self, head_dim: int, dtype: str) -> None:
        shape = replace(Shape(), head_dim=head_dim, dtype=dtype).pool(1)
        reason = api.unsupported_reason(self.implementation, shape, jnp.dtype(dtype))
        if reason is None:
            assert len(api.empty(shape, jnp.dtype(dtype), implementation=self.implementation)) == shape[0]
        else:
            with pytest.raises(ValueError, match=f'implementation "{self.implementation}" cannot serve pages'):
                api.empty(shape, jnp.dtype(dtype), implementation=self.implementation)


def _fitting(shape: Shape, chunks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Cut chunks to the room of a page table."""
    room = shape.longest // BLOCK_TOKENS
    return [(first % room, min(count, room - first % room)) for first, count in chunks]
