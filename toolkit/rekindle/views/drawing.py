"""A picture that a cell shows: SVG that takes its colours from the page it is put into, and the same as text."""

from collections.abc import Iterable
from dataclasses import dataclass

from rekindle.markup import Bundle, bundle, visible

WIDTH = 860
"""Pixels of a picture."""
CHARACTER = 7.3
"""Pixels of a character of 12 px monospace."""
TEXT, PICTURE = "rekindle-text", "rekindle-picture"
"""Classes of the two of which a page shows one."""
ONE_OF_THEM = (
    f"<style>.{TEXT}:has(+.{PICTURE} svg){{display:none}}.{PICTURE}:has(svg){{display:block!important}}</style>"
)
"""The one style sheet of all results. In a notebook that is not trusted, JupyterLab takes it away, and the SVG too, but
leaves the words of that in a heap: the text is shown in its place, as the styles of the elements themselves have it."""


@dataclass(frozen=True, slots=True, repr=False)
class Drawing:
    """A picture that a cell shows.

    Attributes:
        svg: as an SVG element; its colours are those of the page it is put into.
        text: as lines of text.
    """

    svg: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        text = f'<pre class="{TEXT}" style="white-space:pre;overflow-x:auto">{visible(self.text)}</pre>'
        drawn = f'<div class="{PICTURE}" style="display:none;overflow-x:auto">{self.svg}</div>'
        return bundle(self.text, f"{ONE_OF_THEM}{text}{drawn}")


def picture(height: float, title: str, parts: Iterable[str]) -> str:
    """SVG elements as one picture of `WIDTH` pixels; `title` is what it is of, as text."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-label="{visible(title)}" font-family="monospace" font-size="12" '
        f'fill="currentColor" style="max-width:100%;height:auto">{"".join(parts)}</svg>'
    )


def words(x: float, y: float, text: str) -> str:
    """Text whose first character starts at `x`, standing on `y`."""
    return f'<text x="{x:.1f}" y="{y:.0f}" style="white-space:pre">{visible(text)}</text>'
