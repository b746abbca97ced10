"""HTML for the results of cells: escaped, without scripts, styled inline, legible on light and dark pages.

Text keeps the colour of the page, and backgrounds are colours with alpha. The only style sheet is in
`rekindle.views.drawing`, with the reason for it.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape

Bundle = dict[str, str]
"""The result of `_repr_mimebundle_`: representations by MIME type."""

HEAD = 1200
"""Characters of a passage shown unfolded."""
BACK = 80
"""Most characters by which the fold moves back to the end of a word."""
LONGEST_PASSAGE = 20_000
"""Most characters of a passage in the page."""
TIERS = {"device": "230,140,20", "host": "40,130,220", "disk": "130,130,130"}
"""RGB colour of each tier of the prefix cache; an alpha follows."""

# Control characters, characters that change the direction of text, lone surrogates, and what XML does not allow.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_NUMBER = re.compile(r"-?\d[\d,.]*(e[+-]?\d+)?( ?(%|[kMG]?B|m?s))?")


def visible(text: str) -> str:
    """Escape text for HTML and XML, in an element or a quoted attribute, and spell out invisible characters."""
    return escape(spelled(text))


def spelled(text: str) -> str:
    """Return text with invisible characters spelled out, not escaped."""
    return _UNSEEN.sub(_spelled, text)


def one_line(text: str, longest: int) -> str:
    """Return the beginning of a text on one line, not escaped."""
    line = text[: longest + 1].replace("\n", "↵").replace("\t", "→")
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def bundle(plain: str, html: str) -> Bundle:
    """Return both representations of an object by MIME type."""
    return {"text/plain": plain, "text/html": html}


def card(kind: str, state: str, *parts: str) -> str:
    """Return the HTML card of an object: its kind and state, as text, above parts of HTML."""
    note = f' <span style="opacity:0.75">{visible(state)}</span>' if state else ""
    title = f'<div style="margin:0 0 0.3em 0"><b>{visible(kind)}</b>{note}</div>'
    return f'<div style="line-height:1.5;max-width:72em">{title}{"".join(parts)}</div>'


def facts(values: Mapping[str, str | None]) -> str:
    """Return names and values in a row, without values of None."""
    items = " ".join(  # the space separates two facts in copied text and for screen readers
        '<span style="display:inline-block;margin-right:1.4em"><span style="opacity:0.75">'
        f"{visible(name)}</span> {visible(value)}</span>"
        for name, value in values.items()
        if value is not None
    )
    return f'<div style="margin:0.2em 0">{items}</div>' if items else ""


def passage(text: str) -> str:
    """Return a text as a block, with the part after its beginning folded; "" for an empty text."""
    if not text:
        return ""
    fold, cut = _fold(text), len(text) - LONGEST_PASSAGE
    rest, head = text[fold:LONGEST_PASSAGE], _block(visible(text[:fold]))
    if cut > 0:
        rest += f"\n… {quantity(cut, 'more character')}"
    return head + (folded(quantity(len(text) - fold, "more character"), _block(visible(rest))) if rest else "")


def growing(text: str, before: int) -> str:
    """Return the end of a text in progress, after `before` earlier characters; "" for an empty text."""
    if not text:
        return ""
    cut = f'<span style="opacity:0.75">… {quantity(before, "character")} before</span>\n' if before else ""
    return _block(f'{cut}{visible(text)}<span aria-hidden="true" style="opacity:0.5">▌</span>', grows=True)


def folded(summary: str, html: str) -> str:
    """Return HTML folded behind a clickable line of text."""
    return (
        '<details style="margin:0.2em 0"><summary style="cursor:pointer;opacity:0.75">'
        f"{visible(summary)}</summary>{html}</details>"
    )


def bullet_list(lines: Iterable[str]) -> str:
    """Return lines of text as a bullet list."""
    items = "".join(f"<li>{visible(line)}</li>" for line in lines)
    return f'<ul style="margin:0.2em 0">{items}</ul>'


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return rows of text as a table. The first column has row names; numbers in other columns are right-aligned."""
    cells = [tuple(row) for row in rows]
    right = [[place > 0 and bool(_NUMBER.fullmatch(cell)) for place, cell in enumerate(row)] for row in cells]
    above = [any(column) for column in zip(*right, strict=True)] or [False] * len(head)
    lines = [_row("th", head, above)] if head else []
    lines += [_row("td", row, numbers) for row, numbers in zip(cells, right, strict=True)]
    return f'<table style="border-collapse:collapse;margin:0.3em 0;font-size:inherit">{"".join(lines)}</table>'


def shares(parts: Mapping[str, int], unit: str) -> str:
    """Return a bar of the parts of a whole above their names and counts; "" for an empty whole.

    Args:
        parts: counts by tier, or by another name, without a colour.
        unit: the counted unit, in the singular.
    """
    whole = sum(parts.values())
    if not whole:
        return ""
    bar = "".join(
        f'<span title="{visible(f"{name}: {quantity(count, unit)}")}" style="display:inline-block;height:100%;'
        "box-sizing:border-box;border-right:1px solid rgba(128,128,128,0.8);"
        f'width:{100 * count / whole:.2f}%;background:{shade(name)}"></span>'
        for name, count in parts.items()
        if count
    )
    numbers = {name: f"{count:,} ({percent(count / whole)})" for name, count in parts.items()}
    outline = "height:0.8em;max-width:36em;line-height:0;border:1px solid rgba(128,128,128,0.5);white-space:nowrap"
    # Screen readers get the facts below instead of the bar.
    return f'<div aria-hidden="true" style="{outline};overflow:hidden">{bar}</div>{facts(numbers)}'


def shade(tier: str) -> str:
    """Return the background colour of a tier, or "transparent" for another name."""
    return f"rgba({TIERS[tier]},0.45)" if tier in TIERS else "transparent"


def quantity(count: int, what: str, plural: str = "") -> str:
    """Return a count with its noun, such as "1 page" or "2,000 pages". `plural` is for nouns without a plural in s."""
    return f"{count:,} {what if count == 1 else plural or f'{what}s'}"


def seconds(count: float) -> str:
    """Format a time in milliseconds or seconds."""
    if count < 1:
        return f"{1e3 * count:.{0 if count >= 0.01 else 1}f} ms"
    return f"{count:.{2 if count < 100 else 0}f} s"


def percent(share: float) -> str:
    """Format a share in percent, with enough digits to differ from 0."""
    return f"{share:.1%}" if share >= 0.001 or share == 0 else f"{100 * share:.1e}%"


def size_text(count: int) -> str:
    """Format a number of bytes with three digits and a decimal unit, such as "1.23 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * size:
            value = count / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{count} B"


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _fold(text: str) -> int:
    """Return the length of the unfolded beginning: `HEAD`, or less to end at a word."""
    if len(text) <= HEAD:
        return len(text)
    return next((place for place in range(HEAD, HEAD - BACK, -1) if text[place - 1].isspace()), HEAD)


def _block(html: str, *, grows: bool = False) -> str:
    style = (
        "white-space:pre-wrap;word-break:normal;overflow-wrap:break-word;margin:0.2em 0;padding:0.3em 0.7em;"
        "font:inherit;color:inherit;background:rgba(128,128,128,0.1);border:0;"
        "border-left:3px solid rgba(128,128,128,0.5)"
    )
    busy = ' aria-live="polite" aria-busy="true"' if grows else ""  # a screen reader waits for the end
    return f'<pre dir="auto"{busy} style="{style}">{html}</pre>'


def _row(tag: str, cells: Sequence[str], right: Sequence[bool]) -> str:
    style, scope = "padding:0.1em 0.8em;border:0;text-align:", ' scope="col"' if tag == "th" else ""
    content = (
        f'<{tag}{scope} style="{style}{"right" if number else "left"}">{visible(cell)}</{tag}>'
        for cell, number in zip(cells, right, strict=True)
    )
    return f"<tr>{''.join(content)}</tr>"


def cell() -> int | None:
    """Return the number of the running cell; None outside of IPython."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else getattr(ipython.get_ipython(), "execution_count", None)
