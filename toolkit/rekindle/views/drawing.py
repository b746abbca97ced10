"""A picture that a cell shows: SVG that takes its colours from the page around it, and the same as text."""

from collections.abc import Iterable
from dataclasses import dataclass

from rekindle.core.markup import Bundle, bundle, visible

WIDTH, LEAST_WIDTH = 860, 720
"""The width of a picture in pixels, and the least to which a narrow page may shrink it: there its text is 10 px high.
A page that is narrower than that scrolls it."""
CHARACTER = 7.3
"""The width of a character of 12 px monospace, in pixels."""
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
        svg: the picture as an SVG element.
        text: the same as lines of text.
    """

    svg: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        text = f'<pre class="{TEXT_CLASS}" style="white-space:pre;overflow-x:auto">{visible(self.text)}</pre>'
        drawn = f'<div class="{PICTURE_CLASS}" style="display:none;overflow-x:auto">{self.svg}</div>'
        return bundle(self.text, f"{SHOW_ONE}{text}{drawn}")


def picture(height: float, title: str, parts: Iterable[str]) -> str:
    """Join SVG elements to one picture of `WIDTH` pixels; `title` says as text what it shows."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-label="{visible(title)}" font-family="monospace" font-size="12" '
        f'fill="currentColor" style="max-width:100%;min-width:{LEAST_WIDTH}px;height:auto">{"".join(parts)}</svg>'
    )


def words(x: float, y: float, text: str) -> str:
    """Return text as SVG. Its first character starts at `x` and stands on `y`."""
    return f'<text x="{x:.1f}" y="{y:.0f}" style="white-space:pre">{visible(text)}</text>'


def tooltip(text: str) -> str:
    """Return what an SVG element shows when it is pointed at; nothing for an empty text."""
    return f"<title>{visible(text)}</title>" if text else ""
