"""Images of LLaVA-NeXT and Granite Vision: the whole image as a square, and its tiles in one of several grids."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rekindle.core.errors import CheckpointError
from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processors.arrays import Normalization, by_row, full_patches, resize
from rekindle.formats.images.processors.llava import image_tokens, read_squares, square_size
from rekindle.formats.images.processors.processor import ImageWords
from rekindle.formats.images.processors.settings import CLIP_MEAN, CLIP_STD, ProcessorSettings
from rekindle.formats.images.processors.squares import SquareImages
from rekindle.formats.images.processors.tiled.tiles import cut, tiled_order

GRIDS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
"""(height, width) of grids of tiles in transformers' class."""
Size = tuple[int, int]
"""(height, width)."""


@dataclass(frozen=True, slots=True)
class LlavaNextImages:
    """Rules for the images of a checkpoint.

    Attributes:
        tile: pixels of a tile's side.
        sizes: (height, width) of the grids of tiles in pixels; empty for the whole image alone.
        resample: the filter of Pillow.
        normalization: from bytes to the tower's numbers.
        patch: pixels of a patch's side.
        image: text of the token of an embedding.
        place: text of an image's place in a prompt.
    """

    tile: int
    sizes: tuple[Size, ...]
    resample: int
    normalization: Normalization
    patch: int
    image: str = "<image>"
    place: str = "<image>"

    @property
    def words(self) -> ImageWords:
        """Texts of tokens of images."""
        return ImageWords(self.image, (self.image,), self.place, f"{self.place}\n")

    @property
    def side(self) -> int:
        """Patches along a tile's side."""
        return self.tile // self.patch

    @property
    def segments(self) -> tuple[int, ...]:
        """Patches of a tile."""
        return (self.side**2,)

    @property
    def most_tokens(self) -> int:
        """Embeddings of the largest image, with one behind each row of patches in tiles."""
        tiled = [height // self.tile * self.side * (width // self.tile * self.side + 1) for height, width in self.sizes]
        return self.side**2 + max(tiled, default=1)

    def at_low_detail(self) -> "LlavaNextImages":
        """Return the rules for the whole image alone."""
        return replace(self, sizes=())

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the placeholder."""
        return self.image * sum(grid.size for grid in self.grids(height, width))

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layouts of the embeddings: patches in tiles, those of the whole image, and ends of rows."""
        whole = by_row(self.side, self.side)
        if not self.sizes:
            return whole, np.array([[whole.size]], np.int32)
        (rows, columns), _ = self._unpadded(height, width)
        lines = whole.size + by_row(rows, columns + 1)
        return (lines[:, :-1], whole, lines[:, -1:]) if lines.size else (whole,)

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image; a segment is the whole image, a tile, or the ends of rows."""
        patches = full_patches(self.normalization.apply(self.tiles(pixels)), self.patch, 1)
        order = self._order(*pixels.shape[:2])
        missing = [(0, len(order) - len(patches.valid)), (0, 0)]
        values, positions = (np.pad(each, [*missing, (0, 0)]) for each in (patches.values, patches.positions))
        return Patches(values, positions, np.pad(patches.valid, missing), order)

    def tiles(self, pixels: np.ndarray) -> np.ndarray:
        """Return the whole image and its tiles by row, (tiles, tile, tile, 3) uint8."""
        whole = resize(pixels, (self.tile, self.tile), self.resample)[None]
        if not self.sizes:
            return whole
        size = self.size(*pixels.shape[:2])
        inner = _inside(pixels.shape[:2], size)
        row, column = ((outer - own) // 2 for outer, own in zip(size, inner, strict=True))
        canvas = np.zeros((*size, 3), np.uint8)
        canvas[row : row + inner[0], column : column + inner[1]] = resize(pixels, inner, self.resample)
        return np.concatenate([whole, cut(canvas, size[0] // self.tile, size[1] // self.tile)])

    def size(self, height: int, width: int) -> Size:
        """Return the grid with the most of the image's pixels, in pixels. Of these, it is the smallest one.

        The operations are those of transformers, in their order.
        """
        best, most, least_waste = self.sizes[0], 0, float("inf")
        for size in self.sizes:
            scale = min(size[1] / width, size[0] / height)
            covered = min(int(width * scale) * int(height * scale), width * height)
            waste = size[0] * size[1] - covered
            if covered > most or (covered == most and waste < least_waste):
                best, most, least_waste = size, covered, waste
        return best

    def _unpadded(self, height: int, width: int) -> tuple[Size, Size]:
        """Return rows and columns of patches with a part of the image, and the first of them among those of tiles."""
        rows, columns = (side // self.tile * self.side for side in self.size(height, width))
        if width / height > columns / rows:
            row = (rows - int(round(height * (columns / width), 7))) // 2
            return (rows - 2 * row, columns), (row, 0)
        column = (columns - int(round(width * (rows / height), 7))) // 2
        return (rows, columns - 2 * column), (0, column)

    def _order(self, height: int, width: int) -> np.ndarray:
        """Return `Patches.order`: the whole image first, and then each row of patches in tiles, with its end."""
        count = self.side**2
        whole = np.arange(count, dtype=np.int32)
        if not self.sizes:
            return np.stack([whole, np.where(whole == 0, count, -1).astype(np.int32)])
        (rows, columns), (row, column) = self._unpadded(height, width)
        high, wide = (side // self.tile for side in self.size(height, width))
        lines = count + by_row(rows, columns + 1)
        inner = tiled_order(high, wide, self.side)[row : row + rows, column : column + columns]
        ends = high * wide * count  # in segments of their own
        order = np.full(ends + -(-rows // count) * count, -1, np.int32)
        order[inner.reshape(-1)] = lines[:, :-1].reshape(-1)
        order[ends : ends + rows] = lines[:, -1]
        return np.concatenate([whole, order]).reshape(-1, count)


def _inside(size: Size, outer: Size) -> Size:
    """Return the size of an image in another one, with its aspect and one common side."""
    (height, width), (most_height, most_width) = size, outer
    by_width, by_height = most_width / width, most_height / height
    if by_width < by_height:
        return min(math.ceil(height * by_width), most_height), most_width
    return most_height, min(math.ceil(width * by_height), most_width)


def read_llava(settings: ProcessorSettings) -> SquareImages | LlavaNextImages:
    """Read the rules of a LLaVA or a LLaVA-NeXT. Missing settings have the values of transformers' classes.

    Raises:
        CheckpointError: a setting is malformed, or settings do not fit together.
        UnsupportedModel: a setting is not implemented.
    """
    if settings.config.get("model_type") != "llava_next":
        return read_squares(settings)
    settings.require("do_resize", "do_convert_rgb")
    tile, (image, place) = square_size(settings), image_tokens(settings)
    return LlavaNextImages(
        tile=tile,
        sizes=_sizes(settings, tile),
        resample=settings.integer(settings.image, "resample", 3),
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch=settings.side("patch_size", 32),
        image=image,
        place=place,
    )


def _sizes(settings: ProcessorSettings, tile: int) -> tuple[Size, ...]:
    """Return the sizes of the grids of tiles, which processor and model must have alike."""
    places = [each.get("image_grid_pinpoints") for each in (settings.image, settings.config)]
    values: Any = next((each for each in places if each), GRIDS)
    try:
        sizes = [tuple((int(height), int(width)) for height, width in each) for each in (values, places[1] or values)]
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{settings.source}: image_grid_pinpoints must be pairs of pixels, got {values!r:.80}"
        ) from error
    if sizes[0] != sizes[1] or any(side <= 0 or side % tile for size in sizes[0] for side in size):
        raise CheckpointError(
            f"{settings.source}: image_grid_pinpoints must be multiples of {tile} pixels, and the same in "
            f"preprocessor_config.json and config.json, got {places!r:.160}. Fetch the model again"
        )
    return sizes[0]
