"""Weights kept in quantized blocks have the numbers of their files, and close products."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.formats.checkpoints.huggingface.quantized.parts.tables import E4M3, E5M2
from rekindle_kernels import layers
from rekindle_kernels.api import Implementation, operations_of
from rekindle_kernels.blocks import Array, Blocks, Tensor
from rekindle_kernels.inputs import Gated, Normed
from rekindle_kernels.quantized import TABLES, Codes, Quantized
from rekindle_kernels.storage import Activations, BlockRows, Storage, Stored, in_blocks, storage_of
from tests.kernels.test_blocks import KINDS, blocks_of
from tests.kernels.test_layers import packed_form, random

pytestmark = pytest.mark.kernel

INPUTS = 512
MIXED = ("Q4_K", "Q6_K", "Q5_1", "Q8_0")


def blocks(kind: str, rows: int, inputs: int = INPUTS) -> Blocks:
    """Return random blocks with scales of similar size."""
    return blocks_of(kind, rows, inputs // gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0])


def numbers_of(parts: Sequence[Tensor]) -> Array:
    """Return the joined numbers; the gguf library decodes blocks."""
    return np.concatenate([
        gguf.dequantize(np.asarray(part.data), gguf.GGMLQuantizationType[part.kind.name]) if isinstance(part, Blocks)
        else np.asarray(part) for part in parts
    ])  # fmt: skip


def stored(parts: Sequence[Tensor], implementation: Implementation, activations: Activations = "int16") -> Stored:
    """Return joined matrices in their own blocks."""
    matrices = [BlockRows.of(part) for part in parts]
    is_ordered = matrices[0].order is not None
    storage = storage_of([(matrix.kind, len(matrix)) for matrix in matrices], activations, ordered=is_ordered)
    shape = (storage.outputs, matrices[0].inputs)
    form = layers.packed(shape, storage, implementation=implementation)
    into = jax.tree.map(lambda each: np.zeros(each.shape, each.dtype), form)
    layers.pack_blocks(matrices, into, storage, shape[1], implementation=implementation)
    return Stored(jax.tree.map(jnp.asarray, into), storage)


def codes_of(name: str, rows: int, inputs: int = INPUTS) -> Quantized:
    """Return random codes: "bits:group:first number", and zero points or biases; "float8:group"."""
    if name.partition(":")[0] in TABLES:
        return table_codes(name, rows, inputs)
    if name.startswith("float8"):
        return float_codes(rows, inputs, int(name.partition(":")[2]))
    bits, group, first, offset = name.split(":")
    count, rng = 1 << int(bits), np.random.default_rng(rows)
    data = rng.integers(0, 256, (rows, inputs * int(bits) // 8), np.uint8)
    table = np.arange(count, dtype=np.float32) + np.float32(first or 0)
    table = table if first else np.arange(256).astype(np.int8).astype(np.float32)
    scales = rng.standard_normal((rows, inputs // int(group))).astype(np.float32)
    zeros = rng.integers(0, count, scales.shape).astype(np.float32) if offset == "zeros" else None
    biases = scales[::-1].copy() if offset == "biases" else None
    codes = Codes(data, inputs, table, int(group), scales, np.dtype(np.float32), zeros, biases)
    return Quantized(inputs, range(rows), lambda some: _some(codes, some))


def float_codes(rows: int, inputs: int, group: int, nans: Sequence[tuple[int, int]] = ()) -> Quantized:
    """Return codes of E4M3 with all numbers, and with NaN at some places."""
    rng = np.random.default_rng(rows)
    data = rng.integers(0, 256, (rows, inputs), np.uint8)
    data[:, :8] = np.arange(8) | 128 * (np.arange(rows)[:, None] & 1)  # the smallest
    data[data & 127 == 127] ^= 1
    for place in nans:
        data[place] = 255
    scales = rng.standard_normal((rows, inputs // group)).astype(np.float32)
    codes = Codes(data, inputs, E4M3, group, scales, np.dtype(np.float32))
    return Quantized(inputs, range(rows), lambda some: _some(codes, some))


def table_codes(kind: str, rows: int, inputs: int) -> Quantized:
    """Return random codes of 4 bits of a kind such as "nf4:64"."""
    table, _, group = kind.partition(":")
    rng = np.random.default_rng(rows)
    data = rng.integers(0, 256, (rows, inputs // 2), np.uint8)
    scales = rng.standard_normal((rows, inputs // int(group))).astype(np.float32)
    codes = Codes(data, inputs, TABLES[table], int(group), scales, np.dtype(np.float32))
    return Quantized(inputs, range(rows), lambda some: _some(codes, some))


def with_fields(matrix: Quantized, **fields: Any) -> Quantized:
    """Return a matrix whose codes have other values of some fields."""

    def read(rows: slice) -> Codes:
        codes = matrix.reader(rows)
        assert isinstance(codes, Codes)
        return replace(codes, **fields)

    return replace(matrix, reader=read)


def act_order(matrix: Quantized, seed: int = 0) -> Quantized:
    """Return a matrix of codes with its groups at random places."""
    codes = matrix.codes()
    assert isinstance(codes, Codes)
    places = np.random.default_rng(seed).permutation(codes.inputs) // codes.group
    return with_fields(matrix, places=places)


def columns_of(parts: Sequence[Tensor], numbers: Array) -> Array:
    """Return inputs, or numbers of weights, in the order in which parts are stored."""
    order = BlockRows.of(parts[0]).order
    return numbers if order is None else numbers[:, order]


def _some(codes: Codes, rows: slice) -> Codes:
    zeros, biases = (None if a is None else a[rows] for a in (codes.zeros, codes.biases))
    return Codes(
        codes.data[rows], codes.inputs, codes.table, codes.group, codes.scales[rows], codes.dtype, zeros, biases
    )


CODES = (
    "4:64:-8:", "4:128:0:", "4:32:0:zeros", "4:64:-8:zeros", "4:64:0:biases",
    "8:512::", "8:32:-128:", "8:64:0:", "8:128::zeros", "8:64:0:zeros", "8:32:0:biases", "float8:32", "float8:512",
    "float4:16", "float4:32", "float4:512", "nf4:64", "fp4:256",
)  # fmt: skip


def all_parts() -> dict[str, list[Tensor]]:
    """Return a weight of each kind, and one of several."""
    single: dict[str, list[Tensor]] = {kind: [blocks(kind, 45)] for kind in KINDS}
    coded: dict[str, list[Tensor]] = {name: [codes_of(name, 45)] for name in CODES}
    beside: list[Tensor] = [blocks("Q4_K", 33), codes_of("float8:128", 40), blocks("Q8_0", 7)]
    mixed: list[Tensor] = [blocks(kind, rows) for kind, rows in zip(MIXED, (33, 64, 7, 40), strict=True)]
    floats: list[Tensor] = [codes_of(kind, 7) for kind in ("float4:16", "fp4:64")]
    small: list[Tensor] = [codes_of("float4:32", 40), codes_of("nf4:64", 33), *floats, blocks("Q4_0", 33)]
    ordered: list[Tensor] = [act_order(codes_of("4:128:0:zeros", rows)) for rows in (45, 33)]
    small_groups: list[Tensor] = [act_order(codes_of("8:32:-128:", 40)), act_order(codes_of("4:32:-8:", 7))]
    joined = {"mixed": mixed, "floats beside": beside, "tables": small} | {
        "act-order": ordered, "act-order of two kinds": small_groups
    }  # fmt: skip
    return single | coded | joined


PARTS = all_parts()
FIRST = ("Q4_1", "Q6_K", "4:64:-8:zeros", "float8:32", "float4:32", "mixed", "floats beside", "tables", "act-order")
NAMES = [name if name in FIRST else pytest.param(name, marks=pytest.mark.wide) for name in PARTS]


@pytest.mark.parametrize("name", NAMES)
def test_rows_have_the_numbers_of_the_file(implementation: Implementation, name: str) -> None:
    parts = PARTS[name]
    numbers = numbers_of(parts)
    ids = np.arange(len(numbers))[::-1].astype(np.int32)
    look_up = jax.jit(
        lambda weight: layers.look_up(weight, jnp.asarray(ids), numbers.shape, implementation=implementation)
    )
    rows = look_up(stored(parts, implementation))
    np.testing.assert_array_equal(np.asarray(rows).view(np.int32), numbers[ids].astype(np.float32).view(np.int32))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [3, pytest.param(1, marks=pytest.mark.wide), pytest.param(21, marks=pytest.mark.wide)])
def test_products_are_those_of_the_numbers(implementation: Implementation, name: str, rows: int) -> None:
    parts, x = PARTS[name], random(rows, INPUTS)
    numbers = numbers_of(parts).astype(np.float64)
    expected = x.astype(np.float64) @ numbers.T
    scale = np.abs(expected).max()
    limits: dict[Activations, float] = {"int16": 1e-4, "int8": 2e-2, "exact": 1e-5}
    onto = random(rows, len(numbers))

    @jax.jit
    def products(x: jax.Array, weight: Stored) -> tuple[jax.Array, jax.Array, jax.Array]:
        y = layers.linear(x, weight, len(numbers), implementation=implementation)
        columns = layers.linear_columns(x, weight, len(numbers), implementation=implementation)
        return y, columns, layers.linear(x, weight, len(numbers), implementation=implementation, onto=jnp.asarray(onto))

    for activations, limit in limits.items():
        y, columns, added = map(np.asarray, products(jnp.asarray(x), stored(parts, implementation, activations)))
        assert np.abs(y - expected).max() < limit * scale
        np.testing.assert_array_equal(columns.T, y)
        np.testing.assert_array_equal(added, onto + y)


LARGE = ("4:128:0:", "8:128::zeros", "8:512::", "8:128:0:biases", "4:256:0:zeros", "float8:128", "float8:512")


@pytest.mark.parametrize("rows", [5, *(pytest.param(rows, marks=pytest.mark.wide) for rows in (1, 200))])
@pytest.mark.parametrize("name", LARGE)
def test_codes_with_large_groups_are_multiplied_with_bfloat16(
    implementation: Implementation, name: str, rows: int
) -> None:
    parts: list[Tensor] = [codes_of(name, 45), codes_of(LARGE[0], 7)]
    weight, is_native = stored(parts, implementation, "bfloat16"), implementation == "cpu"
    if not is_native:
        assert all(each.shape[1] in (45, 7, 52) for each in jax.tree.leaves(weight.data)), "codes, and scales"
    x = random(rows, INPUTS)
    rounded = np.asarray(jnp.asarray(x).astype(jnp.bfloat16)).astype(np.float64)
    expected = rounded @ numbers_of(parts).astype(np.float64).T
    is_exact = rows <= 64 and not is_native  # otherwise the numbers of weights are bfloat16, too
    limit = (1e-5 if is_exact else 1e-2) * np.abs(expected).max()
    product = jax.jit(lambda x, weight: layers.linear(x, weight, 52, implementation=implementation))
    y = np.asarray(product(jnp.asarray(x), weight))
    assert np.abs(y - expected).max() < limit
    counts = np.array([0, rows - rows // 2, rows // 2], np.int32)
    every = jax.tree.map(lambda each: jnp.stack([each] * 3), weight)
    grouped = jax.jit(
        lambda x, counts, weight: layers.grouped_linear(x, counts, weight, 52, implementation=implementation)
    )
    assert np.abs(np.asarray(grouped(jnp.asarray(x), jnp.asarray(counts), every)) - expected).max() < limit


@pytest.mark.parametrize("rows", [5, 200])
@pytest.mark.parametrize("name", LARGE)
def test_codes_with_large_groups_are_multiplied_with_float16_whatever_the_size_of_rows(name: str, rows: int) -> None:
    parts: list[Tensor] = [codes_of(name, 45), codes_of(LARGE[0], 7)]
    weight, sizes = stored(parts, "xla", "float16"), np.logspace(-20, 20, rows, dtype=np.float32)[:, None]
    x = random(rows, INPUTS)
    expected = x.astype(np.float64) @ numbers_of(parts).astype(np.float64).T
    y = np.asarray(jax.jit(partial(layers.linear, outputs=52, implementation="xla"))(jnp.asarray(x * sizes), weight))
    assert np.abs(y / sizes.astype(np.float64) - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["mixed", "floats beside", "tables", "act-order"])
@pytest.mark.parametrize("rows", [1, 5, 100])
def test_exact_products_are_those_of_float32_weights(implementation: Implementation, name: str, rows: int) -> None:
    parts, x = PARTS[name], random(rows, INPUTS)
    outputs = sum(map(len, parts))
    y = layers.linear(jnp.asarray(x), stored(parts, implementation, "exact"), outputs, implementation=implementation)
    wide = packed_form([columns_of(parts, numbers_of(parts))], "float32", implementation)
    expected = layers.linear(jnp.asarray(columns_of(parts, x)), wide, outputs, implementation=implementation)
    np.testing.assert_array_equal(np.asarray(y).view(np.int32), np.asarray(expected).view(np.int32))


@pytest.mark.parametrize("name", NAMES)
def test_native_products_with_bfloat16_are_those_of_bfloat16_weights(name: str) -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("float32")):
        pytest.skip(reason)
    parts, x = PARTS[name], random(100, INPUTS)
    in_order = jnp.asarray(columns_of(parts, x))
    outputs, narrow = sum(map(len, parts)), packed_form([columns_of(parts, numbers_of(parts))], "bfloat16", "cpu")
    weight, onto = stored(parts, "cpu", "bfloat16"), jnp.asarray(random(100, outputs))
    for rows in (1, 2, 5, 13, 37, 100):
        for each in (None, onto[:rows]):
            y = layers.linear(jnp.asarray(x[:rows]), weight, outputs, implementation="cpu", onto=each)
            expected = layers.linear(in_order[:rows], narrow, outputs, implementation="cpu", onto=each)
            np.testing.assert_array_equal(np.asarray(y).view(np.int32), np.asarray(expected).view(np.int32))
        columns = layers.linear_columns(jnp.asarray(x[:rows]), weight, outputs, implementation="cpu")
        expected = layers.linear_columns(in_order[:rows], narrow, outputs, implementation="cpu")
        np.testing.assert_array_equal(np.asarray(columns).view(np.int32), np.asarray(expected).view(np.int32))
    ids = jnp.arange(outputs)
    found, expected = (layers.look_up(each, ids, (outputs, INPUTS), implementation="cpu") for each in (weight, narrow))
    np.testing.assert_array_equal(columns_of(parts, np.asarray(found)), np.asarray(expected))


@pytest.mark.parametrize(
    "activations",
    ["bfloat16", *(pytest.param(form, marks=pytest.mark.wide) for form in ("int16", "int8", "exact"))],
)
def test_rows_of_native_products_do_not_depend_on_the_rows_beside_them(activations: Activations) -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("float32")):
        pytest.skip(reason)
    x = jnp.asarray(random(99, INPUTS))
    for name in ("mixed", "Q4_1", "floats beside", "tables", "act-order"):
        weight, outputs = stored(PARTS[name], "cpu", activations), sum(map(len, PARTS[name]))
        alone = np.concatenate([
            np.asarray(layers.linear(x[row : row + 1], weight, outputs, implementation="cpu"))
            for row in range(0, 99, 7)
        ])  # fmt: skip
        for rows in (*range(2, 12), 17, 31, 96, 99):
            y = layers.linear(x[:rows], weight, outputs, implementation="cpu")
            np.testing.assert_array_equal(np.asarray(y)[::7].view(np.int32), alone[: -(-rows // 7)].view(np.int32))


COUNTS = (1, 2, 3, 5, 8, 12, 13, 16, 17, 32, 33, 63, 64, 65, 96, 129, 130)


@pytest.mark.parametrize(
    "counts",
    [pytest.param(COUNTS, marks=pytest.mark.wide), pytest.param(range(1, 131), marks=pytest.mark.deep)],
    ids=["some", "all"],
)
@pytest.mark.parametrize("name", PARTS)
def test_rows_of_each_kind_are_those_of_a_product_of_200(name: str, counts: Sequence[int]) -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("float32")):
        pytest.skip(reason)
    parts, x = PARTS[name], jnp.asarray(random(200, INPUTS))
    outputs = sum(map(len, parts))
    forms: tuple[Activations, ...] = ("int16", "int8", "exact", "bfloat16")
    weights = [stored(parts, "cpu", form) for form in forms]

    @jax.jit
    def products(x: jax.Array) -> list[jax.Array]:
        return [layers.linear(x, weight, outputs, implementation="cpu") for weight in weights]

    whole = [np.asarray(each).view(np.int32) for each in products(x)]
    for count in counts:
        for form, part, of_all in zip(forms, products(x[:count]), whole, strict=True):
            np.testing.assert_array_equal(np.asarray(part).view(np.int32), of_all[:count], err_msg=f"{form}, {count}")


@pytest.mark.wide
@pytest.mark.parametrize("activations", ["int16", "int8", "exact"])
def test_native_products_of_float_codes_are_those_of_float32_weights(activations: Activations) -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("float32")):
        pytest.skip(reason)
    for inputs, group in ((512, 128), (1600, 32), (96, 96)):  # more than one block of the sums, and less than one
        x = jnp.asarray(random(99, inputs))
        for part in [codes_of(f"{name}:{group}", 45, inputs) for name in ("float8", "nf4", "fp4")]:
            weight, wide = stored([part], "cpu", activations), packed_form([np.asarray(part)], "float32", "cpu")
            for rows in (*range(1, 15), 24, 25, 96, 99):
                y = layers.linear(x[:rows], weight, 45, implementation="cpu")
                expected = layers.linear(x[:rows], wide, 45, implementation="cpu")
                np.testing.assert_array_equal(np.asarray(y).view(np.int32), np.asarray(expected).view(np.int32))


def test_float_codes_that_are_no_number_reach_the_product(implementation: Implementation) -> None:
    weight = stored([float_codes(40, 256, 64, nans=[(3, 65), (39, 255)])], implementation)
    y = layers.linear(jnp.asarray(random(2, 256)), weight, 40, implementation=implementation)
    assert np.flatnonzero(np.isnan(np.asarray(y)).all(0)).tolist() == [3, 39]
    assert np.isnan(np.asarray(y)).sum() == 4
    rows = layers.look_up(weight, jnp.asarray([3]), (40, 256), implementation=implementation)
    assert np.flatnonzero(np.isnan(np.asarray(rows)[0])).tolist() == list(range(64, 128))


def test_rows_are_multiplied_with_the_blocks_of_their_group(implementation: Implementation) -> None:
    counts = np.array([0, 3, 1, 50], np.int32)
    parts: list[list[Tensor]] = [
        [blocks("Q4_K", 40 + group)[:40], codes_of("float8:256", 30 + group)[:12], blocks("Q6_K", 24 - group)[:20]]
        for group in range(4)
    ]
    each = [stored(group, implementation) for group in parts]
    weight = Stored(jnp.stack([one.data for one in each]), each[0].storage)
    x = random(54, INPUTS)
    grouped = jax.jit(
        lambda x, counts, weight: layers.grouped_linear(x, counts, weight, 72, implementation=implementation)
    )
    y = grouped(jnp.asarray(x), jnp.asarray(counts), weight)
    numbers = np.stack([numbers_of(group) for group in parts]).astype(np.float64)
    expected = np.einsum("ri,roi->ro", x.astype(np.float64), numbers[np.repeat(np.arange(4), counts)])
    assert np.abs(np.asarray(y) - expected).max() < 1e-4 * np.abs(expected).max()
    even = grouped(jnp.asarray(x[:8]), None, weight)
    expected = np.einsum("ri,roi->ro", x[:8].astype(np.float64), numbers[np.repeat(np.arange(4), 2)])
    assert np.abs(np.asarray(even) - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("counts", [(0, 3, 1, 50), None])
def test_each_group_has_an_order_of_inputs_of_its_own(
    implementation: Implementation, counts: tuple[int, ...] | None
) -> None:
    matrices = [act_order(codes_of("4:64:-8:", 40 + seed)[:40], seed) for seed in range(4)]
    each = [stored([matrix], implementation) for matrix in matrices]
    weight = Stored(jax.tree.map(lambda *some: jnp.stack(some), *(one.data for one in each)), each[0].storage)
    x = random(56 if counts is None else 54, INPUTS)
    sizes = None if counts is None else jnp.asarray(counts, jnp.int32)
    grouped = jax.jit(lambda x, weight: layers.grouped_linear(x, sizes, weight, 40, implementation=implementation))
    numbers = np.stack([np.asarray(matrix) for matrix in matrices]).astype(np.float64)
    group_of = np.repeat(np.arange(4), 14 if counts is None else counts)
    expected = np.einsum("ri,roi->ro", x.astype(np.float64), numbers[group_of])
    assert np.abs(np.asarray(grouped(jnp.asarray(x), weight)) - expected).max() < 1e-4 * np.abs(expected).max()


def test_matrices_with_several_orders_of_inputs_are_not_joined(implementation: Implementation) -> None:
    first, other = (act_order(codes_of("4:64:-8:", 8), seed) for seed in range(2))
    for parts in ([first, other], [first, codes_of("4:64:-8:", 8)], [codes_of("4:64:-8:", 8), first]):
        with pytest.raises(ValueError, match="only if all have the same order of inputs, which the storage keeps"):
            stored(parts, implementation)
    uneven = with_fields(first, places=np.arange(INPUTS) // 64 * 0)
    with pytest.raises(ValueError, match="packed in groups of equal size, and not all of these have 64 numbers"):
        BlockRows.of(uneven)


@pytest.mark.parametrize("name", ["Q4_1", "act-order"])
@pytest.mark.parametrize("rows", [1, 100])
def test_products_read_what_stands_for_their_input(implementation: Implementation, name: str, rows: int) -> None:
    weight, outputs = stored(PARTS[name], implementation), sum(map(len, PARTS[name]))
    inputs = (
        Normed(jnp.asarray(random(rows, INPUTS)), jnp.asarray(random(INPUTS)), 1e-5),
        Normed(jnp.asarray(random(rows, INPUTS)), jnp.ones(INPUTS), 1e-5, centred=True, bias=jnp.ones(INPUTS)),
        Gated(jnp.asarray(random(rows, 2 * INPUTS))),
    )
    for x in inputs:
        array = layers.materialize(x, implementation=implementation)
        expected = layers.linear(array, weight, outputs, implementation=implementation)
        y = layers.linear(x, weight, outputs, implementation=implementation)
        np.testing.assert_array_equal(np.asarray(y), np.asarray(expected))


def test_parts_are_packed_in_pieces_as_whole() -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("float32")):
        pytest.skip(reason)
    whole, parts = PARTS["mixed"], PARTS["mixed"]
    pieces = [piece for part in parts for piece in (part[:5], part[5:])]
    assert stored(pieces, "cpu").storage == stored(whole, "cpu").storage
    np.testing.assert_array_equal(np.asarray(stored(pieces, "cpu").data), np.asarray(stored(whole, "cpu").data))


def test_rows_and_inputs_are_taken_in_whole_blocks() -> None:
    matrix = blocks("Q4_1", 9)
    numbers, order = numbers_of([matrix]), np.array([8, 0, 0, 5])
    columns = np.concatenate([np.arange(64, 96), np.full(32, -1), np.arange(0, 32)])
    some = BlockRows.of(matrix).rows(order).columns(columns)
    expected = np.where(columns < 0, 0, numbers[order][:, columns])
    np.testing.assert_array_equal(numbers_of([Blocks(some.data, matrix.kind)]), expected)
    for indices in (columns[:-1], columns[::-1], columns + 1, np.where(columns == 0, -1, columns)):
        assert in_blocks(indices, "Q4_1") is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_reach_the_product(bad: float) -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("float32")):
        pytest.skip(reason)
    x = random(2, INPUTS)
    x[1, 77] = bad
    y = np.asarray(layers.linear(jnp.asarray(x), stored(PARTS["Q8_0"], "cpu"), 45, implementation="cpu"))
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1]).all()


def test_a_row_of_zeros_and_tiny_numbers_gives_zeros(implementation: Implementation) -> None:
    x = np.zeros((2, INPUTS), np.float32)
    x[1] = 1e-40
    y = layers.linear(jnp.asarray(x), stored(PARTS["Q4_1"], implementation), 45, implementation=implementation)
    assert np.abs(np.asarray(y)).max() < 1e-30


def test_arrays_that_do_not_fit_a_storage_are_refused(implementation: Implementation) -> None:
    weight = stored(PARTS["Q4_1"], implementation)
    x = jnp.zeros((2, INPUTS))
    with pytest.raises(ValueError, match=r"a weight \(45, 512\) has the form \(\d+,\) .* got \(\d+,\) uint8"):
        layers.linear(x, Stored(weight.data[:-64], weight.storage), 45, implementation=implementation)
    with pytest.raises(ValueError, match=r"a weight \(45, 512\) has the form \(\d+,\) .* got \(\d+,\) uint8"):
        layers.linear(x, Stored(weight.data, Storage((("Q4_0", 45),))), 45, implementation=implementation)
    with pytest.raises(ValueError, match=r"a weight \(44, 512\) has 44 rows, but its storage has 45"):
        layers.linear(x, weight, 44, implementation=implementation)
    with pytest.raises(ValueError, match=r"rows of Q6_K are blocks of 256 numbers, not 320"):
        layers.packed((8, 320), Storage((("Q6_K", 8),)), implementation=implementation)
    floats = stored([float_codes(45, INPUTS, 64)], implementation)
    with pytest.raises(ValueError, match=r"a weight \(45, 512\) has the form \(\d+,\) .* got \(\d+,\) uint8"):
        layers.linear(x, Stored(floats.data[:-64], floats.storage), 45, implementation=implementation)
    other = Storage((("Q5_1", 45),))
    wide = np.zeros(layers.packed((45, INPUTS), other, implementation=implementation).shape, np.uint8)
    into, parts = np.zeros(weight.data.shape, np.uint8), [BlockRows.of(PARTS["Q4_1"][0])]
    with pytest.raises(ValueError, match=r"the storage has 45 rows of Q5_1 at this place, but the part has 45 of Q4_1"):
        layers.pack_blocks(parts, wide, other, INPUTS, implementation=implementation)
    with pytest.raises(ValueError, match="has 44 rows, but its storage has 45"):
        layers.pack_blocks([parts[0].rows(slice(44))], into, weight.storage, INPUTS, implementation=implementation)


def test_only_whole_blocks_of_known_kinds_are_stored() -> None:
    cut = Blocks(np.asarray(blocks("Q4_1", 4).data)[:, :-1], blocks("Q4_1", 4).kind)
    with pytest.raises(ValueError, match=r"rows of Q4_1 have a multiple of 20 bytes, got \(4, 319\): truncated"):
        BlockRows.of(cut)
    with pytest.raises(ValueError, match=r'one of Q4_0, .*, or like "int4:128", .* not "IQ4_NL"'):
        Storage((("IQ4_NL", 4),))
    with pytest.raises(ValueError, match="not in quantized blocks"):
        BlockRows.of(random(4, 64))
    with pytest.raises(ValueError, match="activations are one of"):
        Storage((("Q4_0", 4),), "float8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r'native kernels have activations of int16, .*, not "float16"'):
        layers.packed((4, 32), Storage((("Q4_0", 4),), "float16"), implementation="cpu")
    with pytest.raises(ValueError, match="at least one row"):
        Storage(())
    with pytest.raises(ValueError, match="whole groups of 32 or a multiple, not 16 of 64"):
        BlockRows.of(codes_of("4:16:-8:", 4, 64))
    with pytest.raises(ValueError, match="whole groups of 32 or a multiple, not 128 of 320"):
        BlockRows.of(with_fields(float_codes(4, 320, 64), group=128))
    with pytest.raises(ValueError, match="if they have no zero points and no least numbers"):
        BlockRows.of(with_fields(float_codes(4, 64, 32), zeros=np.zeros((4, 2), np.float32)))
    with pytest.raises(ValueError, match="consecutive integers, or floats of E4M3"):
        BlockRows.of(with_fields(float_codes(4, 64, 32), table=E5M2))
    with pytest.raises(ValueError, match="codes of 4-bit floats are packed if they have no zero points"):
        BlockRows.of(with_fields(codes_of("nf4:32", 4, 64), zeros=np.zeros((4, 2), np.float32)))
    with pytest.raises(ValueError, match="consecutive integers, or floats of"):
        BlockRows.of(with_fields(codes_of("nf4:32", 4, 64), table=TABLES["nf4"] * np.float32(2)))
    with pytest.raises(ValueError, match="if they count from 0"):
        BlockRows.of(codes_of("4:32:-8:biases", 4, 64))
