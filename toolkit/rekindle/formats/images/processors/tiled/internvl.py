"""Images of InternVL 3: tiles of one size in the aspect of the image, and the whole image as the last one."""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processors.arrays import Normalization, by_row, full_patches, resize
from rekindle.formats.images.processors.processor import ImageWords
from rekindle.formats.images.processors.settings import CLIP_MEAN, CLIP_STD, ProcessorSettings
from rekindle.formats.images.processors.tiled.tiles import cut, grids_between, nearest_grid, tiled_order

CHAT: Final = "internvl_chat"
"""The "model_type" of OpenGVLab's files."""
IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)
"""Mean and deviation of the pixels of ImageNet, by channel."""
_PLACE: Final = "<image>"
"""An image's place in chat templates of OpenGVLab; no token."""


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
        place: text of an image's place in a rendered prompt; empty for the token of an embedding.
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
    place: str = ""

    @property
    def words(self) -> ImageWords:
        """Texts of tokens of images."""
        opening = f"{self.place or self.image}\n"
        return ImageWords(self.image, (self.image, self.start, self.end), self.place, opening)

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

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the placeholder."""
        return self.start + self.image * (self.count(height, width) * self.side**2) + self.end

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layouts of the embeddings: the tiles side by side, if there are any, and the whole image."""
        rows, columns = self.grid(height, width)
        tiles = tiled_order(rows, columns, self.side)
        if rows * columns == 1:
            return (tiles,)
        return tiles, tiles.size + by_row(self.side, self.side)

    def tiles(self, pixels: np.ndarray) -> np.ndarray:
        """Return the tiles of an image by row and the whole image, (tiles, tile, tile, 3) uint8."""
        rows, columns = self.grid(*pixels.shape[:2])
        parts = cut(resize(pixels, (rows * self.tile, columns * self.tile), self.resample), rows, columns)
        if len(parts) == 1:
            return parts
        return np.concatenate([parts, resize(pixels, (self.tile, self.tile), self.resample)[None]])

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image; a segment is a tile."""
        return full_patches(self.normalization.apply(self.tiles(pixels)), self.patch, self.merge)


def read_internvl(settings: ProcessorSettings) -> InternVLImages:
    """Read the rules of a checkpoint. Missing settings have the values of transformers' class.

    Images are always cut: transformers' processor of the family says so, whatever the setting of its image processor.

    Raises:
        CheckpointError: a setting is malformed, or settings do not fit together.
        UnsupportedModel: a setting is not implemented.
    """
    settings.require("do_resize", "do_convert_rgb")
    if settings.config.get("model_type") == CHAT:
        return _read_chat(settings)
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


def _read_chat(settings: ProcessorSettings) -> InternVLImages:
    """Read the rules of OpenGVLab's files, whose numbers of tiles are in config.json.

    Raises:
        CheckpointError: a setting is malformed.
    """
    config, tile = settings.config, settings.side("image_size", 448)
    bounds = ("min_dynamic_patch", 1), ("max_dynamic_patch", 12)
    least, most = (settings.integer(config, name, default) for name, default in bounds)
    is_cut = config.get("dynamic_image_size", True)
    return InternVLImages(
        tile=tile,
        least=least if is_cut else 1,
        most=most if is_cut else 1,
        resample=settings.integer(settings.image, "resample", 3),
        normalization=settings.normalization(IMAGENET_MEAN, IMAGENET_STD),
        patch=settings.side("patch_size", 14),
        merge=round(1 / float(config.get("downsample_ratio", 0.5))),
        place=_PLACE if _PLACE in (settings.tokenizer.chat_template or "") else "",
    )
