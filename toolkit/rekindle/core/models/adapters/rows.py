"""The adapters of the rows of a tick, as summands of a decoder's products."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from rekindle.core.models.adapters.products import HEAD, AdapterSizes, LinearShard, linears
from rekindle.core.models.decoder import Decoder
from rekindle_kernels import layers as kernels
from rekindle_kernels.api import Implementation

Stacks = tuple[tuple[jax.Array, jax.Array], ...]
"""The two matrices of each product, packed, of all adapters: (slots, ...) each."""


@dataclass(frozen=True, slots=True)
class AdapterDelta:
    """The summand of one product, by each row's adapter.

    Attributes:
        first, second: the matrices of all adapters.
        slots: (rows,) int32, the adapter of each row; the number of adapters for none. The numbers ascend within each
            part of the rows.
        parts: the numbers of rows of the parts, each computed alone.
        sizes: the rank of the product, and its outputs.
        implementation: the implementation of the packed form.
    """

    first: jax.Array
    second: jax.Array
    slots: jax.Array
    parts: tuple[int, ...]
    sizes: tuple[int, int]
    implementation: Implementation

    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Return the sum with the product (rows, out) of the input (rows, in)."""
        assert len(x) == sum(self.parts) == len(self.slots), "adapters of other rows than those of the product"
        sums, start = [], 0
        for rows in self.parts:
            if rows:
                own = slice(start, start + rows)
                weights = self.slots[own], self.first, self.second
                sums.append(
                    kernels.low_rank(x[own], *weights, self.sizes, implementation=self.implementation, onto=y[own])
                )
            start += rows
        return sums[0] if len(sums) == 1 else jnp.concatenate(sums)

    def of(self, slots: jax.Array, parts: tuple[int, ...]) -> "AdapterDelta":
        """Return the summand of the same product for other rows."""
        return replace(self, slots=slots, parts=parts)


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters on a device.

    Attributes:
        products: the products of the decoder, as from `products_of`.
        stacks: the matrices of each product.
        sizes: the room for adapters.
    """

    products: Sequence[LinearShard]
    stacks: Stacks
    sizes: AdapterSizes

    def adapt(self, decoder: Decoder, slots: jax.Array, parts: tuple[int, ...]) -> AdapterDelta:
        """Add adapters to the products of a decoder made for one trace of a program.

        Args:
            decoder: the decoder.
            slots, parts: the adapters of the rows of its layers; see `AdapterDelta`.

        Returns:
            The summand of the head, for these rows.
        """
        deltas = {
            product.path: AdapterDelta(
                *pair, slots, parts, (product.rank(self.sizes), product.outputs), decoder.implementation
            )
            for product, pair in zip(self.products, self.stacks, strict=True)
        }
        for path, linear in linears(decoder):
            if path in deltas and path != HEAD:
                linear.delta = deltas[path]
        return deltas[HEAD]
