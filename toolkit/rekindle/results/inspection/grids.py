"""Grids of shaded cells with names of rows and columns, as SVG in the colours of the page."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rekindle.core import markup

CELL, CHARACTER, LONGEST = 14, 6.6, 10
"""The side of a cell and the width of a character, in pixels, and the most characters of a name."""
MOST = 64
"""The most rows and columns of a grid: the last ones."""

Array = np.ndarray[Any, np.dtype[np.float32]]


def name_of(token: str) -> str:
    """Return a short name of a token, with marks for spaces at its beginning and for line ends."""
    text = markup.one_line(token, LONGEST)
    return f"␣{text[1:]}" if text.startswith(" ") else text or "∅"


def grid(values: Array, rows: Sequence[str], columns: Sequence[str], title: str) -> str:
    """Return a picture of numbers from 0 to 1, the darker the larger.

    Args:
        values: (rows, columns).
        rows, columns: their names.
        title: the description of the picture.
    """
    values, rows, columns = values[-MOST:, -MOST:], rows[-MOST:], columns[-MOST:]
    margin = 8 + CHARACTER * max((len(name) for name in rows), default=0)
    top = 8 + CHARACTER * max((len(name) for name in columns), default=0)
    width, height = margin + CELL * len(columns) + 8, top + CELL * len(rows) + 4
    parts = [
        f'<text x="{margin - 4:.1f}" y="{top + CELL * row + 10:.1f}" text-anchor="end">{markup.visible(name)}</text>'
        for row, name in enumerate(rows)
    ]
    for column, name in enumerate(columns):
        x, y = margin + CELL * (column + 0.75), top - 4
        parts.append(f'<text transform="translate({x:.1f},{y:.1f}) rotate(-90)">{markup.visible(name)}</text>')
    for row, column in np.argwhere(values >= 0.005):
        value = min(1.0, float(values[row, column]))
        words = markup.visible(f"{rows[row]} · {columns[column]}: {value:.3f}")
        place = f'x="{margin + CELL * column:.1f}" y="{top + CELL * row:.1f}" width="{CELL - 1}" height="{CELL - 1}"'
        parts.append(
            f'<rect {place} fill="rgba({markup.COOL},{0.05 + 0.95 * value:.3f})"><title>{words}</title></rect>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" aria-label="{markup.visible(title)}" font-family="monospace" font-size="11" fill="currentColor" '
        f'style="display:block;max-width:100%;height:auto;margin:0.2em 0 0.3em 0">{"".join(parts)}</svg>'
    )


def numbers(values: Array, rows: Sequence[str], columns: Sequence[str], title: str) -> str:
    """Return the numbers of a grid as folded HTML, for keyboards, touch screens and screen readers.

    Args:
        values, rows, columns: as in `grid`, in any unit.
        title: the clickable line.
    """
    values, rows, columns = values[-MOST:, -MOST:], rows[-MOST:], columns[-MOST:]
    lines = (
        f"{name}: {', '.join(f'{column} {value:.3g}' for column, value in zip(columns, row, strict=True) if value)}"
        for name, row in zip(rows, values.tolist(), strict=True)
    )
    return markup.folded(title, markup.preformatted("\n".join(lines)))
