"""Static descriptions of weights kept in quantized blocks in memory.

A *kind* is a name of ggml, such as "Q4_K", or codes of safetensors files with float32 scales: "int4:128" has 4 bits and
a scale for each 128 numbers of a row. ":zero" and ":least" after it stand for zero points and least numbers. The codes
of "float8:128" are floats of 8 bits, E4M3; of "float4:32", "nf4:64" and "fp4:64" floats of 4 bits: E2M1 as in MXFP4,
and those of bitsandbytes. "float4:16" has two scales for each 32 numbers, as NVFP4.

A group of act-order has inputs that are not consecutive. Its weight is kept in an order of inputs in which they are,
with this order beside the blocks.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from rekindle_kernels.blocks import Array, Blocks, Bytes, FileArray, ReorderedRows, Tensor
from rekindle_kernels.quantized import TABLES, Codes, Quantized

Indices = np.ndarray[Any, np.dtype[np.int_]]
Activations = Literal["int16", "int8", "bfloat16", "float16", "exact"]
"""The numbers multiplied with packed codes: integers by row and group of 32 inputs, or floats.

Of "int16" the products are within 1e-4 of "exact", relative to the largest. Of "int8" they are within a fiftieth.
Of "bfloat16", CPUs multiply numbers widened to bfloat16: it is `linear` over bfloat16 weights, bit for bit. "float16"
has a power of two for each row, so that no number leaves its range; native kernels lack it. "exact" is `linear` over
float32 weights, bit for bit on CPUs, and slow. On CPUs, codes of "float8", "nf4" and "fp4" are multiplied
so for all integers too, and fast: integers do not hold their products.
"""
MOST: Final[dict[Activations, int]] = {"int16": 32767, "int8": 127, "exact": 0, "bfloat16": -1}
"""The largest integer of a group; 0 for no integers, and -1 for bfloat16. Native kernels have these activations."""
GROUP: Final = 32
"""Inputs with one scale of their integers."""
_GGML: Final = {
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
    "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
}  # fmt: skip
"""The numbers and bytes of a block."""
PAIRED: Final = "float4:16"
"""The kind with a scale for half of a group."""
LEAST: Final = 128
"""The fewest numbers of a group in arrays of codes and of scales, unless a row is one group."""
_CODES: Final = (
    "int4", "int4:zero", "int4:least", "int8", "int8:zero", "int8:least", "float4", "float4:16", "float8", "nf4", "fp4"
)  # fmt: skip
_CODES_AT_ONCE: Final = 1 << 18
"""Codes searched for those that are no number at a time, to stay in the caches."""
_PIECE_BYTES: Final = 2 << 20
"""The target size of the blocks that are read from a file at a time."""
_PIECE_ROWS: Final = 256
"""Rows of a piece are a multiple of this number: every packed form can be split there."""
_E4M3: Final = np.arange(256, dtype=np.uint8).view(jnp.dtype(jnp.float8_e4m3fn)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Layout:
    """A kind of blocks.

    Attributes:
        number: its number in the C++ library.
        numbers: the numbers of a block.
        size: the bytes of a block, as in a file.
    """

    number: int
    numbers: int
    size: int


def layout_of(kind: str) -> Layout:
    """Return the layout of a kind.

    Raises:
        ValueError: the kind is unknown.
    """
    if kind in _GGML:
        return Layout(list(_GGML).index(kind), *_GGML[kind])
    if kind == PAIRED:
        return Layout(len(_GGML) + _CODES.index(kind), GROUP, 2 * 4 + GROUP // 2)
    name, _, rest = kind.partition(":")
    group, _, offset = rest.partition(":")
    whole = f"{name}:{offset}" if offset else name
    if whole not in _CODES or not group.isdecimal() or not int(group) or int(group) % GROUP:
        raise ValueError(
            f"the kind of a packed weight is one of {', '.join(_GGML)}, or like "
            f'"int4:128", "int8:32:zero", "float8:128", not "{kind}"'
        )
    header, bits = 8 if offset else 4, 4 if name.endswith("4") else 8
    return Layout(len(_GGML) + _CODES.index(whole), int(group), header + int(group) * bits // 8)


def has_large_groups(kind: str, inputs: int) -> bool:
    """Return True for codes with one scale for at least 128 of the inputs, or for all.

    Accelerators multiply these as they are. A product of smaller groups is dominated by its partial sums.
    """
    numbers = layout_of(kind).numbers
    return kind.startswith(("int", "float8")) and inputs % numbers == 0 and (numbers >= LEAST or numbers == inputs)


def has_floats(kind: str) -> bool:
    """Return True for codes multiplied as float32 numbers with inputs of float32 where others take integers."""
    return kind.startswith(("float8", "nf4", "fp4"))


@dataclass(frozen=True, slots=True)
class Storage:
    """A static description of a packed weight in quantized blocks, for use in place of a dtype.

    Attributes:
        runs: the kind and the number of rows of each run of rows, since joined weights may be of several kinds.
        activations: the numbers that are multiplied with the codes.
        ordered: whether the inputs are in an order of their own, kept beside the blocks.
    """

    runs: tuple[tuple[str, int], ...]
    activations: Activations = "int16"
    ordered: bool = False

    def __post_init__(self) -> None:
        if not self.runs or any(rows < 1 for _, rows in self.runs):
            raise ValueError(f"a packed weight has at least one row of each of its kinds, got {self.runs}")
        if self.activations not in get_args(Activations):
            raise ValueError(f'activations are one of {get_args(Activations)}, not "{self.activations}"')
        for kind, _ in self.runs:
            layout_of(kind)

    @property
    def outputs(self) -> int:
        """The number of rows."""
        return sum(rows for _, rows in self.runs)

    def check(self, shape: tuple[int, int]) -> None:
        """Check the shape (out, in) of a weight.

        Raises:
            ValueError: the numbers of rows differ, or a row is not whole blocks.
        """
        if shape[0] != self.outputs:
            raise ValueError(f"a weight {shape} has {shape[0]} rows, but its storage has {self.outputs}: {self.runs}")
        for kind, _ in self.runs:
            if shape[1] % layout_of(kind).numbers:
                raise ValueError(f"rows of {kind} are blocks of {layout_of(kind).numbers} numbers, not {shape[1]}")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Stored:
    """A packed weight in quantized blocks, for use in place of an array. A pytree with a static storage.

    Attributes:
        data: an array or several, in the form of `layers.packed`; with a first axis of groups, or without. Of an
            ordered storage, the blocks and the order.
        storage: its description.
    """

    data: Any
    storage: Storage = field(metadata={"static": True})

    def __len__(self) -> int:
        return len(jax.tree.leaves(self.data)[0])

    def __getitem__(self, group: Any) -> "Stored":
        """Return the weight of a group."""
        one: Stored = jax.tree.map(lambda array: array[group], self)
        return one

    def blocks(self) -> "Stored":
        """Return the blocks of an ordered storage alone."""
        return Stored(self.data[0], replace(self.storage, ordered=False))


Weight = jax.Array | Stored
"""A packed weight."""


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Rows of a matrix in quantized blocks of one kind.

    Attributes:
        kind: the kind of the blocks.
        data: (rows, bytes) uint8, as in a file.
        order: (inputs,), the input of each number of a row, if they are in another order, or None.
    """

    kind: str
    data: Bytes | FileArray | ReorderedRows
    order: Indices | None = None

    @classmethod
    def of(cls, matrix: Tensor) -> "BlockRows":
        """Return the blocks of a matrix, unread if a file has them so.

        Raises:
            ValueError: the matrix is not in blocks of a supported kind, or is incomplete.
        """
        if isinstance(matrix, Blocks):
            layout = layout_of(matrix.kind.name)
            if matrix.data.ndim != 2 or matrix.data.shape[1] % layout.size:
                raise ValueError(
                    f"rows of {matrix.kind.name} have a multiple of {layout.size} bytes, got {matrix.data.shape}: "
                    "truncated?"
                )
            return cls(matrix.kind.name, matrix.data)
        codes = matrix.codes() if isinstance(matrix, Quantized) else None
        if not isinstance(codes, Codes):
            raise ValueError("the numbers of a part are not in quantized blocks: convert it to a dtype instead")
        return _blocks_of_codes(codes)

    @property
    def inputs(self) -> int:
        """The numbers of a row."""
        layout, size = layout_of(self.kind), int(self.data.shape[1])
        return size // layout.size * layout.numbers

    def __len__(self) -> int:
        return len(self.data)

    def rows(self, indices: Indices | slice) -> "BlockRows":
        """Return some rows: a view for a slice, else a copy."""
        data = self.data[indices] if isinstance(indices, slice) else np.asarray(self.data)[indices]
        return replace(self, data=data)

    def columns(self, indices: Indices) -> "BlockRows":
        """Return some inputs in whole blocks, as a copy; blocks of zeros for -1. See `in_blocks`."""
        blocks = in_blocks(indices, self.kind)
        assert blocks is not None, "the inputs are whole blocks"
        assert self.order is None, "blocks in another order have no consecutive inputs"
        each = np.asarray(self.data).reshape(len(self), -1, layout_of(self.kind).size)
        some = each[:, blocks]
        some[:, blocks < 0] = 0
        return BlockRows(self.kind, some.reshape(len(self), -1))


def in_blocks(indices: Indices, kind: str) -> Indices | None:
    """Return the indices of the blocks with these inputs, -1 for blocks of -1; None if they are not whole blocks."""
    numbers = layout_of(kind).numbers
    if len(indices) % numbers:
        return None
    each = indices.reshape(-1, numbers)
    first = each[:, :1]
    is_whole = (each == first + np.arange(numbers)) & (first % numbers == 0)
    blocks: Indices = np.where(first < 0, -1, first // numbers)[:, 0]
    return blocks if np.where(first < 0, each < 0, is_whole).all() else None


def storage_of(
    kinds: Sequence[tuple[str, int]], activations: Activations = "int16", *, ordered: bool = False
) -> Storage:
    """Return the storage of joined matrices, given the kind and the rows of each, at least one."""
    runs: list[tuple[str, int]] = []
    for kind, rows in kinds:
        before = runs.pop()[1] if runs and runs[-1][0] == kind else 0
        runs.append((kind, before + rows))
    return Storage(tuple(runs), activations, ordered)


class Piece(NamedTuple):
    """Some rows of a run of a storage.

    Attributes:
        run: the index of the run.
        first: the index of the first row within the run.
        blocks: (rows, bytes).
    """

    run: int
    first: int
    blocks: Bytes


def pieces_of(parts: Iterable[BlockRows], storage: Storage, inputs: int) -> Iterator[Piece]:
    """Yield the parts of a joined matrix with their places in its storage.

    Raises:
        ValueError: the parts are not stored so.
    """
    run, first = 0, 0
    for part in parts:
        if first == storage.runs[run][1] and run + 1 < len(storage.runs):
            run, first = run + 1, 0
        kind, rows = storage.runs[run]
        if part.kind != kind or len(part) > rows - first:
            raise ValueError(
                f"the storage has {rows - first} rows of {kind} at this place, but the part has {len(part)} of "
                f"{part.kind}"
            )
        if part.inputs != inputs:
            raise ValueError(f"a part has {part.inputs} inputs, others {inputs}")
        step = max(1, _PIECE_BYTES // (_PIECE_ROWS * part.data.shape[1])) * _PIECE_ROWS
        for begin in range(0, len(part), step):
            yield Piece(run, first + begin, np.asarray(part.data[begin : begin + step]))
        first += len(part)
    rows = first + sum(count for _, count in storage.runs[:run])
    if rows < storage.outputs:
        raise ValueError(f"the joined matrix has {rows} rows, but its storage has {storage.outputs}: {storage.runs}")


def _blocks_of_codes(codes: Codes) -> BlockRows:
    """Return codes as blocks: float32 scale, float32 zero point or least number if any, and the codes.

    The numbers of blocks have float32's rounding alone, and not those of the codes' dtype.
    """
    if 2 * codes.group == GROUP and codes.inputs % GROUP == 0 and codes.table.tobytes() == TABLES["float4"].tobytes():
        return _of_table(PAIRED, replace(codes, group=GROUP), [codes.scales[:, ::2], codes.scales[:, 1::2]])
    if codes.inputs % codes.group or codes.group % GROUP:
        raise ValueError(
            f"codes are packed in whole groups of {GROUP} or a multiple, not {codes.group} of {codes.inputs}"
        )
    if codes.places is not None:
        order = np.argsort(codes.places, kind="stable")
        return replace(_blocks_of_codes(_consecutive(codes, order)), order=order.astype(np.int32))
    if np.array_equal(codes.table, _E4M3, equal_nan=True):
        return _of_floats(codes)
    for name, table in TABLES.items():
        if codes.table.tobytes() == table.tobytes():
            return _of_table(f"{name}:{codes.group}", codes, [codes.scales])
    return _of_integers(codes)


def _consecutive(codes: Codes, order: Indices) -> Codes:
    """Return codes with their numbers in an order in which groups are consecutive."""
    assert codes.places is not None, "the codes have groups by place"
    if not np.array_equal(codes.places[order], np.arange(codes.inputs) // codes.group):
        raise ValueError(f"codes are packed in groups of equal size, and not all of these have {codes.group} numbers")
    if len(codes.table) != 16:
        return replace(codes, data=codes.data[:, order], places=None)
    pairs = np.stack([codes.data & np.uint8(15), codes.data >> np.uint8(4)], axis=-1).reshape(len(codes.data), -1)
    some = pairs[:, order]
    return replace(codes, data=some[:, ::2] | some[:, 1::2] << np.uint8(4), places=None)


def _of_floats(codes: Codes) -> BlockRows:
    """Return codes of E4M3 as blocks. A group with a code that is not a number has the scale NaN."""
    if codes.zeros is not None or codes.biases is not None:
        raise ValueError("codes of 8-bit floats are packed if they have no zero points and no least numbers")
    data, scales = codes.data[:, : codes.inputs], codes.scales
    step = max(1, _CODES_AT_ONCE // codes.inputs)
    if any((data[first : first + step] & 127).max() == 127 for first in range(0, len(data), step)):
        largest = (data & 127).reshape(*scales.shape, -1).max(-1)
        scales = np.where(largest == 127, np.float32(np.nan), scales)
    return _joined(f"float8:{codes.group}", codes, data, [scales])


def _of_table(kind: str, codes: Codes, scales: Sequence[Array]) -> BlockRows:
    """Return codes of 4 bits with the numbers of a known table as blocks."""
    if codes.zeros is not None or codes.biases is not None:
        raise ValueError("codes of 4-bit floats are packed if they have no zero points and no least numbers")
    return _joined(kind, codes, codes.data[:, : codes.inputs // 2], scales)


def _of_integers(codes: Codes) -> BlockRows:
    """Return codes of consecutive integers as blocks."""
    first, bits = float(codes.table[0]), 4 if len(codes.table) == 16 else 8
    is_signed = bits == 8 and np.array_equal(codes.table, np.arange(256).astype(np.int8).astype(np.float32))
    integers = np.arange(len(codes.table), dtype=np.float32)
    if not is_signed and not np.array_equal(codes.table, integers + np.float32(first)):
        raise ValueError(
            "codes are packed only if their numbers are consecutive integers, or floats of E4M3, E2M1, NF4 or FP4"
        )
    if codes.biases is not None and (codes.zeros is not None or first or is_signed):
        raise ValueError("codes with least numbers are packed if they count from 0, without zero points")
    data, zeros = codes.data[:, : codes.inputs * bits // 8], codes.zeros
    # What a stored code has less than its number: codes of 8 bits are signed, and 8 is 0 in 4 bits without zero points.
    less = np.float32(0 if is_signed else first + 128 if bits == 8 else first)
    if codes.biases is None and bits == 8 and not is_signed:
        data = data ^ np.uint8(128)
    if zeros is not None:
        zeros = zeros - less
    elif codes.biases is None and less != (-8 if bits == 4 else 0):
        zeros = np.full_like(codes.scales, -less)
    offset = codes.biases if codes.biases is not None else zeros
    kind = f"int{bits}:{codes.group}" + ("" if offset is None else ":zero" if codes.biases is None else ":least")
    return _joined(kind, codes, data, [codes.scales] if offset is None else [codes.scales, offset])


def _joined(kind: str, codes: Codes, data: Bytes, numbers: Sequence[Array]) -> BlockRows:
    """Return the numbers of each group before its codes."""
    rows = len(data)
    header = np.stack(numbers, axis=-1).astype(np.float32).view(np.uint8)
    body = data.reshape(rows, codes.inputs // codes.group, -1)
    blocks = np.concatenate([header.reshape(*body.shape[:2], -1), body], axis=-1)
    return BlockRows(kind, blocks.reshape(rows, -1))
