"""Every implementation of a kernel computes what its reference defines."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from rekindle_kernels import api
from rekindle_kernels.api import Implementation

RTOL = {"float32": 1e-5, "bfloat16": 1e-2}


@st.composite
def attention_cases(draw: st.DrawFn) -> dict[str, int]:
    return {
        "sequences": draw(st.sampled_from([1, 2, 7, 8, 9, 16])),
        "queries": draw(st.sampled_from([1, 16])),
        "kv_heads": draw(st.integers(1, 3)),
        "group": draw(st.integers(1, 4)),
        "head_dim": draw(st.sampled_from([16, 64])),
        "page_size": draw(st.sampled_from([16, 32, 64, 128])),
        "pages_per_sequence": draw(st.integers(1, 6)),
        "seed": draw(st.integers(0, 2**16)),
    }


@settings(max_examples=15, deadline=None)  # each shape is a compilation
@given(case=attention_cases(), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_attention_equals_its_reference_for_ragged_contexts(case: dict[str, int], dtype: str) -> None:
    rng = np.random.default_rng(case["seed"])
    sequences, queries, heads = case["sequences"], case["queries"], case["kv_heads"] * case["group"]
    pool = 1 + sequences * case["pages_per_sequence"]
    shape = (pool, 2, case["kv_heads"], case["page_size"], case["head_dim"])
    table = rng.permutation(np.arange(1, pool)).reshape(sequences, -1).astype(np.int32)
    longest = case["pages_per_sequence"] * case["page_size"]
    visible = rng.integers(0, longest + 1, (sequences, queries)).astype(np.int32)
    q = rng.standard_normal((sequences, queries, heads, case["head_dim"]), dtype=np.float32)
    # The unused tail of a page table may hold anything.
    for row, seen in zip(table, visible.max(1), strict=True):
        row[-(-seen // case["page_size"]) :] = rng.integers(-5, 2**30, row.shape)[-(-seen // case["page_size"]) :]

    numbers = jnp.asarray(rng.standard_normal(shape, dtype=np.float32)).astype(dtype)
    outputs = {}
    for implementation in ("xla", "reference"):
        pages = api.empty(shape, jnp.dtype(dtype), implementation=implementation)
        places = jnp.arange(pool, dtype=jnp.int32)
        pages = api.write(pages, numbers, places, jnp.zeros_like(places), implementation=implementation)
        outputs[implementation] = np.asarray(
            api.attend(
                jnp.asarray(q).astype(dtype), pages, jnp.asarray(table), jnp.asarray(visible), scale=0.125,
                implementation=implementation,
            )
        )  # fmt: skip
    expected = outputs["reference"]
    np.testing.assert_allclose(outputs["xla"], expected, rtol=RTOL[dtype], atol=RTOL[dtype] * np.abs(expected).max())
    assert not outputs["xla"][visible == 0].any(), "a query that sees nothing gives zeros"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tokens", [1, 16])
def test_writing_changes_the_named_places_and_nothing_else(dtype: str, tokens: int) -> None:
    rng = np.random.default_rng(0)
    shape = (9, 2, 3, 32, 16)
    kv = jnp.asarray(rng.standard_normal((4, 2, 3, tokens, 16), dtype=np.float32))
    ids, offsets = jnp.asarray([3, 8, 1, 5], jnp.int32), jnp.asarray([0, 16, 16, 0], jnp.int32)
    stored = api.write(api.empty(shape, jnp.dtype(dtype)), kv, ids, offsets)
    expected = api.write(
        api.empty(shape, jnp.dtype(dtype), implementation="reference"), kv, ids, offsets, implementation="reference"
    )
    as_numbers = jax.lax.bitcast_convert_type(stored, jnp.bfloat16) if dtype == "bfloat16" else stored
    np.testing.assert_array_equal(np.asarray(as_numbers, np.float32), np.asarray(expected, np.float32))


@pytest.mark.parametrize("implementation", ["xla", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_page_that_was_read_is_written_into_one_page_and_no_other(dtype: str, implementation: Implementation) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((9, 2, 3, 32, 16), dtype=np.float32)
    pages = api.empty(numbers.shape, jnp.dtype(dtype), implementation=implementation)
    places = jnp.arange(9, dtype=jnp.int32)
    pages = api.write(pages, jnp.asarray(numbers), places, jnp.zeros_like(places), implementation=implementation)
    expected = np.array(pages)

    content = api.read_page(pages, jnp.int32(5), implementation=implementation)
    np.testing.assert_array_equal(np.asarray(content), expected[5])
    assert content.dtype == pages.dtype
    for page_id in (0, 8):
        pages = api.write_page(pages, jnp.int32(page_id), content, implementation=implementation)
        expected[page_id] = expected[5]
    np.testing.assert_array_equal(np.asarray(pages), expected)


def test_arguments_that_do_not_fit_are_named() -> None:
    pages = api.empty((4, 2, 2, 16, 8), jnp.dtype("float32"))
    q, table, visible = jnp.zeros((3, 1, 4, 8)), jnp.zeros((3, 2), jnp.int32), jnp.zeros((3, 1), jnp.int32)
    with pytest.raises(ValueError, match="5 query heads cannot share 2"):
        api.attend(jnp.zeros((3, 1, 5, 8)), pages, table, visible, scale=1.0)
    with pytest.raises(ValueError, match="visible"):
        api.attend(q, pages, table, visible[:2], scale=1.0)
    with pytest.raises(ValueError, match=r"pages must be \(pages, 2, kv_heads, page_size, 8\)"):
        api.attend(q, pages[0], table, visible, scale=1.0)
    with pytest.raises(ValueError, match="implementation"):
        api.attend(q, pages, table, visible, scale=1.0, implementation="cuda")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="do not fit pages"):
        api.write(pages, jnp.zeros((1, 2, 3, 1, 8)), jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))
    with pytest.raises(ValueError, match="page_id must be a scalar"):
        api.read_page(pages, jnp.zeros(1, jnp.int32))
    with pytest.raises(ValueError, match=r"a page of these pages is \(2, 2, 16, 8\) float32, got .* int32"):
        api.write_page(pages, jnp.int32(1), jnp.zeros((2, 2, 16, 8), jnp.int32))
    with pytest.raises(ValueError, match=r"a page of these pages is .*, got \(2, 16, 8\)"):
        api.write_page(pages, jnp.int32(1), jnp.zeros((2, 16, 8)))
