"""The vision tower of all families: patches of images to embeddings for the decoder's placeholder tokens."""

import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from rekindle.core.models.abstract import AbstractModel, abstract_model, requests_of, shapes_of
from rekindle.core.models.layer import Layer
from rekindle.core.models.layers import Linear, Table, norm_of
from rekindle.core.models.mixing import LayerMemory, Mixer
from rekindle.core.models.rope import Positions
from rekindle.core.models.vision.config import Multiply, VisionConfig
from rekindle.core.models.vision.mixing import SegmentMixer
from rekindle.core.models.vision.patches import Patches
from rekindle.core.models.vision.projector import Projector
from rekindle.core.models.vision.rotation import axial_positions
from rekindle.core.models.vision.stretching import stretched_by_corners, stretched_by_means
from rekindle.core.models.weights.form import WeightForm
from rekindle.core.models.weights.requests import JoinedTensors, Shapes, WeightSource
from rekindle_kernels.api import Implementation

PATCHES: Final = 4096
"""The most patches in a layer at a time, on accelerators; CPUs compute one segment after the other."""


class Tower(nnx.Module, pytree=False):
    """An encoder of patches, and the projector to embeddings.

    Each device has the whole tower. Layers are attributes, as those of the decoder.
    """

    def __init__(self, config: VisionConfig, weights: WeightSource):
        encoder, names, hidden = config.encoder, config.encoder.names, config.encoder.hidden_size
        self.config, self.dtype = config, weights.form.dtype
        self.at_once = 1 if weights.implementation == "cpu" else PATCHES
        self.embedding = Linear(weights, config.patch_width, {names.embedding: hidden}, bias=config.patch_bias)
        positions, first = encoder.positions, config.input_norm
        self.positions = None if positions is None else Table(weights, names.positions, (positions.rows, hidden))
        token = JoinedTensors({f"{config.class_token}.weight": (hidden,)}, False)
        self.class_token = None if config.class_token is None else nnx.Param(weights.get(token))
        self.input_norm = None if first is None else norm_of(weights, first, hidden, encoder.norm)
        for i, layer in enumerate(encoder.layers):
            setattr(self, f"layer_{i}", Layer(encoder, layer, weights, f"{names.layers}.{i}"))
        self.norm = None if names.norm is None else norm_of(weights, names.norm, hidden, encoder.norm)
        self.projector = Projector(config.projector, hidden * max(1, len(config.features)), weights)
        newline = JoinedTensors({f"{config.newline}.weight": (config.width,)}, False)
        self.newline = None if config.newline is None else nnx.Param(weights.get(newline))
        for i, tap in enumerate(config.taps):
            setattr(self, f"tap_{i}", Projector(tap.steps, hidden, weights))

    def __call__(self, patches: Patches) -> jax.Array:
        """Map the patches of one or several images to embeddings.

        Few segments are computed at a time, to bound the memory, and none without a valid patch. With the kernels of
        CPUs, the bits of a segment do not depend on the others.

        Returns:
            (segments * length // merge², width) float32. Where a patch is padding, its embedding has no meaning.
        """
        segments, length, _ = patches.values.shape
        count = max(1, min(segments, self.at_once // length))
        padding = -segments % count

        def grouped(x: jax.Array) -> jax.Array:
            x = jnp.pad(x, [(0, padding), *[(0, 0)] * (x.ndim - 1)])
            return x.reshape(-1, count, *x.shape[1:])

        embeddings: jax.Array = lax.map(self._if_any, jax.tree.map(grouped, patches))
        return embeddings.reshape(-1, self.config.width)[: segments * length // self.config.merge**2]

    def _if_any(self, patches: Patches) -> jax.Array:
        """Return the embeddings of a few segments: of one without patches, newlines or zeros."""
        rows = patches.valid.size // self.config.merge**2
        empty = jnp.zeros((rows, self.config.width), jnp.float32)
        if self.newline is not None:
            factors = (step.factor for step in self.config.projector if isinstance(step, Multiply))
            empty = empty + self.newline[...][None] * math.prod(factors)
        embeddings: jax.Array = lax.cond(patches.valid.any(), self._embed, lambda _: empty, patches)
        has_any = jnp.repeat(patches.valid.any(1), rows // len(patches.valid))
        return embeddings if self.newline is None else jnp.where(has_any[:, None], embeddings, empty)

    def _embed(self, patches: Patches) -> jax.Array:
        x = self.embedding(patches.values.reshape(-1, self.config.patch_width))
        if self.positions is not None:
            x = x + self._of_table(self.positions, patches)
        x, valid = self._with_class(x, patches.valid)
        x = x if self.input_norm is None else self.input_norm(x)
        positions, memory = self._rotations(patches, len(x)), LayerMemory(None)
        whole = SegmentMixer(valid, self.dtype)
        in_windows = replace(whole, windows=self._windows(patches)) if self.config.windowed else whole
        taps: dict[int, jax.Array] = {}
        features = {0: x}
        for i in range(self.config.encoder.num_layers):
            mixer = cast(Mixer, in_windows if i in self.config.windowed else whole)  # no layer has a state
            x, _ = getattr(self, f"layer_{i}")(x, positions, memory, mixer)
            taps |= {at: getattr(self, f"tap_{at}")(x) for at, tap in enumerate(self.config.taps) if tap.layer == i}
            features |= {i + 1: x} if i + 1 in self.config.features else {}
        if self.config.features:
            x = jnp.concatenate([features[number] for number in self.config.features], axis=1)
        x = x if self.norm is None else self.norm(x)
        if self.class_token is not None:
            x = x.reshape(*valid.shape, -1)[:, 1:].reshape(patches.valid.size, -1)
        embeddings = self.projector(x)
        return jnp.concatenate([embeddings, *(taps[at] for at in sorted(taps))], axis=1) if taps else embeddings

    def _of_table(self, table: Table, patches: Patches) -> jax.Array:
        """Return the positions of patches by a table, (patches, hidden) float32."""
        if self.config.tables == 2:
            axes = (1, 0) if self.config.columns_first else (0, 1)
            first, second = (patches.positions[..., axis].reshape(-1) for axis in axes)
            return table(first) + table(table.rows // 2 + second)
        first = 0 if self.class_token is None else 1
        side = math.isqrt(table.rows - first)
        if self.config.stretched is not None:
            ways = {"corners": stretched_by_corners, "means": stretched_by_means}
            return ways[self.config.stretched](table, side, patches)
        rows = first + patches.positions[..., 0] * side + patches.positions[..., 1]
        return table(rows.reshape(-1))

    def _with_class(self, x: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return patches, (patches, hidden), and their validity with the class token before those of each segment."""
        if self.class_token is None:
            return x, valid
        token = self.class_token[...][None]
        token = token if self.positions is None else token + self.positions(jnp.zeros(1, jnp.int32))
        tokens = jnp.broadcast_to(token[None], (len(valid), 1, x.shape[1]))
        x = jnp.concatenate([tokens, x.reshape(*valid.shape, -1)], axis=1)
        return x.reshape(-1, x.shape[2]), jnp.pad(valid, [(0, 0), (1, 0)], constant_values=True)

    def _windows(self, patches: Patches) -> jax.Array:
        """Return the number of the window of each patch in its segment, (segments, length) int32."""
        places = patches.positions // self.config.window
        numbers: jax.Array = places[..., 0] * places.shape[1] + places[..., 1]
        return numbers

    def _rotations(self, patches: Patches, count: int) -> Positions:
        """Return the rotations of so many patches by their rows and columns; none without a rope."""
        attention = self.config.encoder.attentions[0]
        if attention.rope is None:
            none = jnp.zeros((count, 0), jnp.float32)
            return Positions(none, none, None)
        theta, alternating = attention.rope.theta, self.config.alternating
        places = patches.positions[..., ::-1] if self.config.columns_first else patches.positions
        return axial_positions(places.reshape(-1, 2), theta, attention.head_dim, alternating=alternating)


@lru_cache(maxsize=2)
def abstract_tower(config: VisionConfig, form: WeightForm, implementation: Implementation) -> AbstractModel[Tower]:
    """Build a tower with shapes in place of weights; see `abstract_model`."""
    return abstract_model(partial(Tower, config), form, implementation)


@lru_cache(maxsize=2)
def tower_shapes(config: VisionConfig) -> Shapes:
    """Return the shape of every tensor of a tower with this config, by its name in the checkpoint."""
    return shapes_of(requests_of(partial(Tower, config)))
