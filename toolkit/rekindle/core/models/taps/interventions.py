"""Interventions in activations: vectors added to them, or put in their place, by row and position."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rekindle.core.parts import MOST_INTERVENTIONS, NOWHERE, PARTS, Part


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Interventions:
    """The interventions of requests, in the order of their application.

    Attributes:
        vectors: (slots, MOST_INTERVENTIONS, hidden) float32.
        layers: (slots, MOST_INTERVENTIONS) int32, the layer, `EMBEDDING` or `NOWHERE`.
        parts: (slots, MOST_INTERVENTIONS) int32, the index in `PARTS`.
        replaces: (slots, MOST_INTERVENTIONS) bool, whether a vector replaces activations rather than is added.
        first, end: (slots, MOST_INTERVENTIONS) int32, the range of positions.
    """

    vectors: jax.Array
    layers: jax.Array
    parts: jax.Array
    replaces: jax.Array
    first: jax.Array
    end: jax.Array

    @classmethod
    def forms(cls, slots: int, hidden: int) -> "Interventions":
        """Return the shapes and dtypes for so many requests."""
        one = [
            jax.ShapeDtypeStruct((slots, MOST_INTERVENTIONS), jnp.dtype(bool if name == "replaces" else jnp.int32))
            for name in ("layers", "parts", "replaces", "first", "end")
        ]
        vectors = jax.ShapeDtypeStruct((slots, MOST_INTERVENTIONS, hidden), jnp.dtype(jnp.float32))
        return cls(vectors, *one)  # type: ignore[arg-type]

    @classmethod
    def none(cls, slots: int, hidden: int) -> "Interventions":
        """Return numpy arrays without interventions for so many requests."""
        arrays: Interventions = jax.tree.map(lambda form: np.zeros(form.shape, form.dtype), cls.forms(slots, hidden))
        arrays.layers[:] = NOWHERE
        return arrays


@dataclass(frozen=True, slots=True)
class RowInterventions:
    """A `Tap` that applies the interventions of each row's request, and leaves other rows as they are, bit for bit.

    Attributes:
        interventions: those of all requests.
        slots: (rows,) int32, the request of each row.
        positions: (rows,) int32, its position.
    """

    interventions: Interventions
    slots: jax.Array
    positions: jax.Array

    def __call__(self, layer: int, part: Part, x: jax.Array) -> jax.Array:
        """See `Tap`."""
        every = self.interventions
        here = (every.layers == layer) & (every.parts == PARTS.index(part))

        def apply(x: jax.Array) -> jax.Array:
            def one(place: jax.Array, x: jax.Array) -> jax.Array:
                first, end = every.first[self.slots, place], every.end[self.slots, place]
                is_hit = here[self.slots, place] & (first <= self.positions) & (self.positions < end)
                vector = every.vectors[self.slots, place]
                changed = jnp.where(every.replaces[self.slots, place][:, None], vector, x + vector)
                return jnp.where(is_hit[:, None], changed, x)

            result: jax.Array = lax.fori_loop(0, MOST_INTERVENTIONS, one, x)
            return result

        result: jax.Array = lax.cond(here.any(), apply, lambda x: x, x)
        return result
