"""Tables and pictures of the tutorials, for the output of a cell."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rekindle.core import markup
from rekindle.views.drawing import Drawing, svg_text, tooltip

ORANGE, BLUE = "rgb(230,120,0)", "rgb(70,130,180)"
COLUMNS = 840
"""The pixels of all columns of a chart together."""
SIDE = 256
"""Tokens in a row of a mask; each is a pixel."""

Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""Allowed tokens, (vocabulary,)."""


@dataclass(frozen=True, repr=False)
class Table:
    """Table for the output of a cell.

    Attributes:
        html: its HTML.
        text: the same for terminals.
    """

    html: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(self.text, self.html)


def table(rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> Table:
    """Draw a table. Columns of numbers are aligned to the right."""
    cells = [[str(value) for value in row] for row in rows]
    return Table(markup.table(cells, head=head), "\n".join(" | ".join(row) for row in ([head] if head else []) + cells))


def allowed_chart(tokens: Sequence[tuple[str, int | None]]) -> Drawing:
    """Draw a column for each token: the number of tokens allowed in its place, on a logarithmic scale.

    Args:
        tokens: texts and numbers of the tokens; without a number, a token was given, and is orange.
    """
    width, parts, lines = COLUMNS / len(tokens), [], []
    for place, (text, allowed) in enumerate(tokens):
        note = "given" if allowed is None else f"{allowed:,} allowed"
        height, x = 4 + 26 * float(np.log10(allowed or 1)), 4 + place * width
        column = (
            f'<rect x="{x:.1f}" y="{130 - height:.1f}" width="{width - 3:.1f}" height="{height:.1f}" '
            f'fill="{ORANGE if allowed is None else BLUE}"/>'
        )
        label = f'<g transform="translate({x + width / 2:.1f},140) rotate(50)">{svg_text(0, 4, text)}</g>'
        parts.append(f"<g>{tooltip(f'{text}: {note}')}{column}{label}</g>")
        lines.append(f"{text!r:12} {note}")
    return Drawing("allowed tokens in each place", 210, "".join(parts), "\n".join(lines))


def masks(masks_by_name: Mapping[str, Mask]) -> Drawing:
    """Draw up to three masks side by side: a dot for each token of the vocabulary, dark where it is allowed."""
    rows = len(next(iter(masks_by_name.values()))) // SIDE
    parts, lines = [], []
    for place, (name, mask) in enumerate(masks_by_name.items()):
        x = place * 290 + 4
        parts += [svg_text(x, 12, name), _dots(mask.reshape(rows, SIDE), x)]
        lines.append(f"{name}: {mask.sum():,} of {mask.size:,} tokens may come")
    return Drawing("masks", 20 + rows + 8, "".join(parts), "\n".join(lines))


def _dots(mask: Mask, x: int) -> str:
    """Draw a mask of shape (rows, SIDE): each run of allowed tokens is a rectangle."""
    frame = f'x="{x}" y="20" width="{SIDE}" height="{len(mask)}"'
    parts = [f'<rect {frame} fill="none" stroke="currentColor" stroke-width="0.5"/>']
    for row, line in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(int), [0]])))
        for first, last in edges.reshape(-1, 2):
            width, height = max(last - first, 2), 2 if last - first < 3 else 1
            parts.append(f'<rect x="{x + first}" y="{20 + row}" width="{width}" height="{height}"/>')
    return "".join(parts)
