"""Tables and pictures of the tutorials, for the output of a cell."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rekindle import markup
from rekindle.views.drawing import CHARACTER, Drawing, svg_text, tooltip

ORANGE, BLUE, GREEN, GREY = "rgb(230,140,20)", "rgb(40,130,220)", "rgb(60,160,90)", "rgb(130,130,130)"
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
        column = _box(x, 130 - height, width - 3, height, fill=ORANGE if allowed is None else BLUE)
        label = f'<g transform="translate({x + width / 2:.1f},140) rotate(50)">{svg_text(0, 4, text)}</g>'
        parts.append(f"<g>{tooltip(f'{text}: {note}')}{column}{label}</g>")
        lines.append(f"{text!r:12} {note}")
    return Drawing("Allowed tokens", "in each place", 210, "".join(parts), "\n".join(lines))


def masks(masks_by_name: Mapping[str, Mask]) -> Drawing:
    """Draw up to three masks side by side: a dot for each token of the vocabulary, dark where it is allowed."""
    rows = len(next(iter(masks_by_name.values()))) // SIDE
    parts, lines = [], []
    for place, (name, mask) in enumerate(masks_by_name.items()):
        x = place * 290 + 4
        parts += [svg_text(x, 12, name), _dots(mask.reshape(rows, SIDE), x)]
        lines.append(f"{name}: {mask.sum():,} of {mask.size:,} tokens may come")
    return Drawing("Masks", "", 20 + rows + 8, "".join(parts), "\n".join(lines))


def _dots(mask: Mask, x: int) -> str:
    """Draw a mask of shape (rows, SIDE): each run of allowed tokens is a rectangle."""
    parts = [_box(x, 20, SIDE, len(mask), fill="none", edge=GREY)]
    for row, line in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(int), [0]])))
        for first, last in edges.reshape(-1, 2):
            width, height = max(last - first, 2), 2 if last - first < 3 else 1
            parts.append(f'<rect x="{x + first}" y="{20 + row}" width="{width}" height="{height}"/>')
    return "".join(parts)


def bars(title: str, rows: Iterable[tuple[str, float, str]], expected: Sequence[float] = ()) -> Drawing:
    """Draw a bar for each row.

    Args:
        title: heading above the bars.
        rows: names, lengths of the bars, and texts beside them.
        expected: for each row, the place of a line across its bar.
    """
    names, values, notes = zip(*rows, strict=True)
    ends = [max(pair) for pair in zip(values, expected or values, strict=True)]
    scale, start = 440 / max(ends), 14 + CHARACTER * max(map(len, names))
    parts, lines = [svg_text(4, 14, title)], [title]
    for row, (name, value, note, end) in enumerate(zip(names, values, notes, ends, strict=True), 1):
        parts += [
            svg_text(4, 22 * row + 14, name),
            _box(start, 22 * row + 2, scale * value, 16, fill=BLUE, opacity=0.6),
        ]
        if expected:
            line = f"M{start + scale * expected[row - 1]:.1f} {22 * row}v20"
            parts.append(f'<path d="{line}" stroke="currentColor" stroke-width="2"/>')
        parts.append(svg_text(start + 8 + scale * end, 22 * row + 14, note))
        lines.append(f"{name}  {note}")
    return Drawing("Chart", title, 22 * len(lines) + 4, "".join(parts), "\n".join(lines))


def reliability(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Drawing:
    """Draw the reliability curves of probabilities beside the diagonal, each in a colour of its own.

    Args:
        curves: by name, the mean probability and the share of true labels of each group.
    """
    side, left, top = 260, 40, 12
    parts = [_box(left, top, side, side, fill="none", edge=GREY)]
    parts.append(f'<path d="M{left} {top + side}l{side} -{side}" stroke="{GREY}" stroke-dasharray="4 4"/>')
    for tick in (0, 0.5, 1):
        parts.append(svg_text(left + side * tick - 9, top + side + 16, f"{tick:.1f}"))
        parts.append(svg_text(left - 26, top + side * (1 - tick) + 4, f"{tick:.1f}"))
    parts.append(svg_text(left, top + side + 34, "mean probability of a group, against its share of true labels"))
    lines = []
    for place, ((name, points), colour) in enumerate(zip(curves.items(), (ORANGE, BLUE, GREEN), strict=False)):
        line = " ".join(f"{left + side * x:.1f},{top + side * (1 - y):.1f}" for x, y in points)
        dots = "".join(
            f'<circle cx="{left + side * x:.1f}" cy="{top + side * (1 - y):.1f}" r="4">'
            f"{tooltip(f'{name}: {x:.2f} said, {y:.2f} true')}</circle>"
            for x, y in points
        )
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}"/><g fill="{colour}">{dots}</g>')
        parts.append(_box(left + side + 24, top + 20 * place, 12, 12, fill=colour))
        parts.append(svg_text(left + side + 44, top + 20 * place + 11, name))
        lines += [name, *(f"  {x:.2f} said, {y:.2f} true" for x, y in points)]
    return Drawing("Reliability", ", ".join(curves), top + side + 42, "".join(parts), "\n".join(lines))


def boxes(legend: str, rows: Iterable[tuple[str, str, str]], colours: Mapping[str, str]) -> Drawing:
    """Draw a row of boxes for each of some pages, one for each place in it.

    Args:
        legend: the meaning of the characters, for the text.
        rows: names of the pages, a character for each place, and notes.
        colours: colours by character. The box of any other character is empty, and that of "x" is crossed.
    """
    rows = list(rows)
    parts, lines = [], [legend]
    for row, (name, places, note) in enumerate(rows):
        y = 20 * row
        parts += [svg_text(4, y + 14, name), svg_text(90 + 22 * len(places), y + 14, note)]
        for place, kind in enumerate(places):
            x = 74 + 22 * place
            parts.append(_box(x, y + 2, 20, 15, fill=colours.get(kind, "none"), opacity=0.5, edge=GREY))
            if kind == "x":
                parts.append(f'<path d="M{x} {y + 2}l20 15m0 -15l-20 15" stroke="{GREY}" stroke-opacity="0.4"/>')
        lines.append(f"{name:8}  {places}  {note}")
    return Drawing("Pages", "", 20 * len(rows) + 2, "".join(parts), "\n".join(lines))


STATES = {  # colour, its opacity, width of the edge
    "free": ("currentColor", 0, 1),
    "own": ("currentColor", 0.15, 1),
    "cached": (f"rgb({markup.TIERS['device']})", 0.22, 1),
    "locked": (f"rgb({markup.TIERS['device']})", 0.22, 3),
    "shared": (f"rgb({markup.TIERS['device']})", 0.22, 1),
    "staged": (f"rgb({markup.TIERS['host']})", 0.3, 1),
}
"""Looks of a page by its state."""


def pool(states: Mapping[int, tuple[str, str]], staged: Sequence[str] = ()) -> Drawing:
    """Draw the pages of a pool, eight in a row.

    Args:
        states: state and text of each page; the states are those of `STATES`.
        staged: texts of pages beside the pool, drawn below it.
    """
    parts = [_page((page - 1) % 8, (page - 1) // 8, str(page), *states[page]) for page in states]
    parts += [_page(column, 2.3, "", "staged", text) for column, text in enumerate(staged)]
    lines = [f"{page:2} {state:6} {text!r}" for page, (state, text) in states.items()]
    lines += [f"beside the pool, staged: {text!r}" for text in staged]
    return Drawing("Pool", "", 154 if staged else 94, "".join(parts), "\n".join(lines))


def page_tables(tables: Mapping[str, Sequence[int]], page_size: int) -> Drawing:
    """Draw the page table of each request as a row; pages of several requests are orange."""
    counts = Counter(page for table in tables.values() for page in set(table))
    parts, lines = [], []
    for row, (name, pages) in enumerate(tables.items()):
        parts.append(svg_text(4, 46 * row + 26, name))
        for column, page in enumerate(pages):
            positions = f"{column * page_size} to {(column + 1) * page_size - 1}"
            parts.append(_page(column + 1, row, str(page), "shared" if counts[page] > 1 else "own", positions))
        lines.append(f"{name:6} pages {list(pages)}")
    return Drawing("Page tables", "", 46 * len(tables) + 2, "".join(parts), "\n".join(lines))


def step_on_devices(stages: Sequence[tuple[str, str | None]], devices: int) -> Drawing:
    """Draw a step from the left to the right, with a row for each device.

    Args:
        stages: for each stage its name, and the collective after it; the stage "…" computes nothing.
        devices: number of devices.
    """
    width, bottom = 660 / len(stages), 24 + 22 * devices
    parts = [svg_text(0, 38 + 22 * device, f"cpu:{device}") for device in range(devices)]
    for place, (name, collective) in enumerate(stages):
        x = 60 + place * width
        parts.append(svg_text(x, 14, name))
        rows = range(devices if name != "…" else 0)
        parts += [_box(x, 26 + 22 * device, width - 14, 14, fill=BLUE, opacity=0.45) for device in rows]
        if collective is not None:
            colour = ORANGE if collective == "all_reduce" else GREEN
            parts.append(_box(x + width - 11, 20, 6, bottom - 18, fill=colour))
    parts.append(svg_text(60, bottom + 22, "orange: all-reduce, green: all-gather"))
    marks = {"all_reduce": " +", "all_gather": " U", None: ""}
    text = " | ".join(name + marks[collective] for name, collective in stages)
    return Drawing(
        "Step", "on several devices", bottom + 30, "".join(parts), f"{text}\n+ is an all-reduce, U an all-gather"
    )


def _page(column: int, row: float, number: str, state: str, text: str) -> str:
    """Draw one page of a pool, with its number, its state and the beginning of its text."""
    (colour, opacity, edge), x, y = STATES[state], 2 + column * 106, 2 + row * 46
    look = f'fill="{colour}" fill-opacity="{opacity}" stroke="{colour}" stroke-width="{edge}"'
    labels = svg_text(x + 6, y + 16, f"{number:<4}{state:>8}") + svg_text(x + 6, y + 33, text.strip()[:12])
    return f'<g>{tooltip(text)}<rect x="{x}" y="{y}" width="100" height="40" rx="4" {look}/>{labels}</g>'


def _box(x: float, y: float, width: float, height: float, *, fill: str, opacity: float = 1, edge: str = "none") -> str:
    """Draw a rectangle."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{fill}" fill-opacity="{opacity}" stroke="{edge}"/>'
