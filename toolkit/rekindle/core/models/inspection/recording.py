"""Recording of activations and of attention patterns in a run over one whole sequence."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.core.layer_parts import PARTS, Part
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.mixing import ScoreOptions
from rekindle.core.models.sequence import SequenceMixer
from rekindle.core.models.taps.tap import Tap


class Recorder:
    """A `Tap` that keeps activations in places chosen at run time. Each trace has its own.

    Args:
        places: (layers + 1, parts) int32, for the embeddings and each layer, the index in `states` of each part; for
            a part that is not kept, an index past the end.
        count, tokens, hidden: the shape of `states`.
        before: a tap before the recording.

    Attributes:
        states: (count, tokens, hidden) float32.
    """

    def __init__(self, places: jax.Array, count: int, tokens: int, hidden: int, before: Tap):
        self._places, self._before = places, before
        self.states = jnp.zeros((count, tokens, hidden), jnp.float32)

    @property
    def reads_branches(self) -> bool:
        """True."""
        return True

    def change(self, layer: int, part: Part, before: jax.Array | None, after: jax.Array) -> jax.Array:
        """See `Tap.change`."""
        x = self._before.change(layer, part, before, after)
        if part == "residual":
            self._keep(layer, part, x)
        return x

    def read(self, layer: int, part: Part, added: jax.Array) -> None:
        """See `Tap.read`."""
        self._keep(layer, part, self._before.change(layer, part, jnp.zeros_like(added), added))

    def _keep(self, layer: int, part: Part, x: jax.Array) -> None:
        self.states = self.states.at[self._places[layer + 1, PARTS.index(part)]].set(x, mode="drop")


class PatternMixer:
    """The `Mixer` of one whole sequence that keeps the attention patterns of some heads. Each trace has its own.

    Args:
        config: the model.
        heads: (count, 2) int32, the layer and the head of each pattern; a layer past the end for none.
        tokens: the length of the sequence.
        group_ends: see `SequenceMixer`.

    Attributes:
        patterns: (count, tokens, tokens) float32, the weight of each visible token (last axis) for each token.
    """

    def __init__(self, config: ModelConfig, heads: jax.Array, tokens: int, group_ends: jax.Array | None = None):
        self._mixer, self._heads = SequenceMixer(group_ends), heads
        self._layers: Iterator[int] = (i for i, layer in enumerate(config.layers) if layer.attention is not None)
        self.patterns = jnp.zeros((len(heads), tokens, tokens), jnp.float32)

    def attend(
        self, q: jax.Array, kv: jax.Array | None, pages: jax.Array, scores: ScoreOptions
    ) -> tuple[jax.Array, jax.Array]:
        """See `Mixer.attend`."""
        layer, sides = next(self._layers), pages if kv is None else kv
        keys, group = sides[:, 0], q.shape[1] // sides.shape[2]

        def keep(place: jax.Array, patterns: jax.Array) -> jax.Array:
            of_layer, head = self._heads[place, 0], self._heads[place, 1]
            result: jax.Array = lax.cond(
                of_layer == layer,
                lambda patterns: patterns.at[place].set(
                    _pattern(q[:, head], keys[:, head // group], scores, head, self._mixer.group_ends)
                ),
                lambda patterns: patterns,
                patterns,
            )
            return result

        if len(self._heads):
            self.patterns = lax.fori_loop(0, len(self._heads), keep, self.patterns)
        return self._mixer.attend(q, kv, pages, scores)

    def convolve(
        self, x: jax.Array, weight: jax.Array, bias: jax.Array | None, state: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """See `Mixer.convolve`."""
        return self._mixer.convolve(x, weight, bias, state)

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
        return self._mixer.recur(q, k, v, decay, beta, state)


def _pattern(
    q: jax.Array, keys: jax.Array, scores: ScoreOptions, head: jax.Array, group_ends: jax.Array | None
) -> jax.Array:
    """Return the attention weights of one head, (tokens, tokens); with a sink, rows have sums below 1."""
    logits = jnp.dot(q.astype(jnp.float32), keys.astype(jnp.float32).T, precision=lax.Precision.HIGHEST) * scores.scale
    if scores.soft_cap is not None:
        logits = scores.soft_cap * jnp.tanh(logits / scores.soft_cap)
    query, key = jnp.arange(len(q))[:, None], jnp.arange(len(q))[None]
    until = scores.until(jnp.arange(1, len(q) + 1), group_ends)
    is_visible = key <= query if until is None else key < until[:, None]
    if scores.window is not None:
        is_visible &= key > query - scores.window
    if scores.chunk is not None:
        is_visible &= key // scores.chunk == query // scores.chunk
    logits = jnp.where(is_visible, logits, -jnp.inf)
    if scores.sinks is not None:
        sink = jnp.broadcast_to(scores.sinks[head].astype(jnp.float32), (len(q), 1))
        logits = jnp.concatenate([logits, sink], axis=1)
    return jax.nn.softmax(logits, axis=1)[:, : len(q)]
