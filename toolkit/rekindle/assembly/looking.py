"""Looks at sequences: the activations to keep, and the program with its inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from rekindle.core.device.packing import pack_changes
from rekindle.core.errors import InvalidRequest
from rekindle.core.layer_parts import EMBEDDING, PARTS, Part
from rekindle.core.models.inspection.inputs import Look, LookInputs, Pictured
from rekindle.core.request.activations.capture import Capture
from rekindle.core.request.activations.changes import Changes
from rekindle.core.words import size_text

SHORTEST = 64
"""The smallest room for tokens; larger ones grow fourfold, since each room needs a program."""
MOST_BYTES = 4 << 30
"""The most bytes of the activations of one look, and of the captures of one call."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Checked activations to look at.

    Attributes:
        layers: the layers.
        parts: the parts of each layer.
        heads: the (layer, head) of each attention pattern.
    """

    layers: tuple[int, ...]
    parts: tuple[Part, ...]
    heads: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, capture: Capture, layers: int) -> "Selection":
        """Return the choice of a capture in a model with a number of layers.

        Raises:
            InvalidRequest: the model has no such layer.
        """
        for layer in capture.layers:
            if not -layers <= layer < layers:
                raise InvalidRequest.of("capture", f"capture names layer {layer}, and the model has {layers} layers")
        indices = [layer % layers for layer in capture.layers or range(layers)]
        return cls(tuple(dict.fromkeys(indices)), capture.parts)

    @property
    def states(self) -> int:
        """The number of activations, with the embeddings."""
        return 1 + len(self.layers) * len(self.parts)

    def places(self, layers: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return the place of the activations of each layer and part, as in `LookInputs`."""
        result = np.full((layers + 1, len(PARTS)), np.iinfo(np.int32).max, np.int32)
        result[EMBEDDING + 1, PARTS.index("residual")] = 0
        for place, layer in enumerate(self.layers):
            for further, part in enumerate(self.parts):
                result[layer + 1, PARTS.index(part)] = 1 + place * len(self.parts) + further
        return result


@dataclass(frozen=True, slots=True)
class Looks:
    """Looks at the sequences of one model.

    Attributes:
        capacity: the most tokens in a request, prompt and output together.
        layers, hidden: the number of layers, and the size of their residual stream.
        picture_width: the numbers of a token of an image in the buffer of embeddings.
    """

    capacity: int
    layers: int
    hidden: int
    picture_width: int = 0

    def shape(self, tokens: int, choice: Selection, remedy: str, *, pictures: bool = False) -> Look:
        """Return the smallest shape with a program for a look.

        Args:
            remedy: what to do for fewer bytes, for the error.
            pictures: whether some tokens are images.

        Raises:
            InvalidRequest: the activations take more than `MOST_BYTES`.
        """
        room = SHORTEST
        while room < tokens:
            room *= 4
        room = max(tokens, min(room, self.capacity))
        patterns = _power_of_two(len(choice.heads)) if choice.heads else 0
        shape = Look(room, _power_of_two(choice.states), patterns, pictures)
        size = 4 * shape.tokens * (shape.states * self.hidden + shape.patterns * shape.tokens)
        if size > MOST_BYTES:
            raise InvalidRequest(f"the activations take {size_text(size)}, more than {size_text(MOST_BYTES)}: {remedy}")
        return shape

    def inputs(
        self,
        ids: Sequence[int],
        choice: Selection,
        shape: Look,
        changes: Changes | None,
        embedded: Mapping[int, Any] | None = None,
        coordinates: Any = None,
    ) -> LookInputs:
        """Return the inputs of a look as arrays of numpy.

        Args:
            embedded: the rows of the buffer of embeddings for tokens of images, by their positions.
            coordinates: the time, row and column of each token, padding included; None for positions by index.
        """
        heads = np.full((shape.patterns, 2), self.layers, np.int32)
        heads[: len(choice.heads)] = np.array(choice.heads, np.int32).reshape(-1, 2)
        values, rows = np.zeros((shape.tokens, self.picture_width), np.float32), np.full(shape.tokens, -1, np.int32)
        for position, embedding in (embedded or {}).items():
            values[position], rows[position] = embedding, position
        pictured: Any = values, rows, coordinates
        arrays: Any = (
            np.pad(np.array(ids, np.int32), (0, shape.tokens - len(ids))),
            np.int32(len(ids)),
            choice.places(self.layers),
            heads,
            jax.tree.map(lambda array: array[None], pack_changes(changes, self.hidden)),
            Pictured(*pictured) if shape.pictures else None,
        )
        return LookInputs(*arrays)

    def check_capture(self, capture: Capture, prompt: int, most: int | None) -> None:
        """Check the room for a capture by one request, before it starts.

        Args:
            prompt: the number of tokens of the prompt.
            most: the largest number of tokens to generate; None for as many as fit.

        Raises:
            InvalidRequest: the activations may take more than `MOST_BYTES`, or the model has no such layer.
        """
        tokens = self.capacity if most is None else min(self.capacity, prompt + most)
        self.shape(tokens, Selection.of(capture, self.layers), f"{FEWER}, or shorten the prompt")

    def check_captures(self, capture: Capture, most: int | None, requests: int) -> None:
        """Check the room for the arrays of all requests of a call.

        Raises:
            InvalidRequest: the arrays may take more than `MOST_BYTES`, or the model has no such layer.
        """
        tokens = requests * (self.capacity if most is None else min(self.capacity, most))
        size = 4 * tokens * Selection.of(capture, self.layers).states * self.hidden
        if size > MOST_BYTES:
            raise InvalidRequest.of(
                "capture",
                f"the captured activations of {tokens:,} tokens may take {size_text(size)}, more than "
                f"{size_text(MOST_BYTES)}: {FEWER}, or ask for fewer answers in one call",
            )


FEWER = "name fewer layers or parts in capture, lower max_tokens"
"""What makes a capture smaller, for errors."""


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
