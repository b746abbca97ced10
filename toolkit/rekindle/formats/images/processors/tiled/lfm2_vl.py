"""Images of LFM2-VL: near their own size, or large ones as tiles of one size, and the whole image as the last one."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processors.arrays import (
    Normalization,
    by_row,
    full_patches,
    lengths_up_to,
    resize_as_torch,
)
from rekindle.formats.images.processors.processor import ImageWords
from rekindle.formats.images.processors.settings import HALF, ProcessorSettings
from rekindle.formats.images.processors.tiled.tiles import Grid, cut, nearest_grid, tiled_order

BILINEAR: Final = 2
"""The filter, by its number in Pillow."""


@dataclass(frozen=True, slots=True)
class Lfm2Images:
    """Rules for the images of a checkpoint.

    Attributes:
        tile: pixels of a tile's side.
        splits: whether large images are cut into tiles.
        least_tiles, most_tiles: bounds of the number of tiles, without the whole image.
        has_whole: whether the whole image follows the tiles.
        least, most: bounds of the tokens of the whole image.
        tolerance: the pixels of an image in one piece, as a multiple of those for `most` tokens.
        normalization: from bytes to the tower's numbers.
        patch: pixels of a patch's side.
        merge: patches of a token, along one side.
        special: whether texts of tokens are around the image and before its parts.
        image: text of the token of an embedding.
    """

    tile: int
    splits: bool
    least_tiles: int
    most_tiles: int
    has_whole: bool
    least: int
    most: int
    tolerance: float
    normalization: Normalization
    patch: int
    merge: int
    special: bool = True
    image: str = "<image>"
    start: str = "<|image_start|>"
    end: str = "<|image_end|>"
    whole: str = "<|img_thumbnail|>"

    @property
    def words(self) -> ImageWords:
        """Texts of tokens of images."""
        sides = range(self.most_tiles)
        places = [_place(row, column) for row in sides for column in sides if (row + 1) * (column + 1) <= len(sides)]
        return ImageWords(self.image, (self.image, self.start, self.end, self.whole, *places))

    @property
    def segments(self) -> tuple[int, ...]:
        """Patches of a tile or of a whole image with padding."""
        return lengths_up_to(max(self.most_cells * self.merge**2, 256), self.merge)

    @property
    def most_cells(self) -> int:
        """The most tokens of a tile or of a whole image."""
        return max(self.most, self.side**2 if self.splits else 0)

    @property
    def cell(self) -> int:
        """Pixels of a token's side."""
        return self.patch * self.merge

    @property
    def side(self) -> int:
        """Tokens along a tile's side."""
        return self.tile // self.cell

    @property
    def most_tokens(self) -> int:
        """Embeddings of an image in the most tiles."""
        return (self.most_tiles * self.side**2 if self.splits else 0) + self.segments[-1] // self.merge**2

    def at_low_detail(self) -> "Lfm2Images":
        """Return the rules for the whole image alone."""
        return replace(self, splits=False)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the tiles; (1, 1) for the whole image alone."""
        rounded = [max(self.patch, round(side / self.cell) * self.cell) for side in (height, width)]
        if not self.splits or math.prod(rounded) <= self.most * self.cell**2 * self.tolerance:
            return 1, 1
        return nearest_grid((height, width), self.tile, _grids(self.least_tiles, self.most_tiles))

    def whole_grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the tokens of the whole image. Those of a very thin image are cut off.

        The operations of floats are those of transformers, in their order.
        """
        cell, most = self.cell, self.segments[-1] // self.merge**2
        rows, columns = (max(1, round(side / cell)) for side in (height, width))
        if rows * columns > self.most:
            shrink = math.sqrt((height * width) / (self.most * cell**2))
            rows, columns = (max(1, math.floor(side / shrink / cell)) for side in (height, width))
        elif rows * columns < self.least:
            grow = math.sqrt(self.least * cell**2 / (height * width))
            rows, columns = (math.ceil(side * grow / cell) for side in (height, width))
        return min(rows, max(1, most // columns)), min(columns, max(1, most // rows))

    def counts(self, height: int, width: int) -> list[int]:
        """Return the numbers of embeddings of the parts of an image: of tiles by row, and of the whole image."""
        rows, columns = self.grid(height, width)
        tiles = [self.side**2] * (rows * columns if rows * columns > 1 else 0)
        return [*tiles, *([math.prod(self.whole_grid(height, width))] if self.has_whole or not tiles else [])]

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the placeholder: tiles by row, and the whole image."""
        rows, columns = self.grid(height, width)
        embeddings = [self.image * count for count in self.counts(height, width)]
        if not self.special:
            return "".join(embeddings)
        places = [_place(row, column) for row in range(rows) for column in range(columns)]
        labels = [*places, self.whole] if rows * columns > 1 else [""]
        return self.start + "".join(map("".join, zip(labels, embeddings, strict=False))) + self.end

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layouts of the embeddings: the tiles side by side, if there are any, and the whole image."""
        rows, columns = self.grid(height, width)
        tiles = tiled_order(rows, columns, self.side) if rows * columns > 1 else None
        if tiles is not None and not self.has_whole:
            return (tiles,)
        whole = by_row(*self.whole_grid(height, width))
        return (whole,) if tiles is None else (tiles, tiles.size + whole)

    def parts(self, pixels: np.ndarray) -> list[np.ndarray]:
        """Return the tiles of an image by row and the whole image, each (height, width, 3) uint8."""
        size = height, width = pixels.shape[0], pixels.shape[1]
        rows, columns = self.grid(height, width)
        parts: list[np.ndarray] = []
        if rows * columns > 1:
            parts += list(
                cut(resize_as_torch(pixels, (rows * self.tile, columns * self.tile), BILINEAR), rows, columns)
            )
        if self.has_whole or not parts:
            of_whole = self.whole_grid(*size)
            parts.append(resize_as_torch(pixels, (of_whole[0] * self.cell, of_whole[1] * self.cell), BILINEAR))
        return parts

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image; a segment is a tile or the whole image."""
        images = [self.normalization.apply(part)[None] for part in self.parts(pixels)]
        segments = [full_patches(image, self.patch, self.merge) for image in images]
        longest = max(each.valid.shape[1] for each in segments)
        padded = [each.padded(longest) for each in segments]
        return Patches(
            np.concatenate([each.values for each in padded]),
            np.concatenate([each.positions for each in padded]),
            np.concatenate([each.valid for each in padded]),
        )


def _place(row: int, column: int) -> str:
    return f"<|img_row_{row + 1}_col_{column + 1}|>"


def _grids(least: int, most: int) -> list[Grid]:
    """Return the grids with so many tiles, in transformers' order: that of a set of CPython, which breaks ties."""
    counts = range(least, most + 1)
    return list(
        {
            (columns, rows)
            for count in counts
            for columns in range(1, count + 1)
            for rows in range(1, count + 1)
            if least <= columns * rows <= most
        }
    )


def read_lfm2_vl(settings: ProcessorSettings) -> Lfm2Images:
    """Read the rules of a checkpoint. Missing settings have the values of transformers' class.

    Raises:
        CheckpointError: a setting is malformed, or settings do not fit together.
        UnsupportedModel: a setting is not implemented.
    """
    image = settings.image
    settings.require("do_resize")
    return Lfm2Images(
        tile=settings.integer(image, "tile_size", 512),
        splits=bool(image.get("do_image_splitting", True)),
        least_tiles=settings.integer(image, "min_tiles", 2),
        most_tiles=settings.integer(image, "max_tiles", 10),
        has_whole=bool(image.get("use_thumbnail", True)),
        least=settings.integer(image, "min_image_tokens", 64),
        most=settings.integer(image, "max_image_tokens", 256),
        tolerance=float(image.get("max_pixels_tolerance", 2.0)),
        normalization=settings.normalization(HALF, HALF).fused(),
        patch=settings.integer(image, "encoder_patch_size", settings.side("patch_size", 16)),
        merge=settings.integer(image, "downsample_factor", settings.integer(settings.config, "downsample_factor", 2)),
        special=bool(settings.processor.get("use_image_special_tokens", True)),
        image=settings.token("image_token_id", "image_token", "<image>"),
        start=settings.token(None, "image_start_token", "<|image_start|>"),
        end=settings.token(None, "image_end_token", "<|image_end|>"),
        whole=settings.token(None, "image_thumbnail_token", "<|img_thumbnail|>"),
    )
