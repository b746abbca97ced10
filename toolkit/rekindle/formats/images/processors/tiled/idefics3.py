"""Images of Idefics3, SmolVLM and SmolVLM2: tiles of one size, and the whole image as the last one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.core.errors import CheckpointError
from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processors.arrays import Normalization, by_row, full_patches, resize
from rekindle.formats.images.processors.processor import ImageWords
from rekindle.formats.images.processors.settings import HALF, ProcessorSettings
from rekindle.formats.images.processors.tiled.tiles import cut, tiled_order

LONGEST: Final = 4096
"""Most pixels of a side, whatever the settings."""
MOST_TILES: Final = 16
"""Most tiles of an image beside the whole one; larger images shrink. One more is the largest bucket of segments."""


@dataclass(frozen=True, slots=True)
class Idefics3Images:
    """Rules for the images of a checkpoint.

    Attributes:
        longest_edge: pixels of an image's longer side, before it is cut.
        tile: pixels of a tile's side.
        splits: whether an image is cut into tiles.
        resample: the filter of Pillow.
        normalization: from bytes to the tower's numbers.
        patch: pixels of a patch's side.
        side: rows of the table of positions, along one side of a tile.
        merge: patches of a token, along one side.
        image, fake, whole: texts of the tokens of an embedding, around a tile, and before the whole image.
    """

    longest_edge: int
    tile: int
    splits: bool
    resample: int
    normalization: Normalization
    patch: int
    side: int
    merge: int
    image: str = "<image>"
    fake: str = "<fake_token_around_image>"
    whole: str = "<global-img>"

    @property
    def words(self) -> ImageWords:
        """Texts of tokens of images, up to the place of the last tile."""
        count = max(MOST_TILES, -(-LONGEST // self.tile)) if self.splits else 0
        places = [_place(row, column) for row in range(count) for column in range(count)]
        return ImageWords(self.image, (self.image, self.fake, self.whole, *places))

    @property
    def tokens_of_tile(self) -> int:
        """Embeddings of one tile."""
        return (self.tile // self.patch // self.merge) ** 2

    @property
    def segments(self) -> tuple[int, ...]:
        """Patches of one tile."""
        return ((self.tile // self.patch) ** 2,)

    @property
    def most_tokens(self) -> int:
        """Embeddings of an image in the most tiles."""
        return (MOST_TILES + 1 if self.splits else 1) * self.tokens_of_tile

    def at_low_detail(self) -> "Idefics3Images":
        """Return the rules for the whole image as one tile."""
        return replace(self, splits=False)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of tiles beside the whole image; (0, 0) for the whole image alone."""
        if not self.splits:
            return 0, 0
        rows, columns = (side // self.tile for side in self._cut_size(height, width))
        return (0, 0) if rows == columns == 1 else (rows, columns)

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the placeholder: tiles by row, and the whole image."""
        rows, columns = self.grid(height, width)
        embeddings = self.image * self.tokens_of_tile
        lines = [
            "".join(f"{self.fake}{_place(row, column)}{embeddings}" for column in range(columns)) + "\n"
            for row in range(rows)
        ]
        gap = "\n" if rows else ""
        return f"{''.join(lines)}{gap}{self.fake}{self.whole}{embeddings}{self.fake}"

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layouts of the embeddings: the tiles side by side, if there are any, and the whole image."""
        rows, columns = self.grid(height, width)
        side = self.tile // self.patch // self.merge
        tiles = tiled_order(rows, columns, side)
        return (tiles, tiles.size + by_row(side, side)) if rows else (by_row(side, side),)

    def tiles(self, pixels: np.ndarray) -> np.ndarray:
        """Return the tiles of an image by row and the whole image, (tiles, tile, tile, 3) uint8."""
        height, width, _ = pixels.shape
        rows, columns = self.grid(height, width)
        pixels = resize(pixels, self._first_size(height, width), self.resample)
        size = self._cut_size(height, width) if self.splits else (self.tile, self.tile)
        pixels = resize(pixels, size, self.resample)
        if not rows:
            return pixels[None]
        whole = resize(pixels, (self.tile, self.tile), self.resample)
        return np.concatenate([cut(pixels, rows, columns), whole[None]])

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image; a segment is a tile."""
        patches = full_patches(self.normalization.apply(self.tiles(pixels)), self.patch, self.merge)
        return replace(patches, positions=_table_rows(self.tile // self.patch, self.side)[patches.positions])

    def _first_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size with the longer side of the settings, within the bounds."""
        longest = self.longest_edge
        while self.splits and longest > self.tile and math.prod(self._counts(height, width, longest)) > MOST_TILES:
            longest -= self.tile
        return _scaled(height, width, longest)

    def _counts(self, height: int, width: int, longest: int) -> tuple[int, int]:
        """Return rows and columns of tiles, if the longer side has this many pixels."""
        rows, columns = (side // self.tile for side in _up_to(self.tile, *_scaled(height, width, longest)))
        return rows, columns

    def _cut_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the image to cut: multiples of a tile."""
        return _up_to(self.tile, *self._first_size(height, width))


def _place(row: int, column: int) -> str:
    return f"<row_{row + 1}_col_{column + 1}>"


def _scaled(height: int, width: int, longest: int) -> tuple[int, int]:
    """Return a size with the aspect of another: the longer side as wanted, the shorter one even, all within bounds.

    The operations of floats are those of transformers, in their order.
    """
    ratio = width / height
    if width >= height:
        width = longest
        height = int(width / ratio)
        height += height % 2
    else:
        height = longest
        width = int(height * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > LONGEST:
        width = LONGEST
        height = int(width / ratio)
    elif height > width and height > LONGEST:
        height = LONGEST
        width = int(height * ratio)
    return max(height, 1), max(width, 1)


def _up_to(tile: int, height: int, width: int) -> tuple[int, int]:
    """Return a size with sides raised to multiples of a tile, the shorter one after the aspect of the longer one."""
    ratio = width / height
    if width >= height:
        width = -(-width // tile) * tile
        height = -(-int(width / ratio) // tile) * tile
    else:
        height = -(-height // tile) * tile
        width = -(-int(height * ratio) // tile) * tile
    return height, width


def _table_rows(count: int, side: int) -> np.ndarray:
    """Return the row in a table of `side` rows for each of `count` patches along a side, by their fractions.

    The fractions have 32 bits, as in transformers: a fraction rounded below a bound has the row before it.
    """
    bounds = np.arange(1 / side, 1.0, 1 / side).astype(np.float32)
    step = np.float32(1) / np.float32(count)
    fractions = np.minimum(np.arange(count, dtype=np.float32) * step, np.float32(1 - 1e-6))
    rows: np.ndarray = np.searchsorted(bounds, fractions, side="right").astype(np.int32)
    return rows


def read_idefics3(settings: ProcessorSettings) -> Idefics3Images:
    """Read the rules of a checkpoint. Missing settings have the values of transformers' class.

    Raises:
        CheckpointError: a setting is malformed, or settings do not fit together.
        UnsupportedModel: a setting is not implemented.
    """
    tower, outer = settings.tower, settings.config
    settings.require("do_resize", "do_convert_rgb")
    size = settings.image.get("size") or {"longest_edge": 4 * 364}
    tile = settings.integer(settings.image.get("max_image_size") or {"longest_edge": 364}, "longest_edge")
    patch, merge = settings.integer(tower, "patch_size", 32), settings.integer(outer, "scale_factor", 2)
    across = tile // patch
    if not across or across % merge:
        raise CheckpointError(
            f"{settings.source}: a tile of {tile} pixels must have a multiple of {merge} patches of {patch} pixels"
        )
    images = Idefics3Images(
        longest_edge=settings.integer(size, "longest_edge"),
        tile=tile,
        splits=bool(settings.image.get("do_image_splitting", True)),
        resample=settings.integer(settings.image, "resample", 1),
        normalization=settings.normalization(HALF, HALF),
        patch=patch,
        side=settings.integer(tower, "image_size", 224) // patch,
        merge=merge,
        image=settings.token("image_token_id", "image_token", "<image>"),
        fake=settings.token(None, "fake_image_token", "<fake_token_around_image>"),
        whole=settings.token(None, "global_image_token", "<global-img>"),
    )
    _check_count(settings.processor, images, settings.source)
    return images


def _check_count(processor: Mapping[str, Any], images: Idefics3Images, source: Path) -> None:
    count = processor.get("image_seq_len")
    if count is not None and count != images.tokens_of_tile:
        raise CheckpointError(
            f"{source}: processor_config.json has image_seq_len {count}, but a tile has {images.tokens_of_tile} tokens "
            "by config.json. Fetch the model again"
        )
