"""Changes of activations by one request: vectors at ranges of positions, checked against its model and its prompt."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any

import numpy as np

from rekindle.core.content import content_digest
from rekindle.core.errors import InvalidRequest
from rekindle.core.layer_parts import EMBEDDING, EVERYWHERE, MOST_INTERVENTIONS, PARTS, Part
from rekindle.core.request.activations.steering import Patch, Steering
from rekindle.core.request.checks import preview

Vector = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One vector at a range of positions.

    Attributes:
        layer: the index of the layer, or `EMBEDDING`.
        part: the part of the layer.
        replaces: whether the vector replaces activations rather than is added.
        first, end: the range of positions.
        vector: (hidden,) float32.
    """

    layer: int
    part: Part
    replaces: bool
    first: int
    end: int
    vector: Vector


@dataclass(frozen=True)
class Changes:
    """The changes of one request, in the order of their application.

    Attributes:
        each: at least one change, at most `MOST_INTERVENTIONS`.
    """

    each: tuple[Change, ...]

    @cached_property
    def digest(self) -> str:
        """A digest of the places and the numbers."""
        return content_digest(self.each)[:32]


def changes_of(
    steer: Sequence[Steering], patch: Sequence[Patch], length: int, sizes: tuple[int, int]
) -> Changes | None:
    """Return the changes of a request with a prompt, patches first; None without any.

    Args:
        length: the number of tokens of the prompt.
        sizes: the number of layers, and the size of their residual stream.

    Raises:
        InvalidRequest: a layer, part, vector or position is not in the model or the prompt, or there are too many.
    """
    every: list[Change] = []
    for one in patch:
        every += _of_patch(one, length, sizes)
    for steering in steer:
        every += _of_steering(steering, length, sizes)
    if len(every) > MOST_INTERVENTIONS:
        raise InvalidRequest(
            f"steer and patch change {len(every)} ranges of positions, and a request has room for "
            f"{MOST_INTERVENTIONS}: name neighbouring positions as one slice, or fewer of them"
        )
    return Changes(tuple(every)) if every else None


def layer_index(name: str, layer: Any, layers: int) -> int:
    """Return the index of a layer, `EMBEDDING` for "embedding"; raises InvalidRequest for another one."""
    if isinstance(layer, str) and layer == "embedding":
        return EMBEDDING
    number = _integer(layer)
    if number is None or not -layers <= number < layers:
        raise InvalidRequest.of(
            name, f'{name} must be an index of {layers} layers, or "embedding", got {preview(layer)}'
        )
    return number % layers


def part_of(name: str, part: Any) -> Part:
    """Return the name of a part; raises InvalidRequest for another one."""
    if part not in PARTS:
        raise InvalidRequest.of(name, f"{name} must be one of {', '.join(map(repr, PARTS))}, got {preview(part)}")
    checked: Part = part
    return checked


def _of_steering(steering: Steering, length: int, sizes: tuple[int, int]) -> Iterator[Change]:
    layer, part = _place("steer", steering, sizes[0])
    vector = _numbers("steer", steering.vector, (sizes[1],)) * _scale(steering.scale)
    for first, end in _ranges("steer", steering.tokens, length):
        yield Change(layer, part, False, first, end, vector)


def _of_patch(patch: Patch, length: int, sizes: tuple[int, int]) -> Iterator[Change]:
    layer, part = _place("patch", patch, sizes[0])
    positions = patch.tokens
    if np.ndim(patch.vector) == 2:
        if not isinstance(positions, Sequence):
            raise InvalidRequest.of("patch", "a patch with several vectors needs tokens, a list of as many positions")
        vectors = _numbers("patch", patch.vector, (len(positions), sizes[1]))
        ranges = [_one("patch", position, length) for position in positions]
        for (first, end), vector in zip(ranges, vectors, strict=True):
            yield Change(layer, part, True, first, end, vector)
        return
    vector = _numbers("patch", patch.vector, (sizes[1],))
    for first, end in _ranges("patch", positions, length):
        yield Change(layer, part, True, first, end, vector)


def _place(name: str, change: Steering | Patch, layers: int) -> tuple[int, Part]:
    layer, part = layer_index(f"{name}.layer", change.layer, layers), part_of(f"{name}.part", change.part)
    if layer == EMBEDDING and part != "residual":
        raise InvalidRequest.of(name, f'{name}: the embeddings have the part "residual" alone, not {part!r}')
    return layer, part


def _numbers(name: str, vector: Any, shape: tuple[int, ...]) -> Vector:
    try:
        numbers = np.array(vector, np.float32)
    except (TypeError, ValueError):
        raise InvalidRequest.of(name, f"{name}.vector must be an array of numbers, got {preview(vector)}") from None
    if numbers.shape != shape or not np.isfinite(numbers).all():
        got = f"the shape {numbers.shape}" if numbers.shape != shape else "numbers that are not finite"
        raise InvalidRequest.of(name, f"{name}.vector must be finite numbers of the shape {shape}, got {got}")
    return numbers


def _scale(scale: Any) -> np.float32:
    if isinstance(scale, bool) or not isinstance(scale, int | float | np.number) or not np.isfinite(scale):
        raise InvalidRequest.of("steer", f"steer.scale must be a number, got {preview(scale)}")
    return np.float32(scale)


def _ranges(name: str, tokens: Any, length: int) -> list[tuple[int, int]]:
    """Return ranges of positions, neighbouring ones joined."""
    if tokens is None:
        return [(0, EVERYWHERE)]
    if isinstance(tokens, slice):
        return [_of_slice(name, tokens, length)]
    if not isinstance(tokens, Sequence) or isinstance(tokens, str):
        return [_one(name, tokens, length)]
    ranges: list[tuple[int, int]] = []
    for first, end in sorted({_one(name, position, length) for position in tokens}):
        start = ranges.pop()[0] if ranges and ranges[-1][1] == first else first
        ranges.append((start, end))
    return ranges


def _one(name: str, position: Any, length: int) -> tuple[int, int]:
    number = _integer(position)
    if number is None or not -length <= number < length:
        raise InvalidRequest.of(
            name,
            f"{name}.tokens must be positions of the {length} tokens of the prompt, a slice, or None, got "
            f"{preview(position)}",
        )
    return number % length, number % length + 1


def _of_slice(name: str, tokens: slice, length: int) -> tuple[int, int]:
    numbers = [None if end is None else _integer(end) for end in (tokens.start, tokens.stop)]
    is_valid = tokens.step in (None, 1) and all(
        (end is None) == (number is None) for end, number in zip((tokens.start, tokens.stop), numbers, strict=True)
    )
    if not is_valid:
        raise InvalidRequest.of(name, f"{name}.tokens must be a slice of integers without a step, got {tokens}")
    start, stop = numbers
    first = 0 if start is None else max(0, start + length) if start < 0 else start
    end = EVERYWHERE if stop is None else max(0, stop + length) if stop < 0 else stop
    if first >= end:
        raise InvalidRequest.of(name, f"{name}.tokens {tokens} has no position of a prompt of {length} tokens")
    return first, end


def _integer(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None
