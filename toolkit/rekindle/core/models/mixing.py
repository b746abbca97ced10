"""The exchange between tokens in a layer: attention over pages, and recurrences and convolutions over states."""

from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp

State: TypeAlias = tuple[jax.Array, ...]
"""The states of one layer for all slots: arrays (slots, ...) float32, with the shapes of its config."""


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """A layer's options for attention scores, as arguments of `rekindle_kernels.api.attend_rows`.

    Attributes:
        chunk: the size of chunks of positions; it is no argument of the kernels, but changes their page tables.
        ahead: see `AttentionConfig`; it is no argument of the kernels, but changes `visible_until`.
        bias: the summands of scores by distance, an argument for blocks of prompts alone.
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: jax.Array | None = None
    chunk: int | None = None
    ahead: int | None = 0
    bias: jax.Array | None = None

    def options(self) -> dict[str, Any]:
        """Return the options common to the kernels by name."""
        own = ("chunk", "ahead", "bias")
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in own}

    def until(self, own: jax.Array, group_ends: jax.Array | None) -> jax.Array | None:
        """Return `visible_until` of the kernels; None for a causal layer.

        Args:
            own: the position after each token, int32.
            group_ends: like `own`, the end of the positions of the token's image or text; None in a program without.
        """
        if group_ends is None or self.ahead == 0:
            return None
        return group_ends if self.ahead is None else jnp.minimum(group_ends, own + self.ahead)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class LayerMemory:
    """The arrays that layers keep of earlier tokens.

    Attributes:
        pages: one array for each layer with pages of its own; of a single layer, its array or None.
        states: one `State` for each layer with a state; of a single layer, its `State` or None.
    """

    pages: Any
    states: Any = ()


class Mixer(Protocol):
    """The part of a layer in which tokens see earlier ones. Its caller decides where these are kept.

    Tokens of several requests are flat along the first axis, in the order of the decoder's arguments.
    """

    def attend(
        self, q: jax.Array, kv: jax.Array | None, pages: jax.Array, scores: ScoreOptions
    ) -> tuple[jax.Array, jax.Array]:
        """Write keys and values into a layer's pages, and compute attention.

        Args:
            q: (token, heads, head_dim) queries.
            kv: (token, sides, kv_heads, head_dim) keys and values; a single side is both. None stands for pages with
                the keys and values of all tokens.
            pages: the layer's pages.
            scores: the options for scores.

        Returns:
            (token, heads, head_dim), and the pages.
        """

    def convolve(
        self, x: jax.Array, weight: jax.Array, bias: jax.Array | None, state: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Convolve each channel with its latest inputs; see `rekindle_kernels.states.convolve_blocks`.

        Args:
            x: (token, channels) float32.
            weight: (channels, taps) float32.
            bias: (channels,) float32, or None.
            state: (slots, taps - 1, channels) float32, the inputs before.

        Returns:
            (token, channels), and the state.
        """

    def recur(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        decay: jax.Array,
        beta: jax.Array | None,
        state: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Update a matrix of each head by each token, and read it; see `rekindle_kernels.states.recur_blocks`.

        Args:
            q, k: (token, key_heads, key_size) float32.
            v: (token, heads, value_size) float32; `heads` is a multiple of `key_heads`.
            decay: (token, heads) float32, or (token, heads, key_size): the logarithm of a state's factor.
            beta: (token, heads) float32, the rate of the delta rule; None for no delta rule.
            state: (slots, heads, key_size, value_size) float32.

        Returns:
            (token, heads, value_size), and the state.
        """
