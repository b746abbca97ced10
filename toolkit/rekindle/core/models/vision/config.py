"""The config of a vision tower: its encoder, and the steps of its projector."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rekindle.core.models.config import Activation, ModelConfig, Norm


@dataclass(frozen=True, slots=True)
class Merge:
    """Step of a projector: join the patches of each square into one vector.

    Attributes:
        side: the patches along a side.
        by_channel: whether the numbers of a channel are together, rather than those of a patch.
    """

    side: int
    by_channel: bool = False


@dataclass(frozen=True, slots=True)
class Pool:
    """Step of a projector: take the mean of the patches of each square.

    Attributes:
        side: the patches along a side.
    """

    side: int


@dataclass(frozen=True, slots=True)
class Scaling:
    """Step of a projector: normalise the numbers of each vector, with learned weights.

    Attributes:
        name: the name of the weights.
        norm: the normalisation.
    """

    name: str
    norm: Norm


@dataclass(frozen=True, slots=True)
class Product:
    """Step of a projector: multiply by a learned matrix.

    Attributes:
        name: the name of the matrix.
        size: the numbers of a result.
        bias: whether a bias is added.
        transposed: whether the matrix is stored as (in, out).
    """

    name: str
    size: int
    bias: bool = False
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Activate:
    """Step of a projector: apply an activation."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class Multiply:
    """Step of a projector: multiply all numbers by a factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Standardize:
    """Step of a projector: subtract learned numbers, and multiply by others.

    Attributes:
        bias, scale: the full names of the subtrahends and of the factors.
    """

    bias: str
    scale: str


Step: TypeAlias = Merge | Pool | Scaling | Product | Activate | Multiply | Standardize
"""A step of a projector, from vectors of patches to embeddings."""


@dataclass(frozen=True, slots=True)
class VisionTap:
    """Summands for the tokens of an image behind one of the decoder's first layers (Meng et al., 2024).

    Attributes:
        layer: the layer of the tower with their source as its result.
        steps: the steps to them, like those of a projector.
    """

    layer: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """An encoder of patches, and the projector to embeddings of a decoder.

    Attributes:
        encoder: the layers and norms, like a decoder's with patches as tokens, without a vocabulary. The name of the
            embedding stands for the product before the first layer. A table of positions is for a square of patches.
            The rope of the layers rotates the first half of a head's pairs by the row, the others by the column.
        patch_size: the side of a patch in pixels.
        channels: the numbers of a pixel, of all frames with a common patch.
        projector: the steps from the last layer to embeddings; the last product has their size.
        patch_bias: whether the product before the first layer adds a bias.
        input_norm: the name of the norm before the first layer; None for none.
        alternating: whether the frequencies of the rope go to rows and columns in turns; else both have every other.
        columns_first: whether columns come before rows in the rope and in the tables of positions.
        tables: 2 for a table of positions for each axis, of which both rows are added; 1 for one of a square.
        stretched: the way to stretch the table of positions over a whole image: with the table's corners in those of
            the image, or with means of rows and columns where an image has fewer; None for a table as it is.
        taps: the sources of summands behind the decoder's first layers, in the order of these.
        window: the side of the squares of patches that attend to themselves in some layers.
        windowed: the indices of these layers.
        class_token: the name of a vector before the patches of a segment, which has the first row of the table of
            positions, and no embedding; None for none.
        branch_scales: the names in a layer of factors of the results of attention and of the feed-forward layer, which
            are multiplied into their last products when these are loaded; None for none.
        features: the layers with joined results for the projector, by number from 1, or 0 for the input of the first
            layer; empty for the last layer alone.
        newline: the name of the embeddings of segments without patches; None for zeros.
    """

    encoder: ModelConfig
    patch_size: int
    channels: int
    projector: tuple[Step, ...]
    patch_bias: bool = True
    input_norm: str | None = None
    alternating: bool = False
    columns_first: bool = False
    tables: int = 1
    stretched: Literal["corners", "means"] | None = None
    taps: tuple[VisionTap, ...] = ()
    window: int = 1
    windowed: frozenset[int] = frozenset()
    class_token: str | None = None
    branch_scales: tuple[str, str] | None = None
    features: tuple[int, ...] = ()
    newline: str | None = None

    @property
    def width(self) -> int:
        """The numbers of a token of an image in the buffer of embeddings."""
        return self.output_size * (1 + len(self.taps))

    @property
    def patch_width(self) -> int:
        """The numbers of a patch."""
        return self.channels * self.patch_size**2

    @property
    def merge(self) -> int:
        """The side of a square of patches with a common embedding, in patches."""
        return math.prod(step.side for step in self.projector if isinstance(step, Merge | Pool))

    @property
    def output_size(self) -> int:
        """The size of an embedding."""
        return [step.size for step in self.projector if isinstance(step, Product)][-1]
