"""The form of a page's copy outside the pool: one array, the same on every mesh."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rekindle.core.device.place import Heads, Place
from rekindle.core.device.state import Content, kinds_of
from rekindle.core.models.config import ModelConfig


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
