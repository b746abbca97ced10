"""The forms of copies of a page and of a request's states outside of the pool: one array, the same on every mesh."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rekindle.core.device.place import Heads, Place, layout_of
from rekindle.core.device.state import Content, kinds_of
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.shard import TENSOR


@dataclass(frozen=True, slots=True)
class KindForm:
    """The part of a page in the layers of one kind.

    Attributes:
        shape: (layers, sides, kv_heads, page_size, head_dim) as stored, with each head once.
        heads: the layout of heads shared by several devices; None if each head exists once.
    """

    shape: tuple[int, ...]
    heads: Heads | None


@dataclass(frozen=True, slots=True)
class PageForm:
    """The form of a page's copy. It has the shape of its kind, or is flat if the layers are of several kinds.

    Attributes:
        kinds: the part of each kind of layers.
        dtype: the dtype of the numbers.
    """

    kinds: tuple[KindForm, ...]
    dtype: jnp.dtype

    @classmethod
    def of(cls, config: ModelConfig, pages: Sequence[jax.Array | jax.ShapeDtypeStruct], place: Place) -> "PageForm":
        """Return the form for a model whose layers have pages of these shapes over all devices of `place`."""
        kinds = []
        for places in kinds_of(pages):
            attention, (_, sides, count, *rest) = config.paged[places[0]], pages[places[0]].shape
            heads = place.heads(attention.heads, attention.kv_heads)
            kv_heads = count if heads is None else len(heads.first)
            kinds.append(KindForm((len(places), sides, kv_heads, *rest), heads))
        return cls(tuple(kinds), pages[0].dtype)

    @property
    def has_head_axis(self) -> bool:
        """True if devices can hold parts of a copy: one kind of layers, with each head once."""
        return len(self.kinds) == 1 and self.kinds[0].heads is None

    @property
    def array(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a copy."""
        sizes = [math.prod(kind.shape) for kind in self.kinds]
        return jax.ShapeDtypeStruct(self.kinds[0].shape if len(sizes) == 1 else (sum(sizes),), self.dtype)

    def join(self, content: Content) -> jax.Array:
        """Return the copy of a page with this content over all devices."""
        parts = [
            part if kind.heads is None else part[:, :, kind.heads.first]
            for part, kind in zip(content, self.kinds, strict=True)
        ]
        return parts[0] if len(parts) == 1 else jnp.concatenate([part.reshape(-1) for part in parts])

    def split(self, copy: jax.Array) -> Content:
        """Return the content over all devices of a page with this copy."""
        parts, start = [], 0
        for kind in self.kinds:
            end = start + math.prod(kind.shape)
            part = copy if len(self.kinds) == 1 else copy[start:end].reshape(kind.shape)
            parts.append(part if kind.heads is None else part[:, :, kind.heads.each])
            start = end
        return tuple(parts)


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """The part of a copy from one array of a layer's state.

    Attributes:
        shape: the shape of the whole array, with each head and channel once.
        axis: the axis that is divided between devices.
        units: the layout of heads or channels along this axis over devices; None for the order of the whole array.
    """

    shape: tuple[int, ...]
    axis: int
    units: Heads | None

    @property
    def spec(self) -> PartitionSpec:
        """The partition spec of the array over all devices."""
        return PartitionSpec(*(None,) * self.axis, TENSOR)


@dataclass(frozen=True, slots=True)
class StateForm:
    """The form of a copy: (1, 1, numbers) float32, with the axes of a page's copy.

    Attributes:
        arrays: the part of each array of each layer's state.
    """

    arrays: tuple[ArrayForm, ...]

    @classmethod
    def of(cls, config: ModelConfig, place: Place) -> "StateForm":
        """Return the form for a model over the devices of a group."""
        states = [layer.state for layer in config.layers if layer.state is not None]
        return cls(
            tuple(
                ArrayForm(shape, axis, layout_of(each, shape[axis]))
                for state in states
                for shape, (axis, each) in zip(state.shapes(), state.parts(place.tensor), strict=True)
            )
        )

    @property
    def copy(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a copy."""
        return jax.ShapeDtypeStruct((1, 1, sum(math.prod(array.shape) for array in self.arrays)), jnp.float32)

    def join(self, content: Sequence[jax.Array]) -> jax.Array:
        """Return the copy of states with this content over all devices."""
        parts = [
            part if array.units is None else jnp.take(part, array.units.first, axis=array.axis, mode="clip")
            for part, array in zip(content, self.arrays, strict=True)
        ]
        return jnp.concatenate([part.reshape(-1) for part in parts])[None, None]

    def split(self, copy: jax.Array) -> tuple[jax.Array, ...]:
        """Return the content over all devices of states with this copy."""
        parts, start = [], 0
        for array in self.arrays:
            end = start + math.prod(array.shape)
            part = copy[0, 0, start:end].reshape(array.shape)
            part = part if array.units is None else jnp.take(part, array.units.each, axis=array.axis, mode="clip")
            parts.append(part)
            start = end
        return tuple(parts)
