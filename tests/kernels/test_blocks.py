"""Weights in quantized blocks are packed as their numbers are."""

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.formats.checkpoints.gguf.kinds import kind_of
from rekindle_kernels import layers
from rekindle_kernels.api import Implementation
from rekindle_kernels.blocks import Array, Blocks, Tensor

pytestmark = pytest.mark.kernel

KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
"""The places of float16 numbers in a block, of which random bytes would make infinities."""


def blocks_of(name: str, rows: int, count: int) -> Blocks:
    """Return random blocks of a kind, so many in each row."""
    kind, random = kind_of(gguf.GGMLQuantizationType[name]), np.random.default_rng([rows, count])
    data = random.integers(0, 256, (rows, count, kind.size), np.uint8)
    for place in HALVES[name]:
        scales = random.choice([1, 1, 1e-6, 0], (rows, count, 1)) * random.standard_normal((rows, count, 1))
        data[..., place : place + 2] = scales.astype(np.float16).view(np.uint8)
    return Blocks(data.reshape(rows, -1), kind)


def in_form(parts: list[Tensor], dtype: str, implementation: Implementation) -> Array:
    """Return the form of parts in memory."""
    form = layers.packed((sum(map(len, parts)), parts[0].shape[1]), jnp.dtype(dtype), implementation=implementation)
    into = np.zeros(form.shape, form.dtype)
    layers.pack(parts, into, implementation=implementation)
    return into


@settings(max_examples=30, deadline=None)
@given(
    names=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3), rows=st.sampled_from([1, 31, 33, 70]),
    inputs=st.sampled_from([256, 768]), dtype=st.sampled_from(["float32", "bfloat16"]),
)  # fmt: skip
def test_blocks_are_packed_as_the_numbers_that_the_gguf_library_reads(
    implementation: Implementation, names: list[str], rows: int, inputs: int, dtype: str
) -> None:
    stored: list[Tensor] = []
    numbers: list[Tensor] = []
    for place, name in enumerate(names):
        kind = gguf.GGMLQuantizationType[name]
        blocks = blocks_of(name, rows + place, inputs // gguf.GGML_QUANT_SIZES[kind][0])
        stored.append(blocks)
        numbers.append(gguf.dequantize(np.asarray(blocks.data), kind))
        assert blocks.shape == numbers[-1].shape
    assert in_form(stored, dtype, implementation).tobytes() == in_form(numbers, dtype, implementation).tobytes()


def test_parts_of_blocks_are_parts_of_their_numbers() -> None:
    blocks = blocks_of("Q4_1", 12, 3)
    stack = Blocks(np.asarray(blocks.data).reshape(3, 4, -1), blocks.kind)
    numbers = np.asarray(stack)
    assert stack.shape == numbers.shape == (3, 4, 96)
    np.testing.assert_array_equal(np.asarray(stack[1]), numbers[1])
    np.testing.assert_array_equal(np.asarray(stack[1][1:3], np.float64), numbers[1, 1:3])


def test_numbers_of_blocks_are_never_a_view() -> None:
    with pytest.raises(ValueError, match="always copied"):
        np.array(blocks_of("Q4_1", 2, 3), copy=False)
