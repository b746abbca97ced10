"""Locations of a model's tensors in a GGUF file: renamed, stacked, fused, or in another order."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import AttentionConfig, ModelConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle.formats.checkpoints.gguf.architecture import Architecture
from rekindle.formats.checkpoints.gguf.file import GGUFFile
from rekindle.formats.checkpoints.gguf.kinds import codes_in, with_codes, with_groups
from rekindle.formats.checkpoints.gguf.states import StatePlace, state_place
from rekindle_kernels.blocks import Array, Blocks, FileArray, ReorderedRows, Tensor
from rekindle_kernels.quantized import Codes, Quantized, Stack, Turned

Stored = Array | FileArray
"""An array, or one that is still in a file."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Location of one tensor.

    Attributes:
        names: names in the file. Several tensors are concatenated along their outputs: the only axis of vectors, or
            the second to last one.
        rows: rows of each tensor in the file, along the first axis; None for all.
        stacked: whether the first axis has one row and is dropped.
        half: index of the half of the outputs, for two fused projections.
        heads: number of heads to reorder from llama.cpp's row order, for queries and keys; 0 to keep the order.
        shift: a number to add to the weights.
    """

    names: tuple[str, ...]
    rows: range | None = None
    stacked: bool = False
    half: int | None = None
    heads: int = 0
    shift: float = 0.0

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        """Return the shape of the selected and concatenated rows."""
        shapes = [file.shapes[name] for name in self.names]
        shape = shapes[0][1:] if self.stacked else shapes[0] if self.rows is None else (len(self.rows), *shapes[0][1:])
        if len(shapes) == 1 and self.half is None:
            return shape
        if len(shape) == 1:
            return (sum(map(math.prod, shapes)),)
        outputs = sum(part_shape[-2] for part_shape in shapes) if self.half is None else shape[-2] // 2
        return (*shape[:-2], outputs, shape[-1])

    def read(self, file: GGUFFile, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor in the given shape, which may differ from `shape(file)` in axes of size 1."""
        parts = [file.read(name, self.rows) for name in self.names]
        if len(parts) == 1 and not self.shift:
            (part,) = parts
            if isinstance(part, FileArray) and self.half is None and not self.heads:
                return part.reshape(*shape)
            stored = part.data if isinstance(part, Blocks) and part.shape[-1] == shape[-1] else None
            if isinstance(part, Blocks) and stored is not None and not isinstance(stored, ReorderedRows):
                return replace(part, data=self._arrange(stored, (*shape[:-1], -1)))
            if isinstance(part, Stack) and self.half is None and not self.heads and part.shape == shape:
                return part
        numbers = [np.asarray(part) for part in parts]
        joined = numbers[0] if len(numbers) == 1 else np.concatenate(numbers, axis=max(-2, -numbers[0].ndim))
        whole = np.asarray(self._arrange(joined, shape))
        return whole if not self.shift else whole.astype(np.float32) + np.float32(self.shift)

    def _arrange(self, whole: Stored, shape: tuple[int, ...]) -> Stored | ReorderedRows:
        """Return the selected rows in the model's order, unread if they are whole rows of the file."""
        if self.half is not None:
            whole = np.split(np.asarray(whole), 2, axis=-2)[self.half]
        whole = whole.reshape(*shape)
        if not self.heads:
            return whole
        if isinstance(whole, FileArray) and whole.ndim == 2:
            return ReorderedRows(whole, unpermute(np.arange(len(whole)), self.heads))
        return unpermute(np.asarray(whole), self.heads)


@dataclass(frozen=True, slots=True)
class TransposedExperts:
    """Location of an expert tensor, stored as (expert, out, in), for a model with (expert, in, out).

    Attributes:
        names: names in the file.
        interleaved: whether the outputs of the tensors are interleaved, rather than one after another.
    """

    names: tuple[str, ...]
    interleaved: bool

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        """Return the model's shape, (expert, in, out), or (expert, out) for biases."""
        experts, outputs, *inputs = file.shapes[self.names[0]]
        return (experts, *inputs, outputs * len(self.names))

    def read(self, file: GGUFFile, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor in the given shape: floats of 4 bits as such, others read one expert at a time."""
        if len(shape) == 3 and (self.interleaved or len(self.names) == 1):
            experts = [self._codes(file, range(expert, expert + 1)) for expert in range(shape[0])]
            if all(isinstance(part, Quantized) for parts in experts for part in parts):
                return Stack(tuple(Turned(_interleaved(parts)) for parts in experts))
        whole = None
        for expert in range(shape[0]):
            parts = [np.asarray(file.read(name, range(expert, expert + 1))[0]) for name in self.names]
            if whole is None:
                whole = np.empty((shape[0], shape[-1], *shape[1:-1]), parts[0].dtype)
            for offset, part in enumerate(parts):
                outputs = slice(offset, None, len(parts)) if self.interleaved else slice(offset * len(part), None)
                whole[expert, outputs][: len(part)] = part
        assert whole is not None, "a model has experts"
        return whole.swapaxes(1, -1)

    def _codes(self, file: GGUFFile, expert: range) -> list[Any]:
        """Return the tensors of an expert, floats of 4 bits as codes."""
        return [with_codes(file.read(name, expert)[0]) for name in self.names]


def _interleaved(parts: list[Quantized]) -> Quantized:
    """Return equal matrices of codes as one, with a row of each in turn."""
    count = len(parts)

    def read(rows: slice) -> Codes:
        first, last = rows.start // count, -(-rows.stop // count)
        some = [part.reader(slice(first, last)) for part in parts]
        codes = [each for each in some if isinstance(each, Codes)]
        own = slice(rows.start - first * count, rows.stop - first * count)

        def rows_of(arrays: list[Array]) -> Array:
            return np.stack(arrays, axis=1).reshape(-1, arrays[0].shape[1])[own]

        return replace(
            codes[0], data=rows_of([each.data for each in codes]), scales=rows_of([each.scales for each in codes])
        )

    return Quantized(parts[0].inputs, range(count * len(parts[0])), read)


@dataclass(frozen=True, slots=True)
class KeysAndValues:
    """Location of the up-projection from latents to keys and values, with each head's keys before its values.

    Attributes:
        keys, values: names of the two separate tensors, (head, latent, key) and (head, value, latent).
    """

    keys: str
    values: str

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        """Return the shape of the fused tensor."""
        (heads, latent, key), (value_heads, value, _) = file.shapes[self.keys], file.shapes[self.values]
        return heads * key + value_heads * value, latent

    def read(self, file: GGUFFile, shape: tuple[int, ...]) -> Array:
        """Return the fused tensor in the given shape."""
        both = np.asarray(file.read(self.keys)).swapaxes(1, 2), np.asarray(file.read(self.values))
        return np.concatenate(both, axis=1).reshape(shape)


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the metadata, for a model with a tensor.

    Attributes:
        value: the number.
    """

    value: float

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        """Return the shape of a scalar."""
        return ()

    def read(self, file: GGUFFile, shape: tuple[int, ...]) -> Array:
        """Return the number in the given shape."""
        return np.full(shape, self.value, np.float32)


AnyPlace = TensorPlace | TransposedExperts | KeysAndValues | Number | StatePlace


def find_places(file: GGUFFile, architecture: Architecture, config: ModelConfig, source: str) -> dict[str, AnyPlace]:
    """Return the locations of a model's tensors by Hugging Face name, without tensors missing from the file.

    Raises:
        UnsupportedModel: the installed gguf library does not know the architecture.
    """
    import gguf

    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    if architecture.name not in numbers:
        raise UnsupportedModel(f"{source}: the installed gguf library does not know {architecture.name}: upgrade gguf")
    library = gguf.get_tensor_name_map(numbers[architecture.name], config.num_layers)
    prefix = architecture.prefix
    finder = _Finder(file, architecture, config, lambda name: library.get_name(name.removeprefix(prefix)))
    places = {name: finder.find(name) for name in expected_shapes(config)}
    return {name: place for name, place in places.items() if place is not None}


def loaders(
    file: GGUFFile, places: dict[str, AnyPlace], config: ModelConfig
) -> tuple[dict[str, tuple[int, ...]], dict[str, Callable[[], Tensor]]]:
    """Return the shape and the loader of each tensor."""
    expected = expected_shapes(config)
    shapes = {name: _match_shape(place.shape(file), expected[name]) for name, place in places.items()}
    codes = codes_in(file.metadata)
    return shapes, {name: partial(_read, place, file, shapes[name], codes) for name, place in places.items()}


def _read(place: AnyPlace, file: GGUFFile, shape: tuple[int, ...], codes: Mapping[str, str]) -> Tensor:
    """Return a tensor, with the codes of several blocks where the metadata have a kind of codes for its place."""
    tensor = with_codes(place.read(file, shape))
    kind = codes.get(place.names[0]) if isinstance(place, TensorPlace) and len(place.names) == 1 else None
    return tensor if kind is None else with_groups(tensor, kind)


def unpermute(rows: Array, heads: int) -> Array:
    """Undo llama.cpp's row order of a Llama's query or key projection.

    llama.cpp rotates neighbours and stores a head's rows as (0, half, 1, half + 1, ...); `layers.rotate` pairs i with
    i + half.

    Args:
        rows: (heads * head_dim, ...).
        heads: number of heads.
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _match_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> tuple[int, ...]:
    """Return the expected shape if both differ only in axes of size 1, or else the stored shape."""
    return expected if [n for n in shape if n != 1] == [n for n in expected if n != 1] else shape


def _stem_and_kind(name: str) -> tuple[str, str]:
    """Split a name into its stem and "weight" or "bias". Files always have one of these suffixes."""
    stem, _, kind = name.rpartition(".")
    if kind in ("weight", "bias"):
        return stem, kind
    return (name.removesuffix("_bias"), "bias") if name.endswith("_bias") else (name, "weight")


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finder of tensors in a file.

    Attributes:
        library: function from a name without ".weight" to the name in files, or None.
    """

    file: GGUFFile
    architecture: Architecture
    config: ModelConfig
    library: Callable[[str], Any]

    def find(self, name: str) -> AnyPlace | None:
        """Return the location of a tensor, or None if the file does not have it."""
        names, in_layers = self.config.names, f"{self.config.names.layers}."
        layer, _, part = name.partition(in_layers)[2].partition(".")
        state = self.config.layers[int(layer)].state if layer else None
        if state is not None and part.startswith(f"{names.state}."):
            of_state = state_place(part, layer, state, names, self.architecture.tiled, self.file.shapes)
            if of_state is not None:
                return of_state
        stem, kind = _stem_and_kind(name)
        layer, _, part = stem.partition(in_layers)[2].partition(".")
        if part.startswith(f"{names.activation}."):
            return self._number(layer, part.removeprefix(f"{names.activation}."))
        file_names = self._names(layer, part, stem, kind)
        if names.experts_transposed and file_names and part in (*names.expert_gate_up, names.expert_down):
            return TransposedExperts(file_names, names.experts_interleaved)
        if part == names.latent_heads and not file_names:
            return self._latent_place(layer, kind)
        place = (
            TensorPlace(file_names)
            if file_names
            else self._stacked_place(layer, part or stem, kind)
            or self._fused_place(layer, part, kind)
            or self._separate_place(layer, part, kind)
        )
        if place is None:
            return None
        shift = -1.0 if self.architecture.shifted and kind == "weight" and stem.endswith("norm") else 0.0
        return replace(place, heads=self._heads(layer, part), shift=shift)

    def _latent_place(self, layer: str, kind: str) -> KeysAndValues | None:
        keys, values = (f"blk.{layer}.attn_{part}_b.{kind}" for part in "kv")
        return KeysAndValues(keys, values) if {keys, values} <= self.file.shapes.keys() else None

    def _number(self, layer: str, name: str) -> Number | None:
        """Return a learned number of a layer's activation, from a list over layers."""
        values = self.file.metadata.get(f"xielu.{name}")
        if not isinstance(values, list) or len(values) != self.config.num_layers:
            return None
        return Number(float(values[int(layer)]))

    def _heads(self, layer: str, part: str) -> int:
        """Return the number of heads in llama.cpp's row order."""
        attention, qkv = self._attention(layer), self.config.names.qkv
        if attention is None:
            return 0
        heads = dict(zip(qkv, (attention.heads, attention.kv_heads), strict=False))
        return heads.get(part, 0) if self.architecture.permuted else 0

    def _attention(self, layer: str) -> AttentionConfig | None:
        return self.config.layers[int(layer)].attention if layer else None

    def _names(self, layer: str, part: str, stem: str, kind: str) -> tuple[str, ...] | None:
        """Return the names in the file, if all of them exist.

        A shared expert of a model without experts is stored as the dense layer that it is.
        """
        if part in self.architecture.parts:
            parts = (each if "." in each else f"{each}.{kind}" for each in self.architecture.parts[part])
            names = tuple(f"blk.{layer}.{each}" for each in parts)
        else:
            names = (f"{self.library(stem)}.{kind}",)
        dense = tuple(name.replace("_shexp.", ".") for name in names)
        whole = (str(self.library(f"{stem}.{kind}")),)  # the library has some names with their suffix
        return next((each for each in (names, dense, whole) if self.file.shapes.keys() >= set(each)), None)

    def _stacked_place(self, layer: str, part: str, kind: str) -> TensorPlace | None:
        """Return the location of a tensor with a number in its name (one expert's) in a stack of all numbers.

        Args:
            layer: the number of its layer; empty for a tensor outside of the layers.
            part: its name after the layer's, without ".weight".
            kind: "weight" or "bias".
        """
        pieces = part.split(".")
        numbers = [place for place, piece in enumerate(pieces) if piece.isdecimal()]
        if not numbers:
            return None
        number = int(pieces.pop(numbers[0]))
        stem = ".".join([self.config.names.layers, layer, *pieces] if layer else pieces)
        names, half = self._names(layer, ".".join(pieces), stem, kind), None
        if names is None:  # gate and up projections may be fused
            separate, fused = f"{self.library(stem)}", f"blk.{layer}.ffn_gate_up_exps"
            half = {f"blk.{layer}.ffn_gate_exps": 0, f"blk.{layer}.ffn_up_exps": 1}.get(separate)
            if half is None or f"{fused}.{kind}" not in self.file.shapes:
                return None
            names = (f"{fused}.{kind}",)
        if not all(number < self.file.shapes[name][0] for name in names):
            return None
        return TensorPlace(names, range(number, number + 1), stacked=True, half=half)

    def _fused_place(self, layer: str, part: str, kind: str) -> TensorPlace | None:
        """Return the location of a query, key or value projection in a fused tensor."""
        qkv, attention = self.config.names.qkv, self._attention(layer)
        name = f"blk.{layer}.attn_qkv.{kind}"
        if attention is None or part not in qkv or len(qkv) != 3 or name not in self.file.shapes:
            return None
        ends = np.cumsum([0, attention.heads, attention.kv_heads, attention.kv_heads]) * attention.head_dim
        index = qkv.index(part)
        return TensorPlace((name,), range(int(ends[index]), int(ends[index + 1])))

    def _separate_place(self, layer: str, part: str, kind: str) -> TensorPlace | None:
        """Return the location of fused projections of all experts, stored as two tensors."""
        names = tuple(f"blk.{layer}.ffn_{half}_exps.{kind}" for half in ("gate", "up"))
        is_fused = (part,) == self.config.names.expert_gate_up
        return TensorPlace(names) if is_fused and set(names) <= self.file.shapes.keys() else None
