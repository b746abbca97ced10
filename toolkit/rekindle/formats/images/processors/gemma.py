"""Images of Gemma 3, squares of one size, and of Gemma 4, in their aspect with a budget of tokens."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processors.arrays import Normalization, by_row, full_patches, resize, resize_to_cells
from rekindle.formats.images.processors.processor import ImageWords
from rekindle.formats.images.processors.settings import ProcessorSettings

LOW_TOKENS: Final = 70
"""Most tokens of an image of Gemma 4 with low detail."""


@dataclass(frozen=True, slots=True)
class PanAndScan:
    """Rules for crops of long images, beside the whole.

    Attributes:
        least: the fewest pixels of a crop's side.
        most: the most crops.
        ratio: the least ratio of the sides of a cropped image.
    """

    least: int
    most: int
    ratio: float

    def count(self, longer: int, shorter: int) -> int:
        """Return the number of crops along the longer side; 0 for none."""
        if longer / shorter < self.ratio:
            return 0
        count = min(longer // self.least, math.floor(longer / shorter + 0.5))
        count = min(self.most, max(2, count))
        return 0 if min(math.ceil(longer / count), shorter) < self.least else count


@dataclass(frozen=True, slots=True)
class Gemma3Images:
    """Rules for the images of a Gemma 3.

    Attributes:
        height, width: pixels of an image for the tower.
        resample: the filter of Pillow.
        normalization: from bytes to the tower's numbers.
        patch: pixels of a patch's side.
        merge: patches of a token, along one side.
        crops: rules for crops of long images; None for none.
        start, image, end: texts of the tokens around an image and of an embedding. The first is the place of an image.
    """

    height: int
    width: int
    resample: int
    normalization: Normalization
    patch: int
    merge: int
    crops: PanAndScan | None = None
    start: str = "<start_of_image>"
    image: str = "<image_soft_token>"
    end: str = "<end_of_image>"

    @property
    def words(self) -> ImageWords:
        """Texts of tokens of images."""
        return ImageWords(self.image, (self.image, self.start, self.end), place=self.start)

    @property
    def segments(self) -> tuple[int, ...]:
        """Patches of one image or crop."""
        return (self.height // self.patch * (self.width // self.patch),)

    @property
    def tokens_of_one(self) -> int:
        """Embeddings of one image or crop."""
        return self.segments[0] // self.merge**2

    @property
    def most_tokens(self) -> int:
        """Embeddings of the largest image."""
        return (1 if self.crops is None else 1 + self.crops.most) * self.tokens_of_one

    def at_low_detail(self) -> "Gemma3Images":
        """Return the rules without crops."""
        return replace(self, crops=None)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of crops; (0, 0) for none."""
        count = 0 if self.crops is None else self.crops.count(max(height, width), min(height, width))
        if not count:
            return 0, 0
        return (1, count) if width >= height else (count, 1)

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the place: the whole image, and its crops."""
        one = f"\n\n{self.start}{self.image * self.tokens_of_one}{self.end}\n\n"
        crops = math.prod(self.grid(height, width))
        if not crops:
            return one
        more = " ".join([one] * crops)
        return f"Here is the original image {one} and here are some crops to help you see better {more}"

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layouts of the embeddings: the crops side by side, if there are any, and the whole image."""
        rows, columns = self.grid(height, width)
        across = self.height // self.patch // self.merge, self.width // self.patch // self.merge
        order = np.arange((1 + rows * columns) * self.tokens_of_one, dtype=np.int32).reshape(-1, *across)
        if not rows:
            return (order[0],)
        crops = order[1:].reshape(rows, columns, *across).swapaxes(1, 2)
        return crops.reshape(rows * across[0], columns * across[1]), order[0]

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image; a segment is the whole image or a crop."""
        rows, columns = self.grid(*pixels.shape[:2])
        parts = [pixels]
        if rows:
            high, wide = math.ceil(pixels.shape[0] / rows), math.ceil(pixels.shape[1] / columns)
            parts += [
                pixels[row * high : (row + 1) * high, column * wide : (column + 1) * wide]
                for row in range(rows)
                for column in range(columns)
            ]
        images = np.stack([resize(part, (self.height, self.width), self.resample) for part in parts])
        return full_patches(self.normalization.apply(images), self.patch, self.merge)


@dataclass(frozen=True, slots=True)
class Gemma4Images:
    """Rules for the images of a Gemma 4.

    Attributes:
        budget: the most tokens of an image.
        most: the most tokens of an image with high detail.
        resample: the filter of Pillow.
        normalization: from bytes to numbers from 0 to 1.
        patch: pixels of a patch's side.
        merge: patches of a token, along one side.
        start, image, end: texts of the tokens around an image, and of an embedding.
    """

    budget: int
    most: int
    resample: int
    normalization: Normalization
    patch: int
    merge: int
    start: str = "<|image>"
    image: str = "<|image|>"
    end: str = "<image|>"

    @property
    def words(self) -> ImageWords:
        """Texts of tokens of images."""
        return ImageWords(self.image, (self.image, self.start, self.end))

    @property
    def segments(self) -> tuple[int, ...]:
        """Patches of a whole image with padding. Images fill their budget, so there is one number."""
        return (self.most * self.merge**2,)

    @property
    def cell(self) -> int:
        """Pixels of a token's side."""
        return self.patch * self.merge

    @property
    def most_tokens(self) -> int:
        """Embeddings of the largest image."""
        return self.most

    def at_low_detail(self) -> "Gemma4Images":
        """Return the rules for an image of few tokens."""
        return replace(self, budget=min(self.budget, LOW_TOKENS))

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the tokens of an image, by the operations of transformers in their order."""
        factor = math.sqrt(self.budget * self.merge**2 * self.patch**2 / (height * width))
        rows, columns = (math.floor(factor * side / self.cell) for side in (height, width))
        if rows and columns:
            return rows, columns
        if height < width:
            return 1, min(math.floor(width / height), self.budget)
        return min(math.floor(height / width), self.budget), 1

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the placeholder."""
        return f"{self.start}{self.image * math.prod(self.grid(height, width))}{self.end}"

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layout of the embeddings: by row."""
        return (by_row(*self.grid(height, width)),)

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image, one segment, with numbers from -1 to 1."""
        image = resize_to_cells(pixels, self.grid(*pixels.shape[:2]), self.cell, self.resample)
        numbers = 2 * (self.normalization.apply(image) - np.float32(0.5))
        return full_patches(numbers[None], self.patch, self.merge)


def read_gemma3(settings: ProcessorSettings) -> Gemma3Images:
    """Read the rules of a Gemma 3. Missing settings have the values of transformers' class.

    Raises:
        CheckpointError: a setting is malformed, or settings do not fit together.
        UnsupportedModel: a setting is not implemented.
    """
    settings.require("do_resize")
    image, tower = settings.image, settings.tower
    patch, side = settings.integer(tower, "patch_size", 16), settings.integer(tower, "image_size", 224)
    size = image.get("size") or {"height": side, "width": side}
    tokens = settings.integer(settings.config, "mm_tokens_per_image", 256)
    crops = None
    if image.get("do_pan_and_scan"):
        crops = PanAndScan(
            settings.integer(image, "pan_and_scan_min_crop_size", 256),
            settings.integer(image, "pan_and_scan_max_num_crops", 4),
            float(image.get("pan_and_scan_min_ratio_to_activate") or 1.2),
        )
    return Gemma3Images(
        height=settings.integer(size, "height", side),
        width=settings.integer(size, "width", side),
        resample=settings.integer(image, "resample", 2),
        normalization=settings.normalization((0.5,) * 3, (0.5,) * 3),
        patch=patch,
        merge=side // patch // math.isqrt(tokens),
        crops=crops,
        start=settings.token("boi_token_index", "boi_token", "<start_of_image>"),
        image=settings.token("image_token_index", "image_token", "<image_soft_token>"),
        end=settings.token("eoi_token_index", "eoi_token", "<end_of_image>"),
    )


def read_gemma4(settings: ProcessorSettings) -> Gemma4Images:
    """Read the rules of a Gemma 4. Missing settings have the values of transformers' class.

    Raises:
        CheckpointError: a setting is malformed, or settings do not fit together.
        UnsupportedModel: a setting is not implemented.
    """
    settings.require("do_resize")
    image, tower = settings.image, settings.tower
    budget = settings.integer(image, "max_soft_tokens", 280)
    return Gemma4Images(
        budget=budget,
        most=budget,
        resample=settings.integer(image, "resample", 3),
        normalization=replace(settings.normalization((0.0,) * 3, (1.0,) * 3), mean=None, std=None),
        patch=settings.integer(image, "patch_size", settings.integer(tower, "patch_size", 16)),
        merge=settings.integer(image, "pooling_kernel_size", settings.integer(tower, "pooling_kernel_size", 3)),
        start=settings.token("boi_token_id", "boi_token", "<|image>"),
        image=settings.token("image_token_id", "image_token", "<|image|>"),
        end=settings.token("eoi_token_id", "eoi_token", "<image|>"),
    )
