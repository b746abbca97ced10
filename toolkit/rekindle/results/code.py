"""Source code in a frame, its tokens coloured for light and dark pages."""

import re

from rekindle import markup

LONGEST_COLOURED = 10_000
"""Most characters of code with colours; each token takes about a hundred bytes of the page."""
COLOURS = {
    "Comment": "font-style:italic;opacity:0.8",
    "Keyword": markup.tinted("150,60,220"),
    "Name.Class": markup.tinted("30,110,230"),
    "Name.Decorator": markup.tinted("30,110,230"),
    "Name.Function": markup.tinted("30,110,230"),
    "Name.Tag": markup.tinted("150,60,220"),
    "Literal.Number": markup.tinted("220,90,10"),
    "Literal.String": markup.tinted("20,140,60"),
}
"""Style of a kind of tokens, by the names of Pygments; it holds for the kinds within."""
_LANGUAGE = re.compile(r"[\w+#.-]+(?=\s|$)")
_FRAME = (
    f"margin:0.5em 0;padding:0.5em 0.8em;border:1px solid {markup.LINE};border-radius:6px;background:{markup.INSET}"
)
_LINES = (
    "white-space:pre-wrap;overflow-wrap:anywhere;margin:0;padding:0;border:0;background:none;color:inherit;"
    "font-family:monospace;font-size:0.95em;line-height:1.45"
)
_CODE = "padding:0;border:0;background:none;color:inherit;font:inherit;white-space:inherit"


def code_html(code: str, info: str) -> str:
    """Return source code as HTML in a frame, below the name of its language.

    Args:
        info: the words after the opening fence, beginning with the language; empty without any.
    """
    match = _LANGUAGE.match(info)
    language = match[0] if match else ""
    lines = f'<pre style="{_LINES}"><code style="{_CODE}">{_coloured(code, language)}</code></pre>'
    return f'<div dir="ltr" style="{_FRAME}">{markup.note(language)}{lines}</div>\n'


def _coloured(code: str, language: str) -> str:
    """Return code as HTML, with colours if the language is known."""
    if not language or len(code) > LONGEST_COLOURED:
        return markup.visible(code)
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return markup.visible(code)
    return "".join(_token(str(kind), text) for kind, text in lexer.get_tokens(code))


def _token(kind: str, text: str) -> str:
    name = kind.removeprefix("Token.")
    style = next((style for part, style in COLOURS.items() if name == part or name.startswith(f"{part}.")), "")
    return f'<span style="{style}">{markup.visible(text)}</span>' if style and text.strip() else markup.visible(text)
