"""Shapes of a vision tower and of the buffer of its embeddings, on the devices of one place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from rekindle.core.device.place import SAME, Place
from rekindle.core.models.abstract import AbstractModel
from rekindle.core.models.vision.config import VisionConfig
from rekindle.core.models.vision.patches import Patches
from rekindle.core.models.weights.form import WeightForm
from rekindle_kernels.api import Implementation

if TYPE_CHECKING:
    from rekindle.core.models.vision.tower import Tower


@dataclass(frozen=True, slots=True)
class VisionSizes:
    """The tower of a model, and the sizes of its arrays.

    Attributes:
        config: the tower.
        segments: the patches of a segment with padding, ascending.
        rows: the rows of the buffer of embeddings, one for each token of an image.
    """

    config: VisionConfig
    segments: tuple[int, ...]
    rows: int

    @property
    def buffer(self) -> jax.ShapeDtypeStruct:
        """The buffer of embeddings: its rows, and one for those of padding."""
        return jax.ShapeDtypeStruct((self.rows + 1, self.config.width), jnp.dtype(jnp.float32))


@dataclass(frozen=True, slots=True)
class VisionShapes:
    """A tower on the devices of one place, each with the whole of it.

    Attributes:
        sizes: the tower, and its sizes.
        form: the form of its weights.
        tower: the tower without weights.
        weights: the weights over all devices.
        buffer: the buffer of embeddings.
    """

    sizes: VisionSizes
    form: WeightForm
    tower: "AbstractModel[Tower]"
    weights: Sequence[jax.ShapeDtypeStruct]
    buffer: jax.ShapeDtypeStruct

    @classmethod
    def of(cls, sizes: VisionSizes, form: WeightForm, implementation: Implementation, place: Place) -> "VisionShapes":
        """Return the shapes of a tower with weights of the dtype of a decoder, which may be packed."""
        from rekindle.core.models.vision.tower import abstract_tower

        form = WeightForm(form.dtype)
        tower = abstract_tower(sizes.config, form, implementation)
        weights = [place.global_shape(array, SAME) for array in tower.forms]
        return cls(sizes, form, tower, weights, place.global_shape(sizes.buffer, SAME))

    def patches(self, length: int) -> Patches:
        """Return the shapes of one segment with so many patches."""
        shape = 1, length
        return Patches(
            jax.ShapeDtypeStruct((*shape, self.sizes.config.patch_width), jnp.dtype(jnp.float32)),
            jax.ShapeDtypeStruct((*shape, 2), jnp.dtype(jnp.int32)),
            jax.ShapeDtypeStruct(shape, jnp.dtype(jnp.bool_)),
        )

    def rows(self, length: int) -> jax.ShapeDtypeStruct:
        """Return the shape of the rows of the buffer for a segment with so many patches."""
        return jax.ShapeDtypeStruct((length // self.sizes.config.merge**2,), jnp.dtype(jnp.int32))
