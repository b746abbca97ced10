"""The Markdown that a model wrote, as HTML that runs nothing and fetches nothing.

A model's output is untrusted. HTML in the text is shown as it stands, because the parser knows none. The renderer
writes no address except that of a link to the web, and of an image only its description.
"""

import re
from collections.abc import Sequence
from html import escape

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from rekindle.core import markup

_WEB = re.compile("https?://", re.IGNORECASE)
_MATH = re.compile(r"[$\\]")


class Markdown:
    """A text that a notebook shows as rendered Markdown, the same in all front ends. Its `str` is the text.

    It is CommonMark with tables and strikethrough. HTML in the text is shown as it stands. Links to http and https
    addresses can be clicked, and others are only their text. An image is only its description, because fetching it
    would tell its server what was written. Formulas are shown as they stand, because what a front end makes of TeX can
    hold links too.

    Attributes:
        text: the Markdown.
    """

    __slots__ = ("text",)

    def __init__(self, text: str):
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Markdown: {self.text!r}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(self.text, f'<div dir="auto" style="max-width:72em">{rendered(self.text)}</div>')


def rendered(text: str) -> str:
    """Return untrusted Markdown as HTML that runs nothing and fetches nothing."""
    markdown = MarkdownIt("js-default", {"html": False, "linkify": False}, renderer_cls=_Inert)
    # Every link and image is parsed as one, and `_Inert` alone decides what becomes of it.
    markdown.validateLink = lambda url: True  # type: ignore[method-assign]
    html: str = markdown.render(text)
    return html


class _Inert(RendererHTML):
    """A renderer by which text stays text; it has a method for each kind of token that holds text or an address."""

    def text(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return _written(tokens[idx].content)

    def code_inline(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"<code>{markup.visible(tokens[idx].content)}</code>"

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"<pre><code>{markup.visible(tokens[idx].content)}</code></pre>\n"

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return self.code_block(tokens, idx, options, env)

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        described = self.renderInlineAsText(tokens[idx].children, options, env)
        return f"<i>[image: {_written(described)}]</i>" if described else "<i>[image]</i>"

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        address = str(tokens[idx].attrGet("href"))
        to_the_web = _WEB.match(address) is not None
        env["end"] = "</a>" if to_the_web else ""
        return f'<a href="{escape(address)}" target="_blank" rel="noopener noreferrer nofollow">' if to_the_web else ""

    def link_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return str(env["end"])  # of the last link that was opened, because there is no link within a link


def _written(text: str) -> str:
    """Return text as HTML without formulas for a front end, which finds none where each mark of TeX has an element."""
    return _MATH.sub(r"<span>\g<0></span>", markup.visible(text))
