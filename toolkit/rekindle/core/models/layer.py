"""One layer of a decoder: its branches around the residual stream."""

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
from flax import nnx

from rekindle.core.models.attention import Attention
from rekindle.core.models.config import DualConfig, LayerConfig, ModelConfig
from rekindle.core.models.feed_forward.build import feed_forward_of
from rekindle.core.models.layers import Normalise, norm_of
from rekindle.core.models.mixing import LayerMemory, Mixer
from rekindle.core.models.rope import Positions
from rekindle.core.models.taps.tap import BranchTap, LayerTap
from rekindle.core.models.weights.requests import JoinedTensors, WeightSource
from rekindle_kernels.inputs import Input

if TYPE_CHECKING:  # modules of few families are imported where they are built
    from rekindle.core.models.latent import LatentAttention
    from rekindle.core.models.states.build import AnyStateMixer
    from rekindle.core.models.streams.features import FeatureBranch
    from rekindle.core.models.streams.laurel import Laurel
    from rekindle.core.models.streams.layer import StreamsLayer


class Layer(nnx.Module, pytree=False):
    """Attention and a feed-forward layer around the residual stream, with the norms of the family."""

    def __init__(self, model: ModelConfig, layer: LayerConfig, weights: WeightSource, prefix: str):
        names = model.names

        def norm(name: str | None) -> Normalise | None:
            return None if name is None else norm_of(weights, f"{prefix}.{name}", model.hidden_size, model.norm)

        self.parallel, self.multiplier = model.parallel, model.residual_multiplier
        self.norm_sums = model.norm_sums
        is_mixed, config = layer.attention is not None or layer.state is not None, layer.feed_forward
        self.before_attention = norm(names.before_attention) if is_mixed and layer.attention_norm else None
        self.attention = _attention_of(model, layer, weights, prefix)
        self.state = _state_of(model, layer, weights, prefix)
        self.after_attention = norm(names.after_attention) if is_mixed else None
        self.laurel = _laurel_of(model, weights, prefix)
        inner_norm = isinstance(config, DualConfig)
        self.before_mlp = None if config is None or inner_norm else norm(names.before_mlp)
        self.mlp = None if config is None else feed_forward_of(config, model, weights, prefix)
        self.after_mlp = None if config is None else norm(names.after_mlp)
        self.features = _features_of(model, weights, prefix)
        scale = JoinedTensors({f"{prefix}.{names.layer_scale}": (1,)}, False)
        self.scale = None if names.layer_scale is None else nnx.Param(weights.get(scale))

    def __call__(
        self,
        x: jax.Array,
        positions: Positions | None,
        memory: LayerMemory,
        mixer: Mixer,
        features: jax.Array | None = None,
        tap: LayerTap | None = None,
    ) -> tuple[jax.Array, LayerMemory]:
        """Map (token, hidden) and the memory of this layer to their new values.

        Args:
            positions: None for a layer without attention.
            memory: passed to the mixer in parts.
            features: the layer's features, (token, size).
            tap: reads or changes what each branch adds to the residual stream.
        """
        of_attention, of_mlp = (None, None) if tap is None else (tap.at("attention"), tap.at("mlp"))
        stream, inputs = x, x if self.before_attention is None else self.before_attention.input(x)
        if self.attention is not None or self.state is not None:
            onto = self._onto(x, self.after_attention, of_attention)
            mixed, memory = self._mix(inputs, onto, positions, memory, mixer)
            stream = self._add(x, mixed, self.after_attention, of_attention)
        if self.laurel is not None:
            stream = self.laurel(inputs, stream)
        if self.mlp is not None:
            if self.before_mlp is not None:
                inputs = self.before_mlp.input(x if self.parallel else stream)
            elif not self.parallel:
                inputs = stream
            added = self.mlp(inputs, self._onto(stream, self.after_mlp, of_mlp))
            stream = self._add(stream, added, self.after_mlp, of_mlp)
        if self.features is not None:
            assert features is not None
            stream = stream + self.features(stream, features)
        return stream if self.scale is None else stream * self.scale[...][None], memory

    def _mix(
        self, x: Input, onto: jax.Array | None, positions: Positions | None, memory: LayerMemory, mixer: Mixer
    ) -> tuple[jax.Array, LayerMemory]:
        """Return the results of attention and of the mixer with a state, added to `onto`, and the memory."""
        if self.attention is not None:
            assert positions is not None
            onto, pages = self.attention(x, onto, positions, memory.pages, mixer)
            memory = replace(memory, pages=pages)
        if self.state is not None:
            onto, states = self.state(x, onto, memory.states, mixer)
            memory = replace(memory, states=states)
        assert onto is not None
        return onto, memory

    def _onto(self, x: jax.Array, after: Normalise | None, tap: BranchTap | None) -> jax.Array | None:
        """Return `x` if a branch's last product may add to it directly, else None."""
        is_read = tap is not None and tap.reads
        return x if not is_read and (after is None or self.norm_sums) and self.multiplier == 1 else None

    def _add(self, x: jax.Array, branch: jax.Array, after: Normalise | None, tap: BranchTap | None) -> jax.Array:
        """Return the sum with a branch, which includes `x` if `_onto` returned it."""
        if self._onto(x, after, tap) is None:
            if after is not None and not self.norm_sums:
                branch = after(branch)
            branch = branch if self.multiplier == 1 else branch * self.multiplier
            if tap is not None:
                tap.read(branch)
            branch = x + branch
        stream = branch if tap is None else tap.change(x, branch)
        return after(stream) if after is not None and self.norm_sums else stream


def layer_of(model: ModelConfig, layer: LayerConfig, weights: WeightSource, prefix: str) -> "Layer | StreamsLayer":
    """Return a layer, of the active stream if the model has several."""
    if model.streams is None:
        return Layer(model, layer, weights, prefix)
    from rekindle.core.models.streams.layer import StreamsLayer

    of_active = Layer(replace(model, features=None), layer, weights, prefix)
    return StreamsLayer(of_active, model.streams, model, weights, prefix)


def _attention_of(
    model: ModelConfig, layer: LayerConfig, weights: WeightSource, prefix: str
) -> "Attention | LatentAttention | None":
    attention = layer.attention
    if attention is None:
        return None
    if attention.latent is None:
        return Attention(model, attention, layer, weights, prefix)
    from rekindle.core.models.latent import LatentAttention

    return LatentAttention(model, attention, attention.latent, weights, prefix)


def _state_of(model: ModelConfig, layer: LayerConfig, weights: WeightSource, prefix: str) -> "AnyStateMixer | None":
    if layer.state is None:
        return None
    from rekindle.core.models.states.build import state_of

    return state_of(layer.state, model, weights, prefix)


def _laurel_of(model: ModelConfig, weights: WeightSource, prefix: str) -> "Laurel | None":
    if model.laurel_rank is None:
        return None
    from rekindle.core.models.streams.laurel import Laurel

    return Laurel(model.laurel_rank, model, weights, f"{prefix}.{model.names.laurel}")


def _features_of(model: ModelConfig, weights: WeightSource, prefix: str) -> "FeatureBranch | None":
    if model.features is None:
        return None
    from rekindle.core.models.streams.features import FeatureBranch

    return FeatureBranch(model.features, model, weights, prefix)
