"""The config of a vision tower."""

from dataclasses import dataclass

from rekindle.core.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """An encoder of patches, and the projector to embeddings of a decoder.

    Attributes:
        encoder: the layers and norms, like a decoder's with patches as tokens, without a vocabulary. The names of
            embedding and head stand for the product before the first layer, and for the projector.
        patch_size: the side of a patch in pixels.
        channels: the numbers of a pixel.
        merge: the side of a square of patches with a common embedding, in patches.
        output_size: the size of an embedding.
    """

    encoder: ModelConfig
    patch_size: int
    channels: int
    merge: int
    output_size: int

    @property
    def width(self) -> int:
        """The numbers of a token of an image in the buffer of embeddings."""
        return self.output_size

    @property
    def patch_width(self) -> int:
        """The numbers of a patch."""
        return self.channels * self.patch_size**2
