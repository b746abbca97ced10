"""Places of a model's tensors in a new GGUF file: the inverse of the reader's places."""

from pathlib import Path
from typing import Final

import numpy as np

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle.formats.checkpoints.gguf.architecture import Architecture
from rekindle.formats.checkpoints.gguf.file import GGUFFile
from rekindle.formats.checkpoints.gguf.places import TensorPlace, find_places
from rekindle_kernels.blocks import Array, Tensor

_ANY: Final = (1 << 40,)
"""A shape with room for any number of rows."""


def new_places(architecture: Architecture, config: ModelConfig, source: str) -> dict[str, TensorPlace]:
    """Return the place of each tensor of a model, by Hugging Face name: a separate tensor of the file.

    Raises:
        UnsupportedModel: llama.cpp stores a tensor in another form, such as experts in stacks.
    """
    places = find_places(_with_all_names(architecture, config, source), architecture, config, source)
    result: dict[str, TensorPlace] = {}
    for name in expected_shapes(config):
        place = places.get(name)
        if not isinstance(place, TensorPlace) or place.stacked or place.half is not None or place.rows is not None:
            raise _unsupported(name, architecture, source)
        result[name] = place
    stored = [place.names for place in result.values()]
    assert len(set(stored)) == len(stored), "each tensor has a name of its own"
    return result


def stored_numbers(tensor: Tensor, place: TensorPlace, *, transposed: bool) -> Tensor:
    """Return a tensor as llama.cpp stores it: projections as (out, in), the rows in its order, and norms shifted."""
    if transposed:
        tensor = np.asarray(tensor).T
    if place.heads:
        tensor = permute(np.asarray(tensor), place.heads)
    return np.asarray(tensor).astype(np.float32) - np.float32(place.shift) if place.shift else tensor


def permute(rows: Array, heads: int) -> Array:
    """Put the rows of a query or key projection into llama.cpp's order; see `places.unpermute`."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _with_all_names(architecture: Architecture, config: ModelConfig, source: str) -> GGUFFile:
    """Return an empty file with a tensor for every name of the gguf library, for the reader's choice."""
    import gguf

    number = next((number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name), None)
    stems = (
        []
        if number is None
        else [name for _, name in gguf.get_tensor_name_map(number, config.num_layers).mapping.values()]
    )
    shapes = {f"{stem}.{kind}": _ANY for stem in stems for kind in ("weight", "bias")}
    return GGUFFile((Path(source),), {}, shapes, {})


def _unsupported(name: str, architecture: Architecture, source: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{source}: {name} has another form in files of llama.cpp's {architecture.name}, which is not written: write "
        "safetensors instead, to a path without .gguf (--format safetensors)"
    )
