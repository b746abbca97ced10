"""Interventions in activations, by row and position: vectors to add or to replace."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rekindle.core.layer_parts import MOST_INTERVENTIONS, NOWHERE, PARTS, Part


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Interventions:
    """The interventions of requests, in the order of their application.

    Attributes:
        vectors: (slots, MOST_INTERVENTIONS, hidden) float32.
        layers: (slots, MOST_INTERVENTIONS) int32, the layer, `EMBEDDING` or `NOWHERE`.
        parts: (slots, MOST_INTERVENTIONS) int32, the index in `PARTS`.
        replaces: (slots, MOST_INTERVENTIONS) bool, whether a vector replaces activations.
        first, end: (slots, MOST_INTERVENTIONS) int32, the range of positions.
    """

    vectors: jax.Array
    layers: jax.Array
    parts: jax.Array
    replaces: jax.Array
    first: jax.Array
    end: jax.Array

    @classmethod
    def forms(cls, slots: tuple[int, ...], hidden: int) -> "Interventions":
        """Return the shapes and dtypes for several requests, or for one with `slots` ()."""
        one = [
            jax.ShapeDtypeStruct((*slots, MOST_INTERVENTIONS), jnp.dtype(bool if name == "replaces" else jnp.int32))
            for name in ("layers", "parts", "replaces", "first", "end")
        ]
        vectors = jax.ShapeDtypeStruct((*slots, MOST_INTERVENTIONS, hidden), jnp.dtype(jnp.float32))
        return cls(vectors, *one)  # type: ignore[arg-type]

    @classmethod
    def none(cls, slots: tuple[int, ...], hidden: int) -> "Interventions":
        """Return arrays of numpy without interventions, in the form of `forms`."""
        arrays: Interventions = jax.tree.map(lambda form: np.zeros(form.shape, form.dtype), cls.forms(slots, hidden))
        return replace(arrays, layers=np.full(arrays.layers.shape, NOWHERE, np.int32))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class RowInterventions:
    """A `Tap` that applies the interventions of requests to rows; other rows keep all bits.

    Attributes:
        interventions: the interventions of all requests.
        slots, positions: (rows,) int32, the request and the position of each row.
    """

    interventions: Interventions
    slots: jax.Array
    positions: jax.Array

    @property
    def reads_branches(self) -> bool:
        """False: what a branch adds is changed in its sum."""
        return False

    def read(self, layer: int, part: Part, added: jax.Array) -> None:
        """Do nothing; see `Tap.read`."""

    def change(self, layer: int, part: Part, before: jax.Array | None, after: jax.Array) -> jax.Array:
        """See `Tap.change`."""
        every = self.interventions
        here = (every.layers == layer) & (every.parts == PARTS.index(part))

        def one(place: jax.Array, x: jax.Array) -> jax.Array:
            first, end = every.first[self.slots, place], every.end[self.slots, place]
            is_hit = here[self.slots, place] & (first <= self.positions) & (self.positions < end)
            vector = every.vectors[self.slots, place]
            alone = vector if before is None else before + vector
            changed = jnp.where(every.replaces[self.slots, place][:, None], alone, x + vector)
            return jnp.where(is_hit[:, None], changed, x)

        # The loop has no turn where no request has an intervention, as in most places.
        turns = jnp.max(jnp.where(here, jnp.arange(1, MOST_INTERVENTIONS + 1), 0), initial=0)
        result: jax.Array = lax.fori_loop(0, turns, one, after)
        return result
