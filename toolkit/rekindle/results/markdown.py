"""Safe rendering of untrusted Markdown: the HTML neither runs nor fetches anything.

The parser treats HTML in the text as plain text. The renderer writes no address except that of an http or https link,
and replaces each image by its description.
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
    """Text displayed as rendered Markdown, the same in all notebook front ends. Its `str` is the text.

    The syntax is CommonMark with tables and strikethrough. HTML in the text is displayed as source. Links to http and
    https addresses can be clicked; other links are reduced to their text. An image is replaced by its description,
    because fetching it would leak the output to its server. Formulas are displayed as source, because TeX rendered by a
    front end can contain links too.

    Attributes:
        text: the Markdown source.
    """

    __slots__ = ("text",)

    def __init__(self, text: str):
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Markdown: {self.text!r}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(self.text, f'<div dir="auto" style="max-width:72em">{render(self.text)}</div>')


def render(text: str) -> str:
    """Return untrusted Markdown as HTML without scripts and external resources."""
    markdown = MarkdownIt("js-default", {"html": False, "linkify": False}, renderer_cls=_Inert)
    # All links and images are parsed; `_Inert` alone decides how to render them.
    markdown.validateLink = lambda url: True  # type: ignore[method-assign]
    html: str = markdown.render(text)
    return html


class _Inert(RendererHTML):
    """Renderer with an override for each kind of token with text or an address."""

    def text(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return _escape(tokens[idx].content)

    def code_inline(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"<code>{markup.visible(tokens[idx].content)}</code>"

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"<pre><code>{markup.visible(tokens[idx].content)}</code></pre>\n"

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return self.code_block(tokens, idx, options, env)

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        description = self.renderInlineAsText(tokens[idx].children, options, env)
        return f"<i>[image: {_escape(description)}]</i>" if description else "<i>[image]</i>"

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        address = str(tokens[idx].attrGet("href"))
        to_the_web = _WEB.match(address) is not None
        env["end"] = "</a>" if to_the_web else ""
        return f'<a href="{escape(address)}" target="_blank" rel="noopener noreferrer nofollow">' if to_the_web else ""

    def link_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return str(env["end"])  # of the last opened link: links do not nest


def _escape(text: str) -> str:
    """Escape text, and wrap each TeX delimiter in an element, so that front ends find no formulas."""
    return _MATH.sub(r"<span>\g<0></span>", markup.visible(text))
