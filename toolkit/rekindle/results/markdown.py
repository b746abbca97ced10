"""Safe rendering of untrusted Markdown: the HTML neither runs nor fetches anything.

The parser treats HTML in the text as plain text. The renderer writes no address except that of an http, https or mailto
link, and replaces each image by its description.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from rekindle import markup
from rekindle.core.words import quantity
from rekindle.results.code import code_html

_SAFE = re.compile("(https?://|mailto:)", re.IGNORECASE)
_MATH = re.compile(r"[$\\]")
_FORMAT = {"bullet_list_open", "code_inline", "fence", "heading_open", "ordered_list_open", "strong_open", "table_open"}
"""Kinds of tokens that plain text rarely has by chance."""
_HEADING = "font-weight:bold;margin:0.7em 0 0.2em 0;font-size:"
_TABLE = "border-collapse:collapse;margin:0.5em 0;font-size:inherit"
_CELL = f"padding:0.2em 0.8em;border:1px solid {markup.LINE};background:none;text-align:"


class Markdown:
    """Text displayed as rendered Markdown, the same in all notebook front ends. Its `str` is the text.

    The syntax is CommonMark with tables and strikethrough; the ends of lines are kept. HTML in the text is displayed as
    source. Links to http, https and mailto addresses can be clicked; other links are reduced to their text. An image is
    replaced by its description, because fetching it would leak the output to its server. Formulas are displayed as
    source, because TeX rendered by a front end can contain links too.

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
        return markup.bundle(self.text, markup.frame(f'<div dir="auto">{render(self.text)}</div>'))


def render(text: str) -> str:
    """Return untrusted Markdown as HTML without scripts and external resources."""
    html: str = _parser().render(text)
    return html


def answer_html(text: str, *, folds: bool = True) -> str:
    """Return the text of a model as HTML: rendered if it is formatted, with its source folded below; else as it is.

    A long rest after the beginning is folded, as in `markup.passage`, unless `folds` is False.
    """
    return formatted_html(text, folds=folds) or markup.passage(text, folds=folds)


def formatted_html(text: str, *, folds: bool = True) -> str:
    """Return a formatted text as `answer_html` does; empty for a text without formats, or a very long one."""
    if not text or len(text) > markup.LONGEST_PASSAGE:
        return ""
    parser, env = _parser(), dict[str, object]()
    tokens = parser.parse(text, env)
    if not _FORMAT & set(_kinds(tokens)):
        return ""
    fold, hidden = _fold(tokens, text) if folds else (len(tokens), 0)
    html = parser.renderer.render(tokens[:fold], parser.options, env)
    if fold < len(tokens):
        rest = parser.renderer.render(tokens[fold:], parser.options, env)
        html += markup.folded(quantity(hidden, "more character"), rest)
    return f'<div dir="auto">{html}</div>{markup.folded("as written", markup.preformatted(text))}'


def _kinds(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the kinds of tokens, including those within lines."""
    for token in tokens:
        yield token.type
        yield from _kinds(token.children or ())


def _fold(tokens: Sequence[Token], text: str) -> tuple[int, int]:
    """Return the place of the first folded token, the beginning of a block, and the number of characters from there."""
    starts, length = [0], 0
    for line in text.splitlines(keepends=True):
        starts.append(length := length + len(line))
    for place, token in enumerate(tokens):
        start = starts[token.map[0]] if token.map and token.level == 0 and token.nesting >= 0 else 0
        if start > markup.HEAD:
            return (place, len(text) - start) if markup.has_long_rest(len(text) - start) else (len(tokens), 0)
    return len(tokens), 0


@cache
def _parser() -> MarkdownIt:
    options = {"html": False, "linkify": False, "breaks": True}  # a model ends a line where it wants a line to end
    parser = MarkdownIt("js-default", options, renderer_cls=_Inert)
    # All links and images are parsed; `_Inert` alone decides how to render them.
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    return parser


class _Inert(RendererHTML):
    """Renderer with an override for each kind of token with text or an address, and for the look of blocks."""

    def text(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return _escape(tokens[idx].content)

    def code_inline(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        style = f"padding:0.1em 0.3em;border-radius:3px;color:inherit;background:{markup.INSET}"
        return f'<code style="{style}">{markup.visible(tokens[idx].content)}</code>'

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return code_html(tokens[idx].content, "")

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return code_html(tokens[idx].content, tokens[idx].info.strip())

    def paragraph_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return "" if tokens[idx].hidden else '<p style="margin:0.4em 0">'

    def paragraph_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return "" if tokens[idx].hidden else "</p>\n"

    def heading_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        # Not <h1>: front ends list such elements in the table of contents of the notebook.
        level = int(tokens[idx].tag[1])
        size = ("1.3em", "1.15em")[level - 1] if level < 3 else "1em"
        return f'<div role="heading" aria-level="{level}" style="{_HEADING}{size}">'

    def heading_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return "</div>\n"

    def table_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f'<table style="{_TABLE}">\n'

    def tr_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return '<tr style="background:none">\n'

    def th_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        side = str(tokens[idx].attrGet("style") or "text-align:left").removeprefix("text-align:")
        return f'<{tokens[idx].tag} style="{_CELL}{side}">'

    def td_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return self.th_open(tokens, idx, options, env)

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        description = self.renderInlineAsText(tokens[idx].children, options, env)
        return f"<i>[image: {_escape(description)}]</i>" if description else "<i>[image]</i>"

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        address = str(tokens[idx].attrGet("href"))
        is_safe = _SAFE.match(address) is not None
        env["end"] = "</a>" if is_safe else ""
        rest = 'target="_blank" rel="noopener noreferrer nofollow" style="text-decoration:underline"'
        return f'<a href="{escape(address)}" {rest}>' if is_safe else ""

    def link_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return str(env["end"])  # of the last opened link: links do not nest


def _escape(text: str) -> str:
    """Escape text, and wrap each TeX delimiter in an element, so that front ends find no formulas."""
    return _MATH.sub(r"<span>\g<0></span>", markup.visible(text))
