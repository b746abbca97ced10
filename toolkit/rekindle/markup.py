"""HTML for the results of cells: escaped, without scripts, styled inline, legible on light and dark pages.

All results have one look: a card with a header, a body, and rows of facts. Text keeps the colour of the page. Frames
have the colours of the theme in JupyterLab, VS Code and Colab, and elsewhere colours with alpha. Only drawings and
explanations in `rekindle.views` have a style sheet, to choose between a text and a picture.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from rekindle.core.words import one_line, percent, quantity, spelled

Bundle = dict[str, str]
"""The result of `_repr_mimebundle_`: representations by MIME type."""

SHORT = 32
"""Characters of a value that is not broken into lines."""
HEAD = 4000
"""Characters of a passage shown unfolded, if the rest is longer than half of them."""
TAIL = 1200
"""Most characters of a text in progress."""
LONGEST_PROMPT = 160
"""Characters of a prompt shown unfolded above its answer."""
BACK = 80
"""Most characters by which the fold moves back to the end of a word."""
LONGEST_PASSAGE = 20_000
"""Most characters of a passage in the page."""
LINE = "var(--vscode-panel-border,var(--jp-border-color2,var(--colab-border-color,rgba(128,128,128,0.35))))"
"""Colour of frames and of lines between rows."""
SURFACE = "var(--vscode-editorWidget-background,var(--jp-layout-color1,transparent))"
"""Background of a card."""
INSET = "rgba(128,128,128,0.1)"
"""Background of a text."""
EMBER = "232,89,12"
"""RGB colour of the mark in the header of a card, and of what is warm or uncertain; an alpha follows."""
COOL = "70,140,210"
"""RGB colour of measured amounts; an alpha follows."""
PALE = "font-size:0.9em;opacity:0.75"
"""Style of text beside the content: names of facts, states, notes. Together with 1em and `BIG`, the only sizes."""
BIG = "font-size:1.5em;line-height:1.3"
"""Style of the number that a section is about."""
BETWEEN = " · "
"""Separator of facts, for readers, screen readers and copied text."""
TIERS = {"device": "230,140,20", "host": "40,130,220", "disk": "130,130,130"}
"""RGB colour of each tier of the prefix cache; an alpha follows."""

_NUMBER = re.compile(r"-?\d[\d,.]*(e[+-]?\d+)?( ?(%|[kMG]?B|m?s))?")


def visible(text: str) -> str:
    """Escape text for HTML and XML, in an element or a quoted attribute, and spell out invisible characters."""
    return escape(spelled(text))


def bundle(plain: str, html: str) -> Bundle:
    """Return both representations of an object by MIME type."""
    return {"text/plain": plain, "text/html": html}


def tinted(colour: str) -> str:
    """Return the style of text with a part of an RGB colour and a part of the colour of the page's text."""
    return f"color:color-mix(in srgb,currentColor 50%,rgb({colour}))"


def card(kind: str, state: str, *parts: str, mark: str = EMBER, hover: str = "") -> str:
    """Return the HTML card of an object: its kind and state, as text, above parts of HTML.

    Args:
        mark: the RGB colour of the mark in the header.
        hover: the tooltip of the state; empty for none.
    """
    return frame(f"{header(kind, state, mark, hover)}{''.join(parts)}")


def frame(html: str) -> str:
    """Return HTML in the frame of a card."""
    style = (
        f"box-sizing:border-box;max-width:72em;padding:0.6em 0.9em;border:1px solid {LINE};border-radius:8px;"
        f"background:{SURFACE};line-height:1.5;font-variant-numeric:tabular-nums;overflow-wrap:break-word"
    )
    return f'<div style="{style}">{html}</div>'


def header(kind: str, state: str, mark: str = EMBER, hover: str = "") -> str:
    """Return the header of a card, with the arguments of `card`: a mark, the kind in bold, and the state."""
    dot = (
        '<span aria-hidden="true" style="display:inline-block;width:0.55em;height:0.55em;margin-right:0.5em;'
        f'border-radius:50%;background:rgb({mark})"></span>'
    )
    title = f' title="{visible(hover)}"' if hover else ""
    words = f'<span style="{PALE}"{title}>{BETWEEN}{visible(state)}</span>' if state else ""
    return f'<div style="margin:0 0 0.3em 0;overflow-wrap:anywhere">{dot}<b>{visible(kind)}</b>{words}</div>'


def facts(values: Mapping[str, str | None]) -> str:
    """Return names and values in a row, without values of None."""
    items = BETWEEN.join(
        f'<span style="opacity:0.75">{visible(name)}</span> {unbroken(value)}'
        for name, value in values.items()
        if value is not None
    )
    return f'<div style="margin:0.3em 0 0 0;font-size:0.9em">{items}</div>' if items else ""


def unbroken(text: str) -> str:
    """Return text on one line if it is short, such as a number and its unit."""
    html = visible(text)
    return html if len(text) > SHORT else f'<span style="white-space:nowrap">{html}</span>'


def note(text: str) -> str:
    """Return a line of text beside the content; "" for an empty text."""
    return f'<div style="{PALE}">{visible(text)}</div>' if text else ""


def prompt_line(prompt: str) -> str:
    """Return a prompt above its answer, on one line that unfolds if the prompt is longer; "" for an empty text."""
    if not prompt:
        return ""
    line = visible(one_line(prompt, LONGEST_PROMPT))
    style = f"margin:0 0 0.2em 0;{PALE}"
    if len(prompt) <= LONGEST_PROMPT and "\n" not in prompt:
        return f'<div dir="auto" style="{style}">{line}</div>'
    summary = f'<summary dir="auto" style="cursor:pointer">{line}</summary>'
    return f'<details style="{style}">{summary}{passage(prompt)}</details>'


def thumbnails(copies: Iterable[tuple[str, str]], side: int) -> str:
    """Return small copies of images in a row; "" without any.

    Args:
        copies: the URL and the description of each; an empty URL leaves the description alone.
        side: the most pixels of a side in the page.
    """
    style = f"max-width:{side}px;max-height:{side}px;margin:0.2em 0.4em 0.2em 0;vertical-align:top"
    row = "".join(
        f'<img src="{visible(url)}" alt="{visible(words)}" title="{visible(words)}" style="{style}"/>'
        if url
        else f'<span style="{PALE}">{visible(words)} </span>'
        for url, words in copies
    )
    return f"<div>{row}</div>" if row else ""


def bar(parts: Mapping[str, float], label: str, *, whole: float = 0.0, role: str = "img") -> str:
    """Return a bar of parts, each by its CSS colour.

    Args:
        parts: the amounts by colour.
        label: a description of the bar for screen readers, with its numbers.
        whole: the length of the bar in the unit of the parts; by default, their sum.
        role: "img", or "progressbar" for one part with the done amount.
    """
    length = whole or sum(parts.values()) or 1.0
    filled = "".join(
        f'<span style="width:{100 * amount / length:.2f}%;background:{colour}"></span>'
        for colour, amount in parts.items()
        if amount
    )
    now = 100 * sum(parts.values()) / length
    values = f' aria-valuemin="0" aria-valuemax="100" aria-valuenow="{now:.0f}"' if role == "progressbar" else ""
    style = "display:flex;flex:1 1 8em;height:0.6em;margin:0.3em 0;border-radius:3px;overflow:hidden"
    attributes = f'role="{role}" aria-label="{visible(label)}" title="{visible(label)}"{values}'
    return f'<div {attributes} style="{style};background:rgba(128,128,128,0.2)">{filled}</div>'


def passage(text: str, *, folds: bool = True) -> str:
    """Return a text as a block; "" for an empty text.

    Args:
        text: the text; beyond `LONGEST_PASSAGE` characters it is cut.
        folds: whether a long part after its beginning is folded.
    """
    if not text:
        return ""
    fold, cut = _fold(text) if folds else LONGEST_PASSAGE, len(text) - LONGEST_PASSAGE
    rest, head = text[fold:LONGEST_PASSAGE], _block(visible(text[:fold]))
    if cut > 0:
        rest += f"\n… {quantity(cut, 'more character')}"
    return head + (folded(quantity(len(text) - fold, "more character"), _block(visible(rest))) if rest else "")


def preformatted(text: str) -> str:
    """Return a whole text as a block, in which long lines are wrapped."""
    return _block(visible(text))


def growing(text: str, before: int) -> str:
    """Return the end of a text in progress, after `before` earlier characters; "" for an empty text."""
    if not text:
        return ""
    cut = f'<span style="opacity:0.75">… {quantity(before, "character")} before</span>\n' if before else ""
    return _block(f'{cut}{visible(text)}<span aria-hidden="true" style="opacity:0.5">▌</span>', grows=True)


def folded(summary: str, html: str) -> str:
    """Return HTML folded behind a clickable line of text."""
    return (
        f'<details style="margin:0.3em 0 0 0"><summary style="cursor:pointer;{PALE}">'
        f"{visible(summary)}</summary>{html}</details>"
    )


def bullet_list(lines: Iterable[str]) -> str:
    """Return lines of text as a bullet list."""
    items = "".join(f"<li>{visible(line)}</li>" for line in lines)
    return f'<ul style="margin:0.2em 0">{items}</ul>'


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return rows of text as a table. The first column has row names; columns of numbers are right-aligned."""
    cells = [tuple(row) for row in rows]
    right = [place > 0 and _is_numeric(column) for place, column in enumerate(zip(*cells, strict=True))]
    right = right or [False] * len(head)
    lines = [_row("th", head, right)] if head else []
    lines += [_row("td", row, right) for row in cells]
    style = "border-collapse:collapse;margin:0.3em 0 0 0;font-size:inherit"
    # A reader without a mouse scrolls a group that has the focus.
    group = 'role="group" aria-label="table" tabindex="0" style="overflow-x:auto"'
    return f'<div {group}><table style="{style}">{"".join(lines)}</table></div>'


def named_values(kind: str, values: Mapping[str, Any]) -> Bundle:
    """Return the representations of an object with named values: one line or row for each."""
    rows = [(name, _value_text(value)) for name, value in values.items()]
    wide = max(map(len, values))
    return bundle("\n".join(f"{name:{wide}}  {text}" for name, text in rows), card(kind, "", table(rows)))


def _value_text(value: Any) -> str:
    """Return a value as text: numbers with commas, collections without brackets, functions by name."""
    match value:
        case bool() | None:
            return repr(value)
        case int():
            return f"{value:,}"
        case str():
            return value or "(empty)"
        case tuple() | list() | frozenset():
            return ", ".join(map(str, sorted(value) if isinstance(value, frozenset) else value)) or "none"
    return getattr(value, "__name__", None) or repr(value)


def shares(parts: Mapping[str, int], unit: str) -> str:
    """Return a bar of the parts of a whole above their names and counts; "" for an empty whole.

    Args:
        parts: counts by tier, or by another name, without a colour.
        unit: the counted unit, in the singular.
    """
    whole = sum(parts.values())
    if not whole:
        return ""
    outlined = "".join(
        f'<span title="{visible(f"{name}: {quantity(count, unit)}")}" style="box-sizing:border-box;'
        f"border-right:1px solid rgba(128,128,128,0.8);width:{100 * count / whole:.2f}%;background:{shade(name)}"
        '"></span>'
        for name, count in parts.items()
        if count
    )
    numbers = {name: f"{count:,} ({percent(count / whole)})" for name, count in parts.items()}
    style = f"display:flex;max-width:36em;height:0.7em;margin:0.3em 0;border:1px solid {LINE};border-radius:3px"
    # Screen readers get the facts below instead of the bar.
    return f'<div aria-hidden="true" style="{style};overflow:hidden">{outlined}</div>{facts(numbers)}'


def shade(tier: str) -> str:
    """Return the background colour of a tier, or "transparent" for another name."""
    return f"rgba({TIERS[tier]},0.45)" if tier in TIERS else "transparent"


def has_long_rest(rest: int) -> bool:
    """Return True if the part of a text after its beginning is long enough to be folded."""
    return rest > HEAD // 2


def _fold(text: str) -> int:
    """Return the length of the unfolded beginning: `HEAD`, or less to end at a word."""
    if not has_long_rest(len(text) - HEAD):
        return len(text)
    return next((place for place in range(HEAD, HEAD - BACK, -1) if text[place - 1].isspace()), HEAD)


def _block(html: str, *, grows: bool = False) -> str:
    style = (
        "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;margin:0.2em 0 0 0;padding:0.4em 0.7em;"
        f"font:inherit;color:inherit;background:{INSET};border:0;border-radius:4px"
    )
    busy = ' aria-live="polite" aria-busy="true"' if grows else ""  # a screen reader waits for the end
    return f'<pre dir="auto"{busy} style="{style}">{html}</pre>'


def _is_numeric(column: Iterable[str]) -> bool:
    """Return True if a column has numbers and otherwise only empty cells."""
    filled = [cell for cell in column if cell]
    return bool(filled) and all(map(_NUMBER.fullmatch, filled))


def _row(tag: str, cells: Sequence[str], right: Sequence[bool]) -> str:
    """Return a row of a table. The names of columns are pale; empty names have no header cell."""
    style = "padding:0.15em 1.2em 0.15em 0;border:0;vertical-align:top;text-align:"
    content = ""
    for cell, number in zip(cells, right, strict=True):
        name = tag if cell else "td"
        scope, pale = (' scope="col"', f";font-weight:normal;{PALE}") if name == "th" else ("", "")
        content += f'<{name}{scope} style="{style}{"right" if number else "left"}{pale}">{visible(cell)}</{name}>'
    return f'<tr style="{row_style(tag)}">{content}</tr>'


def row_style(tag: str) -> str:
    """Return the style of a row of a table: a line above, unless it has the names of columns, and no stripes."""
    return f"background:none;border-top:{'0' if tag == 'th' else f'1px solid {LINE}'}"


def cell() -> int | None:
    """Return the number of the running cell; None outside of IPython."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else getattr(ipython.get_ipython(), "execution_count", None)


def display_again(drawn_in: int | None) -> None:
    """Show nothing for a result of the cell that has drawn it already; a terminal needs words after its "Out[3]:".

    Args:
        drawn_in: the number of this cell; None for a result without a drawing.

    Raises:
        NotImplementedError: the running cell is another one, so IPython shows the result in its own way.
    """
    if drawn_in is None or drawn_in != cell():
        raise NotImplementedError
    if getattr(sys.modules["IPython"].get_ipython(), "kernel", None) is None:
        sys.stdout.write("(shown above)\n")
