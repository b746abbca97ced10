"""The exchange between the tokens of one whole sequence, without pages."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rekindle.core.models.config import ModelConfig
from rekindle.core.models.mixing import LayerMemory, ScoreOptions
from rekindle_kernels import api as kernels
from rekindle_kernels import states


def empty_memory(config: ModelConfig) -> LayerMemory:
    """Return the memory of a model before the first token of a sequence, for `SequenceMixer`."""
    slots = tuple(tuple(jnp.zeros((1, *each), jnp.float32) for each in state) for state in config.states())
    return LayerMemory((jnp.zeros(()),) * len(config.paged), slots)


@dataclass(frozen=True, slots=True)
class SequenceMixer:
    """The `Mixer` of one whole sequence: its keys and values are one page, or one for each chunk of positions.

    Attributes:
        group_ends: (tokens,) int32, the end of the positions of each token's image or text; None for causal attention.
    """

    group_ends: jax.Array | None = None

    def attend(
        self, q: jax.Array, kv: jax.Array | None, pages: jax.Array, scores: ScoreOptions
    ) -> tuple[jax.Array, jax.Array]:
        """See `Mixer.attend`; the pages are the keys and values of the sequence."""
        kv = pages if kv is None else kv
        size = len(q) if scores.chunk is None else min(scores.chunk, len(q))
        own, rows = jnp.moveaxis(_split(kv, size), 1, 3), _split(q, size)
        chunks = jnp.arange(len(rows), dtype=jnp.int32)
        until = scores.until(jnp.arange(1, len(q) + 1, dtype=jnp.int32), self.group_ends)
        out = kernels.attend_blocks(
            rows,
            own,
            chunks[:, None],
            chunks,
            jnp.zeros_like(chunks),
            None if until is None else until[None],
            **scores.options(),
            bias=scores.bias,
            implementation="reference",
        )
        return out.reshape(-1, *out.shape[2:])[: len(q)], kv

    def convolve(
        self, x: jax.Array, weight: jax.Array, bias: jax.Array | None, state: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """See `Mixer.convolve`."""
        y, state = states.convolve_blocks(x[None], weight, bias, state, *_run(len(x)), implementation="xla")
        return y[0], state

    def recur(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        decay: jax.Array,
        beta: jax.Array | None,
        state: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """See `Mixer.recur`."""
        rates = None if beta is None else beta[None]
        o, state = states.recur_blocks(
            q[None], k[None], v[None], decay[None], rates, state, *_run(len(q)), implementation="xla"
        )
        return o[0], state


def _split(x: jax.Array, size: int) -> jax.Array:
    """Return the rows in blocks of this size, the last one padded with zeros."""
    padding = [(0, -len(x) % size), *[(0, 0)] * (x.ndim - 1)]
    return jnp.pad(x, padding).reshape(-1, size, *x.shape[1:])


def _run(tokens: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the slot, the start and the token count of the only block."""
    return jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32), jnp.full(1, tokens, jnp.int32)
