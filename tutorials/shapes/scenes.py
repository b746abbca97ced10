"""Pictures of coloured shapes, with questions about them and their answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageDraw

MODEL: Final = Path(__file__).parent
"""The folder of the model that reads these pictures."""
COLOURS: Final = {"red": (220, 40, 40), "green": (30, 150, 60), "blue": (40, 80, 220), "yellow": (240, 200, 30)}
KINDS: Final = ("circle", "square", "triangle")
COUNTS: Final = ("one", "two", "three")
PLACES: Final = ("top left", "top right", "bottom left", "bottom right")
CELLS: Final = 4
"""Cells in a row of a picture, and in a column. A shape is in one cell."""
CELL: Final = 24
"""Pixels of a cell's side."""
SIDE: Final = CELLS * CELL
"""Pixels of a picture's side."""
_SIZE: Final = 18
"""Pixels of a shape's side."""


@dataclass(frozen=True)
class Shape:
    """Coloured shape in a cell of a picture.

    Attributes:
        colour: its name in `COLOURS`.
        kind: one of `KINDS`.
        row: the row of its cell, from the top.
        column: the column of its cell, from the left.
        shift: pixels from the left and upper edges of the cell, at most `CELL` - 19.
    """

    colour: str
    kind: str
    row: int
    column: int
    shift: tuple[int, int] = (3, 3)

    @property
    def place(self) -> str:
        """The quarter of the picture."""
        return PLACES[2 * (self.row >= CELLS // 2) + (self.column >= CELLS // 2)]


def draw(*shapes: Shape) -> Image.Image:
    """Return a white picture with shapes, (SIDE, SIDE) pixels of RGB."""
    image = Image.new("RGB", (SIDE, SIDE), "white")
    pen = ImageDraw.Draw(image)
    for shape in shapes:
        left, top = shape.column * CELL + shape.shift[0], shape.row * CELL + shape.shift[1]
        right, bottom, fill = left + _SIZE, top + _SIZE, COLOURS[shape.colour]
        if shape.kind == "circle":
            pen.ellipse((left, top, right, bottom), fill=fill)
        elif shape.kind == "square":
            pen.rectangle((left, top, right, bottom), fill=fill)
        else:
            pen.polygon([(left, bottom), (right, bottom), (left + _SIZE // 2, top)], fill=fill)
    return image


def shapes_by_chance(chance: np.random.Generator) -> tuple[Shape, ...]:
    """Draw lots for one to three shapes of different kinds in different cells."""
    count = int(chance.integers(1, len(KINDS) + 1))
    cells = chance.permutation(CELLS**2)[:count]
    return tuple(
        Shape(
            list(COLOURS)[chance.integers(len(COLOURS))],
            str(kind),
            *divmod(int(cell), CELLS),
            (int(chance.integers(CELL - _SIZE - 1)), int(chance.integers(CELL - _SIZE - 1))),
        )
        for kind, cell in zip(chance.permutation(KINDS)[:count], cells, strict=True)
    )


def questions(shapes: Sequence[Shape]) -> list[tuple[str, str]]:
    """Return all questions about a picture that the model learns, each with its answer."""
    pairs = [("How many shapes?", COUNTS[len(shapes) - 1])]
    for shape in shapes:
        pairs.append((f"What colour is the {shape.kind}?", shape.colour))
        pairs.append((f"Where is the {shape.kind}?", shape.place))
    return pairs
