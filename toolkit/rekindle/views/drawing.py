"""A picture that a cell shows: SVG that takes its colours from the page around it, and the same as text."""

from collections.abc import Sequence
from dataclasses import dataclass

from rekindle.core.markup import Bundle, bundle, visible

WIDTH, LEAST_WIDTH = 860, 720
"""The width of a picture in pixels, and the least to which a narrow page may shrink it: there its text is 10 px high.
A page that is narrower than that scrolls it."""
CHARACTER = 7.3
"""The width of a character of 12 px monospace, in pixels."""
HEADING = 24
"""Pixels: how high the name of a drawing among others is."""
TEXT_CLASS, PICTURE_CLASS = "rekindle-text", "rekindle-picture"
"""The CSS classes of the two forms, of which a page shows one."""
SHOW_ONE = (
    f"<style>.{TEXT_CLASS}:has(+.{PICTURE_CLASS} svg){{display:none}}"
    f".{PICTURE_CLASS}:has(svg){{display:block!important}}</style>"
)
"""The only style sheet among all results. In a notebook that is not trusted, JupyterLab takes it away, and the SVG too,
but leaves the words of the SVG in a heap. The text is then shown instead, as the elements' own styles say."""


@dataclass(frozen=True, slots=True, repr=False)
class Drawing:
    """A picture that a cell shows.

    Attributes:
        title: what it shows, in words.
        height: of the picture, in pixels; all are as wide.
        parts: the SVG elements that it is made of.
        text: the same as lines of text.
    """

    title: str
    height: float
    parts: str
    text: str

    def __repr__(self) -> str:
        return self.text

    @property
    def svg(self) -> str:
        """The picture as an SVG element."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:.0f}" width="{WIDTH}" '
            f'height="{self.height:.0f}" role="img" aria-label="{visible(self.title)}" font-family="monospace" '
            'font-size="12" fill="currentColor" '
            f'style="max-width:100%;min-width:{LEAST_WIDTH}px;height:auto">{self.parts}</svg>'
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        text = f'<pre class="{TEXT_CLASS}" style="white-space:pre;overflow-x:auto">{visible(self.text)}</pre>'
        drawn = f'<div class="{PICTURE_CLASS}" style="display:none;overflow-x:auto">{self.svg}</div>'
        return bundle(self.text, f"{SHOW_ONE}{text}{drawn}")


def stacked(title: str, drawings: Sequence[tuple[str, Drawing]]) -> Drawing:
    """Return drawings one below the other as one, each below its name."""
    parts, height = [], 0.0
    for name, drawing in drawings:
        body = f'<g transform="translate(0 {height + HEADING:.0f})">{drawing.parts}</g>'
        parts.append(words(4, height + HEADING - 6, name) + body)
        height += HEADING + drawing.height
    return Drawing(title, height, "".join(parts), "\n".join(f"{name}\n{drawing.text}" for name, drawing in drawings))


def words(x: float, y: float, text: str) -> str:
    """Return text as SVG. Its first character starts at `x` and stands on `y`."""
    return f'<text x="{x:.1f}" y="{y:.0f}" style="white-space:pre">{visible(text)}</text>'


def tooltip(text: str) -> str:
    """Return what an SVG element shows when it is pointed at; nothing for an empty text."""
    return f"<title>{visible(text)}</title>" if text else ""
