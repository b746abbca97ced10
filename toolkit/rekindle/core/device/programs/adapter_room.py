"""Shapes and dtypes of the arrays for adapters on the devices of one place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rekindle.core.device.place import WEIGHTS, Place
from rekindle.core.models.adapters.products import AdapterSizes, Product, products_of
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.shard import Shard
from rekindle_kernels.api import Implementation


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """The room for the adapters of a model on the devices of one place.

    Attributes:
        config: the model.
        sizes: the number of adapters, and their largest rank.
        dtype: the dtype of the matrices.
        implementation: the implementation of their packed form.
        place: the devices; they need not be attached.
    """

    config: ModelConfig
    sizes: AdapterSizes
    dtype: jnp.dtype
    implementation: Implementation
    place: Place

    @property
    def products(self) -> Sequence[Product]:
        """The products with room for adapters, in the order of the programs' arguments; of the first device."""
        return products_of(self.config, self.place.shards[0])

    @property
    def one(self) -> Any:
        """The shapes and dtypes of one adapter's arrays, for each of the products."""
        return self._shapes()

    @property
    def all(self) -> Any:
        """The shapes and dtypes of the arrays of all adapters, for each of the products."""
        return self._shapes(self.sizes.slots)

    def forms(self, shard: Shard, *slots: int) -> list[tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]]:
        """Return the shapes and dtypes of one device's arrays, after an axis of slots if given."""
        forms = (each.forms(self.sizes, self.dtype, self.implementation) for each in products_of(self.config, shard))
        first, second = zip(*forms, strict=True)
        sides = [[jax.ShapeDtypeStruct((*slots, *each.shape), each.dtype) for each in side] for side in (first, second)]
        return list(zip(*sides, strict=True))

    def _shapes(self, *slots: int) -> Any:
        forms = self.forms(self.place.shards[0], *slots)
        return tuple((self.place.global_shape(a, WEIGHTS), self.place.global_shape(b, WEIGHTS)) for a, b in forms)
