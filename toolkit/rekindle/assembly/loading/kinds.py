"""Kinds of quantized blocks: of a file on accelerators, and made from the numbers of a model."""

from collections.abc import Sequence
from typing import Final

import jax.numpy as jnp

from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import abstract_decoder
from rekindle.core.models.shard import Shard
from rekindle.core.models.weights.form import Kinds, Quantize, WeightForm
from rekindle.core.models.weights.requests import JoinedTensors, Shapes
from rekindle_kernels.storage import GROUP, LEAST, has_large_groups, in_blocks

GROUPS: Final = (128, 64, 32)
"""Numbers of a group, in order of preference."""
FEWEST_OUTPUTS: Final = 32
"""A matrix with fewer outputs, such as the gate of a shared expert, is not quantized."""


def large_groups(kinds: Kinds, shapes: Shapes, *, floats: bool) -> Kinds:
    """Return the kinds with large groups, for accelerators; without codes that are floats unless `floats`."""
    large = ((name, kind) for name, kind in kinds if has_large_groups(kind, shapes[name][-1]))
    return tuple((name, kind) for name, kind in large if floats or not kind.startswith("float8"))


def quantized_kinds(config: ModelConfig, quantize: Quantize, shards: Sequence[Shard], *, is_accelerator: bool) -> Kinds:
    """Return the kinds to make of a model's matrices, by the names of tensors.

    Embedding and head have codes of 8 bits with a scale for each row. So do all matrices of "int8" on accelerators,
    where the partial sums of groups take more time than the codes. Other matrices have the given codes in groups of
    128. If 128 does not divide the inputs of each device, CPUs have groups of 64 or 32, and accelerators 8 bits with a
    scale for each row. Norms, biases, positions, convolutions and routers keep numbers.

    Args:
        shards: the parts of the model, one for each device.
    """
    wide = WeightForm(jnp.dtype(jnp.float32))
    each = [abstract_decoder(config, wide, "xla", shard).requests for shard in shards]
    kinds: dict[str, str] = {}
    for requests in zip(*each, strict=True):
        kind = _kind(config, quantize, requests, is_accelerator)
        if kind is not None:
            kinds |= {name: kind for name in requests[0].shapes if name not in kinds}
    return tuple(sorted(kinds.items()))


def _kind(
    config: ModelConfig, quantize: Quantize, requests: Sequence[JoinedTensors], is_accelerator: bool
) -> str | None:
    """Return the kind of the matrix in one request of each shard, or None."""
    first, names = requests[0], config.names
    if not first.matrix or first.plain[-2] < FEWEST_OUTPUTS:
        return None
    if any(name.endswith((f".{names.router}.weight", f"{names.positions}.weight")) for name in first.shapes):
        return None
    whole = f"int8:{first.plain[-1]}"
    tables = {f"{names.embedding}.weight", f"{names.head}.weight"}
    grouped = [f"{quantize}:{group}" for group in GROUPS if not is_accelerator or group >= LEAST]
    if tables & set(first.shapes) or (is_accelerator and quantize == "int8"):
        grouped = [whole]
    elif is_accelerator:
        grouped.append(whole)
    return next((kind for kind in grouped if all(_fits(request, kind) for request in requests)), None)


def _fits(request: JoinedTensors, kind: str) -> bool:
    """Return True if the inputs of a matrix are whole groups."""
    group = int(kind.partition(":")[2])
    if not group or group % GROUP or request.plain[-1] % group:
        return False
    return request.inputs is None or in_blocks(request.inputs, kind) is not None
