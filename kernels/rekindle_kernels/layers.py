"""Operations around attention, with checks of arguments: linear layers over packed weights, norms, and others.

The packed form of a weight depends on the implementation.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rekindle_kernels.api import Implementation, operations_of
from rekindle_kernels.blocks import Array, Tensor
from rekindle_kernels.inputs import Gated, Input, Normed, shape_of
from rekindle_kernels.storage import BlockRows, Storage, Stored, Weight, pieces_of


def packed(shape: tuple[int, int], dtype: jnp.dtype | Storage, *, implementation: Implementation) -> Any:
    """Return the shape and dtype of a weight in an implementation's packed form.

    Args:
        shape: (out, in) of the weight.
        dtype: float32, bfloat16 or float16, or a storage for quantized blocks.
        implementation: by name.

    Returns:
        A `jax.ShapeDtypeStruct`; of a storage (bytes,) uint8, or a tree of them for codes with arrays of their own.
        Of an ordered storage, this and (in,) int32, the input of each of its columns.

    Raises:
        ValueError: the storage does not fit the shape, or the implementation does not support it or is unknown.
    """
    if isinstance(dtype, Storage):
        dtype.check(shape)
        blocks = operations_of(implementation).packed(shape, replace(dtype, ordered=False))
        return (blocks, jax.ShapeDtypeStruct(shape[1:], jnp.int32)) if dtype.ordered else blocks
    return operations_of(implementation).packed(shape, jnp.dtype(dtype))


def pack(parts: Sequence[Tensor], into: Array, *, implementation: Implementation) -> None:
    """Join matrices along their outputs, and write their numbers in an implementation's packed form.

    Args:
        parts: (out, in) each, of any floating dtype or in blocks; converted to the dtype of `into`.
        into: a zeroed array with the shape and dtype of `packed` for the joined matrix.
        implementation: by name.

    Raises:
        ValueError: the arrays do not fit together, or the implementation is unknown.
    """
    outputs, inputs = sum(len(part) for part in parts), {part.shape[1] for part in parts}
    form = packed((outputs, max(inputs)), into.dtype, implementation=implementation)
    if len(inputs) > 1 or into.shape != form.shape or into.dtype != form.dtype:
        shapes = ", ".join(str(part.shape) for part in parts)
        raise ValueError(f"weights {shapes} together have the form {form.shape}, but `into` is {into.shape}")
    operations_of(implementation).pack(parts, into)


def pack_blocks(
    parts: Iterable[BlockRows], into: Any, storage: Storage, inputs: int, *, implementation: Implementation
) -> None:
    """Join matrices along their outputs, and write their blocks in an implementation's packed form.

    Args:
        parts: the matrices, or pieces of them in order; each is dropped before the next is taken.
        into: a zeroed array, or a tree of them, with the shapes and dtypes of `packed` for the joined matrix.
        storage: the storage of the joined matrix.
        inputs: the numbers of a row.
        implementation: by name.

    Raises:
        ValueError: the arrays do not fit together or to the storage, or the implementation is unknown.
    """
    shape = (storage.outputs, inputs)
    form = packed(shape, storage, implementation=implementation)
    if not _has_form(into, form):
        raise ValueError(f"a weight {shape} has the form {_text(form)}, but `into` is {_text(into)}")
    blocks, order = into if storage.ordered else (into, None)
    pieces = pieces_of(_with_order(parts, order), storage, inputs)
    operations_of(implementation).pack_blocks(pieces, blocks, replace(storage, ordered=False))


def _with_order(parts: Iterable[BlockRows], order: Array | None) -> Iterator[BlockRows]:
    """Yield the parts, and write the order of their inputs.

    Raises:
        ValueError: the parts have several orders, or one that the storage does not keep.
    """
    for index, part in enumerate(parts):
        if order is not None and part.order is not None and index == 0:
            order[:] = part.order
        if part.order is None or order is None:
            is_same = part.order is order
        else:
            is_same = np.array_equal(part.order, order)
        if not is_same:
            raise ValueError("matrices are joined only if all have the same order of inputs, which the storage keeps")
        yield part


def linear(
    x: Input,
    weight: Weight,
    outputs: int,
    *,
    implementation: Implementation,
    onto: jax.Array | None = None,
) -> jax.Array:
    """Compute `x @ weight.T` with float32 sums; x is rounded first, to the weight's dtype or as its storage says.

    Args:
        x: (rows, in) float32, or a deferred input.
        weight: in the form of `packed`; with its storage if it is in quantized blocks.
        outputs: the number of outputs of the weight.
        implementation: the implementation of the packed form.
        onto: (rows, outputs) float32 to add to the product; None for nothing.

    Returns:
        (rows, outputs) float32.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    rows, inputs = shape_of(x)
    _check_input(x)
    _check(weight, (outputs, inputs), implementation)
    if onto is not None and onto.shape != (rows, outputs):
        raise ValueError(f"a product {(rows, outputs)} cannot be added to {onto.shape}")
    if isinstance(weight, Stored) and weight.storage.ordered:
        x, weight = _columns(materialize(x, implementation=implementation), weight.data[1]), weight.blocks()
    return operations_of(implementation).linear(x, weight, outputs, onto)


def _columns(x: jax.Array, order: jax.Array) -> jax.Array:
    """Return (rows, in) with the columns in an order, (in,) for all rows or (rows, in)."""
    if order.ndim == 1 and len(x) == 1:
        return x.at[:, order].get(mode="promise_in_bounds", unique_indices=True)
    # Of several rows, XLA takes half as long to gather single numbers as columns.
    places = jnp.arange(len(x), dtype=order.dtype)[:, None] * x.shape[1] + jnp.broadcast_to(order, x.shape)
    return x.reshape(-1).at[places].get(mode="promise_in_bounds", unique_indices=True)


def materialize(x: Input, *, implementation: Implementation) -> jax.Array:
    """Compute a deferred input of linear layers; return any other input unchanged.

    Raises:
        ValueError: the arrays do not fit together, or the implementation is unknown.
    """
    if isinstance(x, Normed) and x.centred:
        return layer_norm(x.x, x.weight, x.bias, x.eps, implementation=implementation)
    if isinstance(x, Normed):
        return rms_norm(x.x, x.weight, x.eps, implementation=implementation)
    return gate(x.x, implementation=implementation) if isinstance(x, Gated) else x


def linear_columns(x: jax.Array, weight: Weight, outputs: int, *, implementation: Implementation) -> jax.Array:
    """Compute `weight @ x.T`: the transposed `linear`, in the order for fast access by output.

    Args and errors are those of `linear`, without `onto`.

    Returns:
        (outputs, rows) float32.
    """
    _check(weight, (outputs, x.shape[1]), implementation)
    if isinstance(weight, Stored) and weight.storage.ordered:
        x, weight = _columns(x, weight.data[1]), weight.blocks()
    return operations_of(implementation).linear_columns(x, weight, outputs)


def grouped_linear(
    x: jax.Array, counts: jax.Array | None, weight: Weight, outputs: int, *, implementation: Implementation
) -> jax.Array:
    """Compute `x @ weight.T` with the weight of each row's group. Only weights of groups with rows are read.

    Args:
        x: (rows, in) float32, sorted by group.
        counts: (groups,) int32, the number of rows of each group, with all rows as their sum; None for equal groups.
        weight: (groups, ...), each in the form of `packed`.
        outputs: the number of outputs of each weight.
        implementation: the implementation of the packed form.

    Returns:
        (rows, outputs) float32.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    data, dtype = _parts(weight)
    form = packed((outputs, x.shape[1]), dtype, implementation=implementation)
    groups = len(weight) if counts is None else len(counts)
    if not _has_form(data, form, (groups,)) or (counts is None and len(x) % groups):
        raise ValueError(f"{groups} weights have the form {_text(form)} each, got {_text(data)} for {x.shape}")
    if isinstance(weight, Stored) and weight.storage.ordered:
        sizes = len(x) // groups if counts is None else counts
        group_of = jnp.repeat(jnp.arange(groups), sizes, total_repeat_length=len(x))
        x, weight = _columns(x, weight.data[1][group_of]), weight.blocks()
    return operations_of(implementation).grouped_linear(x, counts, weight, outputs)


def low_rank(
    x: jax.Array,
    groups: jax.Array,
    first: jax.Array,
    second: jax.Array,
    sizes: tuple[int, int],
    *,
    implementation: Implementation,
    onto: jax.Array,
) -> jax.Array:
    """Compute `onto + (x @ first.T) @ second.T` with the two weights of each row's group, such as an adapter's.

    Args:
        x: (rows, in) float32.
        groups: (rows,) int32, ascending; rows of group `len(first)` have no weights.
        first: (groups, ...), each in the form of `packed` for (rank, in).
        second: (groups, ...), each in the form of `packed` for (outputs, rank).
        sizes: (rank, outputs).
        implementation: the implementation of the packed form.
        onto: (rows, outputs) float32.

    Returns:
        (rows, outputs) float32; rows without weights are those of `onto`.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    rank, outputs = sizes
    for weight, shape in ((first, (rank, x.shape[1])), (second, (outputs, rank))):
        form = packed(shape, weight.dtype, implementation=implementation)
        if weight.shape != (len(first), *form.shape):
            raise ValueError(f"{len(first)} weights have the form {form.shape} each, got {weight.shape} for {x.shape}")
    if groups.shape != x.shape[:1] or onto.shape != (len(x), outputs):
        raise ValueError(f"{x.shape} has a group and {outputs} sums for each row, got {groups.shape} and {onto.shape}")
    return operations_of(implementation).low_rank(x, groups, first, second, sizes, onto)


def look_up(weight: Weight, ids: jax.Array, shape: tuple[int, int], *, implementation: Implementation) -> jax.Array:
    """Return rows of a weight, such as the embeddings of tokens.

    Args:
        weight: in the form of `packed`.
        ids: (any,) int32, each less than `out`.
        shape: (out, in) of the weight.
        implementation: the implementation of the packed form.

    Returns:
        (any, in) float32.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    _check(weight, shape, implementation)
    if isinstance(weight, Stored) and weight.storage.ordered:
        rows = operations_of(implementation).look_up(weight.blocks(), ids, shape[1])
        return jnp.zeros_like(rows).at[:, weight.data[1]].set(rows, unique_indices=True)
    return operations_of(implementation).look_up(weight, ids, shape[1])


def rms_norm(x: jax.Array, weight: jax.Array, eps: float, *, implementation: Implementation) -> jax.Array:
    """Normalise by the root mean square over the last axis (Zhang and Sennrich, 2019, arXiv:1910.07467).

    Args:
        x: (..., features) float32.
        weight: (features,) float, the factors of the normalised features.
        eps: the number added to the mean square.
        implementation: by name.

    Returns:
        An array like x.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    _check_norm(x, weight)
    return operations_of(implementation).rms_norm(x, weight, eps)


def layer_norm(
    x: jax.Array, weight: jax.Array, bias: jax.Array | None, eps: float, *, implementation: Implementation
) -> jax.Array:
    """Normalise by the mean and the variance over the last axis (Ba et al., 2016, arXiv:1607.06450).

    Args:
        x: (..., features) float32.
        weight: (features,) float, the factors of the normalised features.
        bias: (features,) float, added to the products; None for none.
        eps: the number added to the variance.
        implementation: by name.

    Returns:
        An array like x.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    _check_norm(x, weight)
    if bias is not None:
        _check_norm(x, bias)
    return operations_of(implementation).layer_norm(x, weight, bias, eps)


def rotate(
    qkv: jax.Array, cos: jax.Array, sin: jax.Array, kv_heads: int, *, implementation: Implementation
) -> tuple[jax.Array, jax.Array]:
    """Rotate queries and keys by their positions (Su et al., 2021, arXiv:2104.09864), and separate them.

    Each pair (i, i + pairs) at the start of a head is rotated by its angle; the rest of the head does not change.

    Args:
        qkv: (tokens, heads + 2 * kv_heads, head_dim) float32: queries, keys, values.
        cos, sin: the cosines and sines of the angles, (tokens, pairs) float32, of at most head_dim / 2 pairs.
        kv_heads: the number of key heads.
        implementation: by name.

    Returns:
        Queries (tokens, heads, head_dim), and keys and values (tokens, 2, kv_heads, head_dim), float32.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    tokens, heads, head_dim = qkv.shape
    if heads <= 2 * kv_heads or cos.shape != sin.shape or len(cos) != tokens or 2 * cos.shape[1] > head_dim:
        raise ValueError(f"heads {qkv.shape}, {kv_heads} of them keys, do not fit angles {cos.shape} and {sin.shape}")
    return operations_of(implementation).rotate(qkv, cos, sin, kv_heads)


def gate(x: jax.Array, *, implementation: Implementation) -> jax.Array:
    """Compute `silu(first half) * second half`, the gate of SwiGLU (Shazeer, 2020, arXiv:2002.05202).

    Args:
        x: (rows, 2 * features) float32.
        implementation: by name.

    Returns:
        (rows, features) float32.

    Raises:
        ValueError: the number of features is odd, or the implementation is unknown.
    """
    _check_gate(x)
    return operations_of(implementation).gate(x)


def _check_input(x: Input) -> None:
    if isinstance(x, Normed):
        _check_norm(x.x, x.weight)
        if x.bias is not None:
            _check_norm(x.x, x.bias)
            if not x.centred:
                raise ValueError("a norm with a bias must be centred")
    if isinstance(x, Gated):
        _check_gate(x.x)


def _check_norm(x: jax.Array, weight: jax.Array) -> None:
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"the weight and the bias of a norm over {x.shape} must be {x.shape[-1:]}, got {weight.shape}")


def _check_gate(x: jax.Array) -> None:
    if x.shape[1] % 2:
        raise ValueError(f"a gate has two halves of features, got {x.shape}")


def _check(weight: Weight, shape: tuple[int, int], implementation: Implementation) -> None:
    data, dtype = _parts(weight)
    form = packed(shape, dtype, implementation=implementation)
    if not _has_form(data, form):
        raise ValueError(
            f'a weight {shape} has the form {_text(form)} for implementation "{implementation}", got {_text(data)}'
        )


def _parts(weight: Weight) -> tuple[Any, jnp.dtype | Storage]:
    """Return the arrays of a weight, and what determines their form."""
    return (weight.data, weight.storage) if isinstance(weight, Stored) else (weight, weight.dtype)


def _has_form(data: Any, form: Any, before: tuple[int, ...] = ()) -> bool:
    """Return True if arrays have the shapes and dtypes of a form, after these axes."""
    arrays, forms = jax.tree.leaves(data), jax.tree.leaves(form)
    same_tree = str(jax.tree.structure(data)) == str(jax.tree.structure(form))
    return same_tree and all(
        array.shape == (*before, *each.shape) and array.dtype == each.dtype
        for array, each in zip(arrays, forms, strict=True)
    )


def _text(tree: Any) -> str:
    return " and ".join(f"{each.shape} {each.dtype}" for each in jax.tree.leaves(tree))
