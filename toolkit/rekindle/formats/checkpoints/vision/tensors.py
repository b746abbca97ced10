"""The tensors of a vision tower, by their names and shapes in files."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final

import numpy as np

from rekindle.core.errors import CheckpointError
from rekindle.core.models.vision.config import VisionConfig
from rekindle.core.models.vision.tower import tower_shapes
from rekindle.core.models.weights.requests import Shapes
from rekindle.formats.checkpoints.checkpoint import LazyTensors, TowerFiles
from rekindle.formats.images.processors.qwen import FRAMES
from rekindle_kernels.blocks import Tensor

Loader = Callable[[], Tensor]
_PREFIXES: Final = ("model.", "")
"""Prefixes of towers in files: of whole models, and of models without a head."""
_ENCODER: Final = "vision_tower.vision_model."
"""The place of a SigLIP encoder, whose second part transformers leaves out since version 5."""


def own_names(config: VisionConfig, stored: Collection[str]) -> dict[str, str]:
    """Return the name in files of each tensor of a tower, given all names in the files."""
    return {name: next((each for each in _forms(name) if each in stored), name) for name in all_names(config)}


def all_names(config: VisionConfig) -> list[str]:
    """Return the names of all tensors of a tower, with the factors of its branches."""
    return [*tower_shapes(config), *(name for name in map(partial(_scale_of, config), tower_shapes(config)) if name)]


def _forms(name: str) -> Iterator[str]:
    """Yield the names in files of a tensor."""
    for prefix in _PREFIXES:
        own = prefix + name.removeprefix(_PREFIXES[0])
        for form in (own, own.replace(_ENCODER, "vision_tower.")):
            stem = form.removesuffix(".weight")
            yield from (form, stem, f"{stem}_weight")  # the last two of parameters without a module


def _scale_of(config: VisionConfig, name: str) -> str | None:
    """Return the name of the factor that is multiplied into a tensor; None for none."""
    names = config.encoder.names
    layer, _, part = name.removeprefix(f"{names.layers}.").partition(".")
    branches = dict(zip((names.out, names.down), config.branch_scales or (), strict=False))
    scale = branches.get(part.rpartition(".")[0])
    return None if scale is None else f"{names.layers}.{layer}.{scale}.weight"


def tower_files(
    config: VisionConfig, names: Mapping[str, str], shapes: Shapes, loaders: Mapping[str, Loader], source: str
) -> TowerFiles:
    """Return a tower.

    Args:
        config: the structure of the tower.
        names: the name in the files of each tensor.
        shapes, loaders: the tensors in the files, by their names there.
        source: path of the model, for error messages.

    Raises:
        CheckpointError: a tensor is missing or has another shape.
    """
    patch_name = f"{config.encoder.names.embedding}.weight"
    tensors = {}
    for name, shape in tower_shapes(config).items():
        stored = names[name]
        if stored not in shapes:
            raise CheckpointError(f"{source}: missing {stored} of its vision tower. Fetch the model again")
        load = loaders[stored]
        if name == patch_name and (axes := _patch_axes(config, shapes[stored])):
            load = partial(_flat_patches, load, axes, config.patch_width)
        elif shapes[stored] != shape and _is_joined(shapes[stored], shape):
            load = partial(_reshaped, load, shape)
        elif shapes[stored] != shape:
            raise CheckpointError(f"{source}: {stored} must have the shape {shape} by its config, got {shapes[stored]}")
        if scale := _scale_of(config, name):
            factor = names[scale]
            if shapes.get(factor) != shape[:1]:
                raise CheckpointError(f"{source}: {factor} must have the shape {shape[:1]}, got {shapes.get(factor)}")
            load = partial(_scaled, load, loaders[factor])
        tensors[name] = load
    return TowerFiles(config, LazyTensors(tensors))


def _is_joined(stored: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return True if a shape is another one with its leading axes joined."""
    return len(stored) > len(shape) and stored[-1:] == (shape[-1:] or (1,)) and math.prod(stored) == math.prod(shape)


def _patch_axes(config: VisionConfig, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes (output, row, column, channel) of a convolution over patches; none if it has another shape.

    Over the frames of a video, an axis of frames is last.
    """
    side, channels, hidden = config.patch_size, config.channels, config.encoder.hidden_size
    of_frame = next((each for each in (channels, channels // FRAMES) if (hidden, each) in (shape[:2], shape[::4])), 0)
    axes: Mapping[tuple[int, ...], tuple[int, ...]] = {
        (hidden, channels, side, side): (0, 2, 3, 1),
        (hidden, of_frame, FRAMES, side, side): (0, 3, 4, 1, 2),
        (hidden, side, side, channels): (0, 1, 2, 3),  # as MLX stores it
        (hidden, FRAMES, side, side, of_frame): (0, 2, 3, 4, 1),
    }
    return axes.get(shape, ())


def _flat_patches(load: Loader, axes: tuple[int, ...], width: int) -> Tensor:
    """Return the weights of a convolution as a matrix (out, width), with inputs in the order of a patch's numbers.

    An image is a video of equal frames: in a tower for images alone, their weights add up.
    """
    weights = np.asarray(load()).transpose(axes)
    if weights[0].size > width:
        weights = weights.astype(np.float32).sum(-1).astype(weights.dtype)
    return np.ascontiguousarray(weights).reshape(len(weights), -1)


def _reshaped(load: Loader, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor with its leading axes joined."""
    return np.asarray(load()).reshape(shape)


def _scaled(load: Loader, factor: Loader) -> Tensor:
    """Return a matrix (out, in) or a bias (out,) with its outputs multiplied by factors, (out,)."""
    weights, factors = np.asarray(load()), np.asarray(factor()).astype(np.float32)
    scaled = weights.astype(np.float32) * factors.reshape(-1, *[1] * (weights.ndim - 1))
    return scaled.astype(weights.dtype)
