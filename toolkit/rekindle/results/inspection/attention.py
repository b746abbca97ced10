"""Attention of a token to the images of its prompt, over each image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rekindle import markup
from rekindle.core.words import percent, quantity
from rekindle.results.inspection.grids import Array, figure

WIDTH = 360
"""Most pixels of the side of an image in the page."""
LISTED = 8
"""The parts of an image with the most attention that the text names."""


@dataclass(frozen=True, slots=True, eq=False)
class LookedImage:
    """An image in the prompt of a look.

    Attributes:
        positions: the positions of its tokens in the prompt, ascending, (tokens,) int32.
        grids: layouts of its tokens over the image, the finest first: (rows, columns) int32, indices of `positions`.
        url: a small copy as a data: URL; empty for none.
        description: its size in words.
    """

    positions: Any
    grids: tuple[Any, ...]
    url: str
    description: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ImageAttention:
    """Attention of a token to the images before it, from `Activations.over_images`.

    Attributes:
        token: the text of the token.
        position: its position in the prompt.
        heads: the (layer, head) of each pattern in the mean.
        maps: for each image, its maps (rows, columns) of float32 over the image, the finest first. Their sums together
            are the share of the image in the attention of the token.
        images: the images.
    """

    token: str
    position: int
    heads: tuple[tuple[int, int], ...]
    maps: tuple[tuple[Array, ...], ...]
    images: tuple[LookedImage, ...]

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each image in the attention of the token, from 0 to 1."""
        return tuple(sum(float(each.sum()) for each in maps) for maps in self.maps)

    def __repr__(self) -> str:
        lines = [f"<rekindle.ImageAttention: {self._title()}"]
        for place, (maps, share) in enumerate(zip(self.maps, self.shares, strict=True)):
            lines.append(f"  image {place}: {percent(share)} of the attention")
            lines += [f"    {_size(each)}, most at {'; '.join(_strongest(each, 3))}" for each in maps]
        return "\n".join(lines) + ">"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        sections = [
            self._section(place, of_image, image)
            for place, (of_image, image) in enumerate(zip(self.maps, self.images, strict=True))
        ]
        return markup.bundle(repr(self), markup.card("Attention to images", self._title(), *sections))

    def _title(self) -> str:
        if len(self.heads) == 1:
            ((layer, head),) = self.heads
            return f"token {self.position} {self.token!r}, head {head} in layer {layer}"
        return f"token {self.position} {self.token!r}, mean of {len(self.heads)} heads"

    def _section(self, place: int, maps: Sequence[Array], image: LookedImage) -> str:
        """Return the maps of an image side by side, and their numbers."""
        share = percent(self.shares[place])
        pictures, lines = [], []
        for each in maps:
            words = f"image {place}, {_size(each)}: most attention at {'; '.join(_strongest(each, LISTED))}"
            pictures.append(overlay(each, image, words))
            lines.append(f"{_size(each)}, by row from the top:")
            lines += [", ".join(map(figure, row)) for row in each.tolist()]
        row = f'<div style="display:flex;flex-wrap:wrap;align-items:flex-start;gap:0.8em">{"".join(pictures)}</div>'
        title = f"image {place}: {share} of the attention of the token; the deeper the shade, the more"
        folded = markup.folded(f"weights of image {place}", markup.preformatted("\n".join(lines)))
        return f'<div style="margin:0.8em 0 0 0">{markup.note(title)}{row}{folded}</div>'


def over_images(
    patterns: Array,
    heads: tuple[tuple[int, int], ...],
    tokens: Sequence[str],
    position: int,
    images: tuple[LookedImage, ...],
) -> ImageAttention:
    """Return the mean attention of a token to images.

    Args:
        patterns: (heads, tokens, tokens), the weight of each earlier token (last axis) for each token.
        heads: the (layer, head) of each pattern.
        tokens: the text of each token.
        position: the position of the token.
        images: the images.
    """
    row = patterns[:, position].mean(axis=0)
    maps = tuple(tuple(row[image.positions][grid] for grid in image.grids) for image in images)
    return ImageAttention(tokens[position], position, heads, maps, images)


def overlay(values: Array, image: LookedImage, title: str) -> str:
    """Return a picture of an image below shades.

    Args:
        values: (rows, columns), each for a part of the image.
        image: the image.
        title: the description of the picture.
    """
    rows, columns = values.shape
    scale = WIDTH / max(rows, columns)
    width, height, most = scale * columns, scale * rows, float(values.max(initial=0)) or 1.0
    parts = []
    if image.url:
        place = f'width="{width:.1f}" height="{height:.1f}" preserveAspectRatio="none"'
        parts.append(f'<image href="{markup.visible(image.url)}" {place}/>')
    for (row, column), value in np.ndenumerate(values):
        words = markup.visible(f"row {row}, column {column}: {figure(float(value))}")
        place = f'x="{scale * column:.1f}" y="{scale * row:.1f}" width="{scale:.1f}" height="{scale:.1f}"'
        shade = f'fill="rgba({markup.EMBER},{0.85 * float(value) / most:.3f})"'
        parts.append(f'<rect {place} {shade} stroke="rgba(128,128,128,0.25)"><title>{words}</title></rect>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" aria-label="{markup.visible(title)}" '
        f'style="display:block;max-width:100%;height:auto;margin:0.2em 0 0.3em 0">{"".join(parts)}</svg>'
    )


def _size(values: Array) -> str:
    rows, columns = values.shape
    return f"{quantity(rows, 'row')} x {quantity(columns, 'column')}"


def _strongest(values: Array, count: int) -> list[str]:
    """Return the places with the most attention and their weights as text, the strongest first."""
    places = np.argsort(values, axis=None, kind="stable")[::-1][:count]
    pairs = zip(*np.unravel_index(places, values.shape), strict=True)
    return [f"row {row}, column {column} ({figure(float(values[row, column]))})" for row, column in pairs]
