"""Grids of shaded cells with names of rows and columns, as SVG in the colours of the page."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rekindle import markup
from rekindle.core.words import one_line

CELL, CHARACTER, LONGEST = 14, 6.6, 10
"""The side of a cell and the width of a character, in pixels, and the most characters of a name."""
MOST = 64
"""The most rows and columns of a grid: the last ones."""

Array = np.ndarray[Any, np.dtype[np.float32]]


def name_of(token: str) -> str:
    """Return a short name of a token, with marks for spaces at its beginning and for line ends."""
    text = one_line(token, LONGEST)
    return f"␣{text[1:]}" if text.startswith(" ") else text or "∅"


def figure(value: float) -> str:
    """Format a number with three digits, such as "0.0123", "1.23" or "22,700"."""
    if abs(value) < 100 or not math.isfinite(value):
        return f"{value:.3g}"
    return f"{round(value, 2 - math.floor(math.log10(abs(value)))):,.0f}"


def log_shades(values: Array) -> Array:
    """Return positive numbers from 0 to 1 by their logarithms; at least a factor of 10 is between 0.1 and 1."""
    logs: Array = np.log(np.maximum(values, np.finfo(np.float32).tiny))
    most = float(logs.max(initial=-math.inf, where=values > 0))
    least = min(float(logs.min(initial=math.inf, where=values > 0)), most - math.log(10))
    shades: Array = np.where(values > 0, 0.1 + 0.9 * (logs - least) / (most - least), 0).astype(np.float32)
    return shades


def grid(values: Array, shades: Array, rows: Sequence[str], columns: Sequence[str], title: str) -> str:
    """Return a picture of numbers.

    Args:
        values: (rows, columns).
        shades: the darkness of each number, from 0 to 1.
        rows, columns: their names.
        title: the description of the picture.
    """
    values, shades, rows, columns = values[-MOST:, -MOST:], shades[-MOST:, -MOST:], rows[-MOST:], columns[-MOST:]
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
    for row, column in np.argwhere(shades >= 0.005):
        shade = min(1.0, float(shades[row, column]))
        words = markup.visible(f"{rows[row]} · {columns[column]}: {figure(float(values[row, column]))}")
        place = f'x="{margin + CELL * column:.1f}" y="{top + CELL * row:.1f}" width="{CELL - 1}" height="{CELL - 1}"'
        parts.append(
            f'<rect {place} fill="rgba({markup.COOL},{0.05 + 0.95 * shade:.3f})"><title>{words}</title></rect>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" aria-label="{markup.visible(title)}" font-size="11" fill="currentColor" '
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
        f"{name}: {', '.join(f'{column} {figure(value)}' for column, value in zip(columns, row, strict=True) if value)}"
        for name, row in zip(rows, values.tolist(), strict=True)
    )
    return markup.folded(title, markup.preformatted("\n".join(lines)))
