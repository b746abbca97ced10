"""Tokens shaded by how unlikely they were: each a span whose title says its rank and probability."""

import math
from collections.abc import Sequence
from typing import Protocol

from rekindle.markup import counted, one_line, percent, visible

LONGEST = 400
"""Tokens that are drawn."""
LONGEST_TEXT = 60
"""Characters of one token, and of one that might have come instead."""
SHOWN_TOP = 5
"""How many of the likeliest tokens a title names."""
DEEPEST = 0.55
"""The alpha behind a token of probability 0; text stays legible on it, on light pages and on dark ones."""


class Scored(Protocol):
    """What is read of a `rekindle.results.TokenLogprob`."""

    @property
    def token_id(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def logprob(self) -> float: ...
    @property
    def rank(self) -> int: ...
    @property
    def top(self) -> Sequence["Scored"]: ...


def heat_map(tokens: Sequence[Scored | None]) -> str:
    """The tokens in order, as HTML; one that is None has no probability. Nothing for none."""
    if not tokens:
        return ""
    spans = "".join(_span(token) for token in tokens[:LONGEST])
    rest = f" … {counted(len(tokens) - LONGEST, 'more token')}" if len(tokens) > LONGEST else ""
    legend = (
        '<div style="opacity:0.75;font-size:85%">the deeper the shade, the less likely the token; underlined: '
        "another was likelier; point at one for its rank and probability</div>"
    )
    style = "white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.9;margin:0.2em 0"
    return f'<div dir="auto" style="{style}">{spans}{rest}</div>{legend}'


def _span(token: Scored | None) -> str:
    if token is None:
        return '<span title="the first token of a prompt has no probability">·</span>'
    styles = []
    depth = DEEPEST * (1 - _probability(token))
    if depth >= 0.01:
        styles.append(f"background:rgba(240,90,30,{depth:.2f})")
    if token.rank > 1:
        styles.append("border-bottom:2px dotted")
    style = f' style="{";".join(styles)}"' if styles else ""
    return f'<span title="{visible(_title(token))}"{style}>{visible(_shown(token))}</span>'


def _shown(token: Scored) -> str:
    """Its text, line ends marked and kept; its id where it has none."""
    if not token.text:
        return f"⟨{token.token_id}⟩"
    text = token.text if len(token.text) <= LONGEST_TEXT else f"{token.text[:LONGEST_TEXT]}…"
    return text.replace("\n", "↵\n").replace("\t", "→\t")


def _title(token: Scored) -> str:
    lines = [f"{_named(token)}: {percent(_probability(token))}, rank {token.rank:,}, token {token.token_id}"]
    lines += [f"  {each.rank}. {_named(each)} {percent(_probability(each))}" for each in token.top[:SHOWN_TOP]]
    return "\n".join(lines)


def _named(token: Scored) -> str:
    return f"“{one_line(token.text, LONGEST_TEXT)}”" if token.text else f"⟨{token.token_id}⟩"


def _probability(token: Scored) -> float:
    """At most 1, though a logprob may be a rounding error above 0."""
    return min(1.0, math.exp(min(0.0, token.logprob)))
