"""The places of a model's tensors in a file, which has other names, stacks, joins and orders of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rekindle.errors import UnsupportedModel
from rekindle.models.checkpoint.checkpoint import Array
from rekindle.models.checkpoint.gguf.architecture import Architecture
from rekindle.models.checkpoint.gguf.file import GGUFFile
from rekindle.models.config import ModelConfig
from rekindle.models.decoder import expected_shapes


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one tensor.

    Attributes:
        names: of the tensors in the file, that are joined along the axis before the last.
        rows: of each of them, along their first axis; None for all.
        stacked: whether the rows are one, of which the tensor has not got the axis.
        heads: of queries or keys whose rows are in llama.cpp's order; 0 for none.
        shift: added to the numbers.
    """

    names: tuple[str, ...]
    rows: range | None = None
    stacked: bool = False
    heads: int = 0
    shift: float = 0.0

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        """Return the shape in the file."""
        shapes = [file.shapes[name] for name in self.names]
        first = shapes[0][1:] if self.stacked else shapes[0] if self.rows is None else (len(self.rows), *shapes[0][1:])
        joined = sum(shape[-2] for shape in shapes) if len(shapes) > 1 else None
        return first if joined is None else (*first[:-2], joined, first[-1])

    def read(self, file: GGUFFile, shape: tuple[int, ...]) -> Array:
        """Read the tensor in the given shape, which has as many numbers."""
        parts = [file.read(name, self.rows) for name in self.names]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-2)
        whole = whole.reshape(shape)
        if self.heads:
            whole = unpermute(whole, self.heads)
        return whole if not self.shift else whole.astype(np.float32) + np.float32(self.shift)


def find_places(file: GGUFFile, architecture: Architecture, config: ModelConfig, source: str) -> dict[str, Place]:
    """Find the tensors of a model by their Hugging Face names. Those that the file has not are left out.

    Raises:
        UnsupportedModel: the installed gguf library does not know the architecture.
    """
    import gguf

    known = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    if architecture.name not in known:
        raise UnsupportedModel(f"{source}: the installed gguf library does not know {architecture.name}: upgrade gguf")
    library = gguf.get_tensor_name_map(known[architecture.name], config.num_layers)
    finder = _Finder(file, architecture, config, library.get_name)
    places = {name: finder.find(name) for name in expected_shapes(config)}
    return {name: place for name, place in places.items() if place is not None}


def loaders(
    file: GGUFFile, places: dict[str, Place], config: ModelConfig
) -> tuple[dict[str, tuple[int, ...]], dict[str, Callable[[], Array]]]:
    """Return the shape of each tensor, and a function that reads it."""
    expected = expected_shapes(config)
    shapes = {name: _like(place.shape(file), expected[name]) for name, place in places.items()}
    return shapes, {name: partial(place.read, file, shapes[name]) for name, place in places.items()}


def unpermute(rows: Array, heads: int) -> Array:
    """Undo llama.cpp's order of the rows of a Llama's query or key projection.

    llama.cpp rotates neighbours and stores a head's rows as (0, half, 1, half + 1, ...); `layers.rotate` pairs i with
    i + half.

    Args:
        rows: (heads * head_dim, ...).
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _like(found: tuple[int, ...], expected: tuple[int, ...]) -> tuple[int, ...]:
    """Return the expected shape if only axes of one number tell them apart, else the one that was found."""
    return expected if [n for n in found if n != 1] == [n for n in expected if n != 1] else found


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finds tensors one at a time.

    Attributes:
        library: maps a name without its ".weight" to that in files, or to None.
    """

    file: GGUFFile
    architecture: Architecture
    config: ModelConfig
    library: Callable[[str], Any]

    def find(self, name: str) -> Place | None:
        """Return where a tensor is; None if the file has not got it."""
        stem, _, kind = name.rpartition(".")
        shift = -1.0 if self.architecture.shifted and kind == "weight" and stem.endswith("norm") else 0.0
        place = self._stored(stem, kind, shift) or self._fused(stem, kind)
        if place is not None and self.architecture.permuted:
            qkv, heads = self.config.names.qkv, (self.config.attention.heads, self.config.attention.kv_heads)
            for projection, count in zip(qkv[:2], heads, strict=True):
                if stem.endswith(f".{projection}"):
                    return Place(place.names, place.rows, heads=count)
        return place

    def _stored(self, stem: str, kind: str, shift: float) -> Place | None:
        """Return the place of a tensor that is stored by itself, or in a stack of those with other numbers."""
        names = self._names(stem, kind)
        if names is not None:
            return Place(names, shift=shift)
        before, _, part = stem.partition(f"{self.config.names.layers}.")[2].partition(".")
        pieces = part.split(".")
        numbers = [place for place, piece in enumerate(pieces) if piece.isdecimal()]
        if not numbers:
            return None
        number = int(pieces.pop(numbers[0]))
        names = self._names(f"{self.config.names.layers}.{before}.{'.'.join(pieces)}", kind)
        if names is None or not all(number < self.file.shapes[name][0] for name in names):
            return None
        return Place(names, range(number, number + 1), stacked=True, shift=shift)

    def _names(self, stem: str, kind: str) -> tuple[str, ...] | None:
        """Return the names in the file, if all are there."""
        layer, _, part = stem.partition(f"{self.config.names.layers}.")[2].partition(".")
        own = self.library(stem)
        if part in self.architecture.parts:
            names = tuple(f"blk.{layer}.{each}.{kind}" for each in self.architecture.parts[part])
        elif own is not None:
            names = (f"{own}.{kind}",)
        else:
            return None
        return names if all(name in self.file.shapes for name in names) else None

    def _fused(self, stem: str, kind: str) -> Place | None:
        """Return the place of a query, key or value projection in a tensor of all three."""
        layer, _, part = stem.partition(f"{self.config.names.layers}.")[2].partition(".")
        qkv, attention = self.config.names.qkv, self.config.attention
        name = f"blk.{layer}.attn_qkv.{kind}"
        if part not in qkv or len(qkv) != 3 or name not in self.file.shapes:
            return None
        heads = [0, attention.heads, attention.kv_heads, attention.kv_heads]
        ends = np.cumsum(heads) * attention.head_dim
        at = qkv.index(part)
        return Place((name,), range(int(ends[at]), int(ends[at + 1])))
