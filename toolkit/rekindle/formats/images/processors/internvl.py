"""Images of InternVL 3: tiles of one size in the aspect of the image, and the whole image as the last one."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processors.arrays import Normalization, in_patches, in_squares, resize
from rekindle.formats.images.processors.settings import CLIP_MEAN, CLIP_STD, Settings
from rekindle.formats.images.processors.tiles import cut, grids_between, nearest_grid, tiled_order


@dataclass(frozen=True, slots=True)
class InternVLImages:
    """Rules for the images of a checkpoint.

    Attributes:
        tile: pixels of a tile's side.
        least, most: bounds of the number of tiles, without the whole image.
        resample: the filter of Pillow.
        normalization: from bytes to the tower's numbers.
        patch: pixels of a patch's side.
        merge: patches of a token, along one side.
        image, start, end: texts of the tokens of an embedding, and around an image.
    """

    tile: int
    least: int
    most: int
    resample: int
    normalization: Normalization
    patch: int
    merge: int
    image: str = "<IMG_CONTEXT>"
    start: str = "<img>"
    end: str = "</img>"

    @property
    def place(self) -> str:
        """Text of the token for an image in a rendered prompt."""
        return self.placeholder

    @property
    def placeholder(self) -> str:
        """Text of the token for an image."""
        return self.image

    @property
    def opening(self) -> str:
        """Text for an image in a raw prompt without a place for it."""
        return f"{self.image}\n"

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts of tokens of images."""
        return self.image, self.start, self.end

    @property
    def segments(self) -> tuple[int, ...]:
        """Patches of one tile."""
        return ((self.tile // self.patch) ** 2,)

    @property
    def side(self) -> int:
        """Tokens along a tile's side."""
        return self.tile // self.patch // self.merge

    @property
    def most_tokens(self) -> int:
        """Embeddings of an image in the most tiles."""
        return (self.most + (self.most > 1)) * self.side**2

    def at_low_detail(self) -> "InternVLImages":
        """Return the rules for the whole image as one tile."""
        return replace(self, least=1, most=1)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the tiles; (1, 1) for the whole image alone."""
        return nearest_grid((height, width), self.tile, grids_between(self.least, self.most))

    def count(self, height: int, width: int) -> int:
        """Return the number of tiles of an image of this size, with the whole image."""
        rows, columns = self.grid(height, width)
        return 1 if rows * columns == 1 else rows * columns + 1

    def tokens(self, height: int, width: int) -> int:
        """Return the number of embeddings of an image of this size."""
        return self.count(height, width) * self.side**2

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the placeholder."""
        return self.start + self.image * self.tokens(height, width) + self.end

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layouts of the embeddings: the tiles side by side, if there are any, and the whole image."""
        rows, columns = self.grid(height, width)
        tiles = tiled_order(rows, columns, self.side)
        if rows * columns == 1:
            return (tiles,)
        return tiles, tiles.size + np.arange(self.side**2, dtype=np.int32).reshape(self.side, self.side)

    def grid_of(self, height: int, width: int) -> None:
        """Return None: positions are indices."""

    def tiles(self, pixels: np.ndarray) -> np.ndarray:
        """Return the tiles of an image by row and the whole image, (tiles, tile, tile, 3) uint8."""
        rows, columns = self.grid(*pixels.shape[:2])
        parts = cut(resize(pixels, (rows * self.tile, columns * self.tile), self.resample), rows, columns)
        if len(parts) == 1:
            return parts
        return np.concatenate([parts, resize(pixels, (self.tile, self.tile), self.resample)[None]])

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image; a segment is a tile."""
        values = in_patches(self.normalization.apply(self.tiles(pixels)), self.patch, self.merge)
        across, shape = self.tile // self.patch, values.shape[:2]
        places = in_squares(across, across, self.merge)
        return Patches(values, np.broadcast_to(places, (*shape, 2)).copy(), np.ones(shape, bool))


def read_internvl(settings: Settings) -> InternVLImages:
    """Read the rules of a checkpoint. Missing settings have the values of transformers' class.

    Images are always cut: transformers' processor of the family says so, whatever the setting of its image processor.

    Raises:
        CheckpointError: a setting is malformed, or settings do not fit together.
        UnsupportedModel: a setting is not implemented.
    """
    settings.require("do_resize", "do_convert_rgb")
    size: Any = settings.image.get("size") or {"height": 384, "width": 384}
    tile, patch = settings.integer(size, "height"), settings.side("patch_size", 14)
    trained = settings.side("image_size", 448)
    if {tile, settings.integer(size, "width")} != {trained}:
        raise UnsupportedModel(
            f"{settings.source}: tiles of {size} pixels are not supported, only those of the tower, {trained} x "
            f"{trained}"
        )
    merge = round(1 / float(settings.config.get("downsample_ratio", 0.5)))
    images = InternVLImages(
        tile=tile,
        least=settings.integer(settings.image, "min_patches", 1),
        most=settings.integer(settings.image, "max_patches", 12),
        resample=settings.integer(settings.image, "resample", 3),
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch=patch,
        merge=merge,
        image=settings.token("image_token_id", "context_image_token", "<IMG_CONTEXT>"),
        start=settings.token(None, "start_image_token", "<img>"),
        end=settings.token(None, "end_image_token", "</img>"),
    )
    count = settings.processor.get("image_seq_length", images.side**2)
    if count != images.side**2:
        raise CheckpointError(
            f"{settings.source}: processor_config.json has image_seq_length {count}, but a tile has {images.side**2} "
            "tokens by config.json. Fetch the model again"
        )
    return images
