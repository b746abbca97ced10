"""The places of a model's tensors in a file, which has other names, stacks, joins and orders of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rekindle.core.checkpoints.gguf.architecture import Architecture
from rekindle.core.checkpoints.gguf.file import GGUFFile
from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle_kernels.blocks import Array, Blocks, Tensor


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of one tensor.

    Attributes:
        names: of the tensors in the file, that are joined along the axis before the last.
        rows: of each of them, along their first axis; None for all.
        stacked: whether the rows are one, of which the tensor has not got the axis.
        half: which half of the outputs, if it is one of two that are stored as one.
        heads: of queries or keys whose rows are in llama.cpp's order; 0 for none.
        shift: added to the numbers.
    """

    names: tuple[str, ...]
    rows: range | None = None
    stacked: bool = False
    half: int | None = None
    heads: int = 0
    shift: float = 0.0

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        """Return the shape in the file."""
        shapes = [file.shapes[name] for name in self.names]
        shape = shapes[0][1:] if self.stacked else shapes[0] if self.rows is None else (len(self.rows), *shapes[0][1:])
        if len(shapes) == 1 and self.half is None:
            return shape
        outputs = sum(each[-2] for each in shapes) if self.half is None else shape[-2] // 2
        return (*shape[:-2], outputs, shape[-1])

    def read(self, file: GGUFFile, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor in the given shape, which has as many numbers."""
        parts = [file.read(name, self.rows) for name in self.names]
        if isinstance(parts[0], Blocks) and len(parts) == 1 and parts[0].shape[-1] == shape[-1] and not self.shift:
            return replace(parts[0], data=self._in_order(parts[0].data, (*shape[:-1], -1)))
        numbers = [np.asarray(part) for part in parts]
        whole = self._in_order(numbers[0] if len(numbers) == 1 else np.concatenate(numbers, axis=-2), shape)
        return whole if not self.shift else whole.astype(np.float32) + np.float32(self.shift)

    def _in_order(self, whole: Array, shape: tuple[int, ...]) -> Array:
        """Return the rows that are asked for, in the order that is asked for."""
        if self.half is not None:
            whole = np.split(whole, 2, axis=-2)[self.half]
        whole = whole.reshape(shape)
        return unpermute(whole, self.heads) if self.heads else whole


@dataclass(frozen=True, slots=True)
class InTurns:
    """The place of a tensor of all experts that is asked for as (expert, in, out), and is stored as (expert, out, in).

    Attributes:
        names: of the tensors in the file, whose outputs come in turns.
    """

    names: tuple[str, ...]

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        """Return the shape that is asked for; that of biases is (expert, out)."""
        experts, outputs, *inputs = file.shapes[self.names[0]]
        return (experts, *inputs, outputs * len(self.names))

    def read(self, file: GGUFFile, shape: tuple[int, ...]) -> Array:
        """Read the tensor, which has the given shape, one expert at a time."""
        whole = None
        for expert in range(shape[0]):
            parts = [np.asarray(file.read(name, range(expert, expert + 1))[0]) for name in self.names]
            if whole is None:
                whole = np.empty((shape[0], shape[-1], *shape[1:-1]), parts[0].dtype)
            for turn, part in enumerate(parts):
                whole[expert, turn :: len(parts)] = part
        assert whole is not None, "a model has experts"
        return whole.swapaxes(1, -1)


@dataclass(frozen=True, slots=True)
class KeysAndValues:
    """The place of what makes the keys and values of latents, each head's keys before its values.

    Attributes:
        keys, values: names of the two that are stored apart: (head, latent, key) and (head, value, latent).
    """

    keys: str
    values: str

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        """Return the shape of both together."""
        (heads, latent, key), (of_values, value, _) = file.shapes[self.keys], file.shapes[self.values]
        return heads * key + of_values * value, latent

    def read(self, file: GGUFFile, shape: tuple[int, ...]) -> Array:
        """Read both, in the given shape."""
        both = np.asarray(file.read(self.keys)).swapaxes(1, 2), np.asarray(file.read(self.values))
        return np.concatenate(both, axis=1).reshape(shape)


AnyPlace = TensorPlace | InTurns | KeysAndValues


def find_places(file: GGUFFile, architecture: Architecture, config: ModelConfig, source: str) -> dict[str, AnyPlace]:
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
    file: GGUFFile, places: dict[str, AnyPlace], config: ModelConfig
) -> tuple[dict[str, tuple[int, ...]], dict[str, Callable[[], Tensor]]]:
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


def _stem_and_kind(name: str) -> tuple[str, str]:
    """Part a name from its "weight" or "bias", which all have in files, though some of ours end otherwise."""
    stem, _, kind = name.rpartition(".")
    if kind in ("weight", "bias"):
        return stem, kind
    return (name.removesuffix("_bias"), "bias") if name.endswith("_bias") else (name, "weight")


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

    def find(self, name: str) -> AnyPlace | None:
        """Return the place of a tensor; None if the file has not got it."""
        stem, kind = _stem_and_kind(name)
        own = self.config.names
        layer, _, part = stem.partition(f"{own.layers}.")[2].partition(".")
        names = self._names(layer, part, stem, kind)
        if own.experts_transposed and names and part in (*own.expert_gate_up, own.expert_down):
            return InTurns(names)
        if part == own.latent_heads and not names:
            return self._of_latents(layer, kind)
        place = TensorPlace(names) if names else self._of_stack(layer, part, kind) or self._of_joined(layer, part, kind)
        if place is None:
            return None
        shift = -1.0 if self.architecture.shifted and kind == "weight" and stem.endswith("norm") else 0.0
        return replace(place, heads=self._heads(part), shift=shift)

    def _of_latents(self, layer: str, kind: str) -> KeysAndValues | None:
        keys, values = (f"blk.{layer}.attn_{part}_b.{kind}" for part in "kv")
        return KeysAndValues(keys, values) if {keys, values} <= self.file.shapes.keys() else None

    def _heads(self, part: str) -> int:
        """Return how many heads of rows are in llama.cpp's order."""
        attention, qkv = self.config.attention, self.config.names.qkv
        heads = dict(zip(qkv, (attention.heads, attention.kv_heads), strict=False))
        return heads.get(part, 0) if self.architecture.permuted else 0

    def _names(self, layer: str, part: str, stem: str, kind: str) -> tuple[str, ...] | None:
        """Return the names in the file, if all are there."""
        if part in self.architecture.parts:
            names = tuple(f"blk.{layer}.{each}.{kind}" for each in self.architecture.parts[part])
        else:
            names = (f"{self.library(stem)}.{kind}",)
        return names if all(name in self.file.shapes for name in names) else None

    def _of_stack(self, layer: str, part: str, kind: str) -> TensorPlace | None:
        """Return the place of a tensor with a number, which is in a stack of all numbers."""
        pieces = part.split(".")
        numbers = [place for place, piece in enumerate(pieces) if piece.isdecimal()]
        if not numbers:
            return None
        number = int(pieces.pop(numbers[0]))
        stem = f"{self.config.names.layers}.{layer}.{'.'.join(pieces)}"
        names, half = self._names(layer, ".".join(pieces), stem, kind), None
        if names is None:  # gates may be joined with what they multiply
            own, both = f"{self.library(stem)}", f"blk.{layer}.ffn_gate_up_exps"
            half = {f"blk.{layer}.ffn_gate_exps": 0, f"blk.{layer}.ffn_up_exps": 1}.get(own)
            if half is None or f"{both}.{kind}" not in self.file.shapes:
                return None
            names = (f"{both}.{kind}",)
        if not all(number < self.file.shapes[name][0] for name in names):
            return None
        return TensorPlace(names, range(number, number + 1), stacked=True, half=half)

    def _of_joined(self, layer: str, part: str, kind: str) -> TensorPlace | None:
        """Return the place of a query, key or value projection in a tensor of all three."""
        qkv, attention = self.config.names.qkv, self.config.attention
        name = f"blk.{layer}.attn_qkv.{kind}"
        if part not in qkv or len(qkv) != 3 or name not in self.file.shapes:
            return None
        ends = np.cumsum([0, attention.heads, attention.kv_heads, attention.kv_heads]) * attention.head_dim
        at = qkv.index(part)
        return TensorPlace((name,), range(int(ends[at]), int(ends[at + 1])))
