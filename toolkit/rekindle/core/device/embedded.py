"""Embeddings of images among the embeddings of tokens."""

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
        """Return embeddings, (token, hidden) float32, with the embeddings of images in the places of image tokens."""
        return jnp.where(self.rows[:, None] >= 0, self.buffer[jnp.maximum(self.rows, 0)], x)
