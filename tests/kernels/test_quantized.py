"""Codes with scales are packed as their numbers are, by numpy and in C++."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.formats.checkpoints.huggingface.quantized.parts import tables
from rekindle_kernels import layers
from rekindle_kernels.api import Implementation
from rekindle_kernels.blocks import Array
from rekindle_kernels.quantized import Codes, Quantized, Stack, Turned

pytestmark = pytest.mark.kernel

TABLES = {
    "E4M3": tables.E4M3,
    "E5M2": tables.E5M2,
    "int8": tables.INT8,
    "uint8": tables.UINT8,
    "shifted": tables.UINT8 - np.float32(128),
    "E2M1": tables.E2M1,
    "uint4": tables.UINT4,
    "shifted 4": tables.UINT4 - np.float32(8),
}
"""Tables of formats; the C++ kernels compute some instead of a lookup."""
DTYPES = [np.dtype(dtype) for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)]


def codes_of(table: str, rows: int, inputs: int, group: int, dtype: np.dtype[Any], zeros: bool, biases: bool) -> Codes:
    """Return random codes of every kind, with scales from the smallest to the largest of their dtype."""
    random, numbers = np.random.default_rng([rows, inputs, group]), TABLES[table]
    data = random.integers(0, 256, (rows, inputs if len(numbers) == 256 else -(-inputs // 2)), np.uint8)
    shape = (rows, -(-inputs // group))
    few = random.choice([1, -1, 0, 1e-8, 3e-6, 2e-3, 100, 60_000], shape) * random.standard_normal(shape)
    scales = few.astype(np.float16 if dtype == np.float16 else np.float32).astype(dtype).astype(np.float32)
    offsets = random.integers(0, 16, shape).astype(np.float32) if zeros else None
    more = random.standard_normal(shape).astype(dtype).astype(np.float32) if biases else None
    return Codes(data, inputs, numbers, group, scales, dtype, offsets, more)


def matrix_of(codes: Codes) -> Quantized:
    """Return a matrix; its reader takes rows of some codes."""

    def read(rows: slice) -> Codes:
        zeros, biases = (None if each is None else each[rows] for each in (codes.zeros, codes.biases))
        return replace(codes, data=codes.data[rows], scales=codes.scales[rows], zeros=zeros, biases=biases)

    return Quantized(codes.inputs, range(len(codes.data)), read)


@settings(max_examples=60, deadline=None)
@given(
    table=st.sampled_from(sorted(TABLES)), rows=st.sampled_from([1, 31, 70]), dtype=st.sampled_from(DTYPES),
    inputs=st.sampled_from([1, 33, 256, 300]), group=st.sampled_from([1, 16, 32, 100, 128, 1000]),
    zeros=st.booleans(), biases=st.booleans(), into=st.sampled_from(["float32", "bfloat16"]),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_codes_are_packed_as_their_numbers(
    implementation: Implementation, table: str, rows: int, inputs: int, group: int, dtype: np.dtype[Any], zeros: bool,
    biases: bool, into: str,
) -> None:  # fmt: skip
    codes = codes_of(table, rows, inputs, group, dtype, zeros, biases)
    form = layers.packed((rows, inputs), jnp.dtype(into), implementation=implementation)
    packed, expected = (np.zeros(form.shape, form.dtype) for _ in range(2))
    layers.pack([matrix_of(codes)], packed, implementation=implementation)
    layers.pack([by_definition(codes)], expected, implementation=implementation)
    np.testing.assert_array_equal(packed.astype(np.float32), expected.astype(np.float32))
    signs, expected_signs = (np.signbit(each[~np.isnan(each)]) for each in (packed, expected))
    np.testing.assert_array_equal(signs, expected_signs)


def by_definition(codes: Codes) -> Array:
    """Return the numbers of codes, one step after another in their dtype."""
    nibbles = np.stack([codes.data & 15, codes.data >> 4], -1).reshape(len(codes.data), -1)
    data = codes.data if len(codes.table) == 256 else nibbles[:, : codes.inputs]
    groups = np.arange(codes.inputs) // codes.group
    numbers = codes.table[data]
    if codes.zeros is not None:
        numbers = numbers - codes.zeros[:, groups]
    numbers = (numbers * codes.scales[:, groups]).astype(codes.dtype)
    if codes.biases is not None:
        numbers = (numbers.astype(np.float32) + codes.biases[:, groups]).astype(codes.dtype)
    return numbers


def test_a_stack_and_a_transposed_matrix_are_those_of_the_numbers() -> None:
    codes = codes_of("int8", 12, 40, 8, DTYPES[0], zeros=False, biases=False)
    matrix, numbers = matrix_of(codes), codes.widen()
    stack = Stack((matrix, Turned(Turned(matrix))))
    assert stack.shape == np.asarray(stack).shape == (2, 12, 40)
    assert (stack.ndim, len(stack), stack[1:].shape, Turned(matrix).shape) == (3, 2, (1, 12, 40), (40, 12))
    np.testing.assert_array_equal(np.asarray(stack[1]), numbers)
    np.testing.assert_array_equal(np.asarray(Turned(matrix), np.float64), numbers.T)
    with pytest.raises(TypeError, match="read whole"):
        Turned(matrix)[1:]
    with pytest.raises(ValueError, match="always copied"):
        np.array(matrix, copy=False)
