"""The tensors of a vision tower, by their names and shapes in files."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

import numpy as np

from rekindle.core.errors import CheckpointError
from rekindle.core.models.vision.config import VisionConfig
from rekindle.core.models.vision.tower import tower_shapes
from rekindle.core.models.weights.requests import Shapes
from rekindle.formats.checkpoints.checkpoint import LazyTensors, TowerFiles
from rekindle_kernels.blocks import Tensor

Loader = Callable[[], Tensor]
FRAMES: Final = 2
"""Frames of a video with a common patch."""
_PREFIXES: Final = ("model.", "")
"""Prefixes of towers in files: of whole models, and of models without a head."""


def own_names(config: VisionConfig, stored: Collection[str]) -> dict[str, str]:
    """Return the name in files of each tensor of a tower, given all names in the files."""
    names = list(tower_shapes(config))
    forms = [{name: prefix + name.removeprefix(_PREFIXES[0]) for name in names} for prefix in _PREFIXES]
    return next((form for form in forms if any(each in stored for each in form.values())), forms[0])


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
            load = partial(_flat_patches, load, axes)
        elif shapes[stored] != shape:
            raise CheckpointError(f"{source}: {stored} must have the shape {shape} by its config, got {shapes[stored]}")
        tensors[name] = load
    return TowerFiles(config, LazyTensors(tensors))


def _patch_axes(config: VisionConfig, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes (output, row, column, channel) of a convolution over patches; none if it has another shape.

    Over the frames of a video, an axis of frames is last.
    """
    side, channels, hidden = config.patch_size, config.channels, config.encoder.hidden_size
    axes: Mapping[tuple[int, ...], tuple[int, ...]] = {
        (hidden, channels, side, side): (0, 2, 3, 1),
        (hidden, channels, FRAMES, side, side): (0, 3, 4, 1, 2),
        (hidden, side, side, channels): (0, 1, 2, 3),  # as MLX stores it
        (hidden, FRAMES, side, side, channels): (0, 2, 3, 4, 1),
    }
    return axes.get(shape, ())


def _flat_patches(load: Loader, axes: tuple[int, ...]) -> Tensor:
    """Return the weights of a convolution as a matrix (out, in), with inputs in the order of a patch's numbers.

    An image is a video of equal frames, so that their weights add up.
    """
    weights = np.asarray(load()).transpose(axes)
    if len(axes) == 5:
        weights = weights.astype(np.float32).sum(-1).astype(weights.dtype)
    return np.ascontiguousarray(weights).reshape(len(weights), -1)
