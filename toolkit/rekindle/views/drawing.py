"""Pictures for notebook cells: SVG in the colours of the surrounding page, with a text alternative."""

from collections.abc import Sequence
from dataclasses import dataclass

from rekindle.markup import Bundle, bundle, card, visible

WIDTH, MIN_WIDTH = 860, 720
"""The width of a picture in pixels, and its minimum on a narrow page, with text 10 px high.

A page below the minimum width scrolls the picture."""
NARROW = 350
"""The minimum width of a fluid picture in pixels."""
CHARACTER = 7.3
"""The width of a character of the text, 12 px high, in pixels: the average of wide ones, and more than of most."""
HEADING = 24
"""The height of a heading in a stack of drawings, in pixels."""
TEXT_CLASS, PICTURE_CLASS = "rekindle-text", "rekindle-picture"
"""The CSS classes of the text alternative and of the picture; a page shows one of the two."""
SHOW_ONE = (
    f"<style>.{TEXT_CLASS}:has(+.{PICTURE_CLASS} svg){{display:none}}"
    f".{PICTURE_CLASS}:has(svg){{display:block!important}}"
    f"@media print{{.{PICTURE_CLASS} svg{{min-width:0!important}}}}</style>"
)
"""The style sheet of a drawing; paper has no scroll bar, so it shows the picture as wide as the page.

In an untrusted notebook, JupyterLab removes the style sheet and the SVG tags, but leaves the text of the SVG. The
inline styles then show the text alternative instead.
"""


@dataclass(frozen=True, slots=True, repr=False)
class Drawing:
    """A picture for a notebook cell.

    Attributes:
        kind: the name of the picture in the header of its card.
        title: a description of the picture, below which it is complete.
        height: the height in pixels; the width is always `WIDTH`.
        parts: the SVG elements of the picture; empty if there is nothing to draw, and the title says all.
        text: the text alternative.
        is_fluid: True if the parts fit each width from `NARROW` on; the pictures of others are scaled.
    """

    kind: str
    title: str
    height: float
    parts: str
    text: str
    is_fluid: bool = False

    def __repr__(self) -> str:
        return self.text

    @property
    def svg(self) -> str:
        """The picture as an SVG element."""
        if self.is_fluid:
            size, style = 'width="100%"', f"max-width:{WIDTH}px;min-width:{NARROW}px"
        else:
            size = f'viewBox="0 0 {WIDTH} {self.height:.0f}" width="{WIDTH}"'
            style = f"max-width:100%;min-width:{MIN_WIDTH}px;height:auto"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} height="{self.height:.0f}" role="img" '
            f'aria-label="{visible(f"{self.kind}: {self.title}")}" font-size="12" fill="currentColor" '
            f'style="{style}">{self.parts}</svg>'
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        if not self.parts:
            return bundle(self.text, card(self.kind, self.title))
        text = f'<pre class="{TEXT_CLASS}" style="white-space:pre;overflow-x:auto">{visible(self.text)}</pre>'
        # Keys scroll a group that has the focus; a region would need a name of its own in the page.
        frame = f'role="group" aria-label="{visible(self.kind)}" tabindex="0"'
        picture = f'<div {frame} class="{PICTURE_CLASS}" style="display:none;overflow-x:auto">{self.svg}</div>'
        return bundle(self.text, f"{SHOW_ONE}{card(self.kind, self.title, text, picture)}")


def stack(kind: str, title: str, drawings: Sequence[tuple[str, Drawing]]) -> Drawing:
    """Combine named drawings into one, each below its name and its title."""
    parts, height = [], 0.0
    for name, drawing in drawings:
        body = f'<g transform="translate(0 {height + HEADING:.0f})">{drawing.parts}</g>'
        parts.append(svg_text(4, height + HEADING - 6, f"{name}: {drawing.title}") + body)
        height += HEADING + drawing.height
    texts = "\n".join(f"{name}\n{drawing.text}" for name, drawing in drawings)
    return Drawing(kind, title, height, "".join(parts), texts, all(drawing.is_fluid for _, drawing in drawings))


def svg_text(x: float, y: float, text: str) -> str:
    """Return an SVG text element; its left edge is at `x`, and its baseline at `y`."""
    return f'<text x="{x:.1f}" y="{y:.0f}" style="white-space:pre">{visible(text)}</text>'


def tooltip(text: str) -> str:
    """Return the SVG title element for a tooltip; empty for an empty text."""
    return f"<title>{visible(text)}</title>" if text else ""
