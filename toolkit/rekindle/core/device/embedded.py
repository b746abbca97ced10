"""Embeddings of images in place of those of their tokens."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass(frozen=True, slots=True)
class Embedded:
    """The embeddings of images among the tokens of a decoder.

    Attributes:
        buffer: (rows, hidden) float32, the embeddings of all images.
        rows: (token,) int32, the row of each token of an image, -1 for other tokens.
    """

    buffer: jax.Array
    rows: jax.Array

    def put_into(self, x: jax.Array) -> jax.Array:
        """Return embeddings, (token, hidden) float32, with those of images in their places."""
        return jnp.where(self.rows[:, None] >= 0, self.buffer[jnp.maximum(self.rows, 0)], x)
