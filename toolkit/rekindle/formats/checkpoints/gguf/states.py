"""Locations of the tensors of mixers with a state in a GGUF file."""

import math
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rekindle.core.models.config import DeltaNet, Mamba2, Names, StateConfig
from rekindle.core.models.config.partition import Order
from rekindle.core.models.shard import spread
from rekindle.formats.checkpoints.gguf.file import GGUFFile
from rekindle_kernels.blocks import Blocks, Tensor

_VECTORS: Final = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias", "norm.weight": "ssm_norm.weight"}
_TILED: Final = {
    "in_proj_qkv": "attn_qkv",
    "in_proj_z": "attn_gate",
    "in_proj_b": "ssm_beta",
    "in_proj_a": "ssm_alpha",
    "conv1d": "ssm_conv1d",
    "out_proj": "ssm_out",
}
"""Names in files with value heads in another order, by the family's names."""


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Location of a tensor whose rows or columns may be in another order.

    Attributes:
        names: names in the file. Several tensors are concatenated along the first axis.
        order: the stored index of each row, or of each column.
        axis: the axis of the order.
        is_vector: whether all axes are joined to one.
        is_rate: whether the file has -exp(x) of each number x.
    """

    names: tuple[str, ...]
    order: Order | None = None
    axis: int = 0
    is_vector: bool = False
    is_rate: bool = False

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        """Return the shape of the concatenated rows."""
        shapes = [file.shapes[name] for name in self.names]
        return (math.prod(shapes[0]),) if self.is_vector else (sum(each[0] for each in shapes), *shapes[0][1:])

    def read(self, file: GGUFFile, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor in the given shape, which may differ from `shape(file)` in axes of size 1."""
        parts = [file.read(name) for name in self.names]
        if len(parts) == 1 and isinstance(parts[0], Blocks) and self.order is not None and self.axis == 0:
            return replace(parts[0], data=np.asarray(parts[0].data)[self.order])
        whole = np.concatenate([np.asarray(part) for part in parts]).reshape(shape)
        whole = whole if self.order is None else whole.take(self.order, axis=self.axis)
        return np.log(-whole) if self.is_rate else whole


def state_place(
    part: str, layer: str, state: StateConfig, names: Names, tiled: bool, stored: Container[str]
) -> StatePlace | None:
    """Return the location of a tensor of a mixer, or None if it is located as any other tensor.

    Args:
        part: the name of the tensor after its layer's.
        layer: the number of the layer.
        state: the config of the mixer.
        names: the names of the model's tensors.
        tiled: whether the first value heads of all key heads come first in the file, then the second ones.
        stored: the names in the file.
    """
    own = part.removeprefix(f"{names.state}.")
    if isinstance(state, DeltaNet | Mamba2) and own in _VECTORS:
        is_by_head = tiled and isinstance(state, DeltaNet) and own != "norm.weight"
        order = _tiled_heads(state) if is_by_head and isinstance(state, DeltaNet) else None
        place = StatePlace((f"blk.{layer}.{_VECTORS[own]}",), order, is_vector=True, is_rate=own == "A_log")
    elif isinstance(state, DeltaNet) and names.state_by_key_head and own == "in_proj_qkvz.weight":
        from rekindle.core.models.states.delta_net import grouped_by_key_head

        grouped = grouped_by_key_head(state)[: -2 * state.heads]
        both = (f"blk.{layer}.attn_qkv.weight", f"blk.{layer}.attn_gate.weight")
        place = StatePlace(both, np.argsort(grouped))
    elif isinstance(state, DeltaNet) and tiled and own.removesuffix(".weight") in _TILED:
        name = own.removesuffix(".weight")
        place = StatePlace((f"blk.{layer}.{_TILED[name]}.weight",), _tiled(state, name), int(name == "out_proj"))
    else:
        return None
    return place if all(name in stored for name in place.names) else None


def _tiled_heads(config: DeltaNet) -> Order:
    """Return the stored head of each value head."""
    return np.arange(config.heads).reshape(-1, config.key_heads).T.reshape(-1)


def _tiled(config: DeltaNet, name: str) -> Order:
    """Return the stored row of each row of a tensor, or the stored column of each column of "out_proj"."""
    heads = _tiled_heads(config)
    if name in ("in_proj_a", "in_proj_b"):
        return heads
    values = spread(heads, config.value_size)
    if name in ("in_proj_z", "out_proj"):
        return values
    keys = 2 * config.key_heads * config.key_size
    return np.concatenate([np.arange(keys), keys + values])
