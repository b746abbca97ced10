"""Embeddings of images among the embeddings of tokens."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass(frozen=True, slots=True)
class Embedded:
    """The embeddings of images among the tokens of a decoder; see `Pictures`.

    Attributes:
        buffer: (rows, parts * hidden) float32, for each token of an image its embedding, and its summands after the
            first layers (Meng et al., 2024, arXiv:2406.04334).
        rows: (token,) int32, the row of each token of an image, -1 for other tokens.
    """

    buffer: jax.Array
    rows: jax.Array

    def put_into(self, x: jax.Array) -> jax.Array:
        """See `Pictures.put_into`."""
        return jnp.where(self.rows[:, None] >= 0, self._part(0, x.shape[1]), x)

    def add_to(self, x: jax.Array, layer: int) -> jax.Array:
        """See `Pictures.add_to`."""
        if (layer + 2) * x.shape[1] > self.buffer.shape[1]:
            return x
        return jnp.where(self.rows[:, None] >= 0, x + self._part(layer + 1, x.shape[1]), x)

    def _part(self, part: int, hidden: int) -> jax.Array:
        """Return a part of the rows of all tokens; those of other tokens than images have no meaning."""
        buffer = self.buffer[:, part * hidden : (part + 1) * hidden] if self.buffer.shape[1] > hidden else self.buffer
        return buffer[jnp.maximum(self.rows, 0)]
