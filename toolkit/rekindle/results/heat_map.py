"""The tokens of a generation in the shade of their probability, as HTML."""

import codecs
import math
from collections.abc import Iterator, Sequence

from rekindle.core import markup
from rekindle.core.request.tokens import TokenLogprob

MOST_TOKENS = 400
"""How many tokens are drawn."""
LONGEST_TOKEN = 60
"""How many characters of a token are shown."""
SHOWN_TOP = 5
"""How many of the likeliest tokens a tooltip names."""
DEEPEST = 0.55
"""The alpha behind a token of probability 0; text stays legible on it, on light pages and on dark ones."""


def heat_map(tokens: Sequence[TokenLogprob | None]) -> str:
    """Return the tokens in order as HTML; one that is None has no probability. Return nothing for no tokens."""
    if not tokens:
        return ""
    spans, place = [], 0
    for group in by_character(tokens[:MOST_TOKENS]):
        spans.append(_span(group, place))
        place += len(group) or 1
    rest = f" … {markup.quantity(len(tokens) - MOST_TOKENS, 'more token')}" if len(tokens) > MOST_TOKENS else ""
    legend = (
        '<div style="opacity:0.75;font-size:85%">the deeper the shade, the less likely the token; underlined: '
        "another was likelier; point at one for its place, its rank and its probability</div>"
    )
    style = "white-space:pre-wrap;overflow-wrap:break-word;line-height:1.9;margin:0.2em 0"
    return f'<div dir="auto" style="{style}">{"".join(spans)}{rest}</div>{legend}'


def covers(text: str, tokens: Sequence[TokenLogprob]) -> bool:
    """Tell whether the heat map of these tokens shows all of this text, a space before it aside."""
    if len(tokens) > MOST_TOKENS or any(len(token.text) > LONGEST_TOKEN for token in tokens):
        return False
    return b"".join(token.bytes for token in tokens).decode(errors="replace").lstrip().startswith(text.lstrip())


def by_character(tokens: Sequence[TokenLogprob | None]) -> Iterator[list[TokenLogprob]]:
    """Yield the tokens in groups of whole characters; an empty group for a token without a probability."""
    utf8, group = codecs.getincrementaldecoder("utf-8")(errors="replace"), list[TokenLogprob]()
    for token in tokens:
        if token is None:
            yield []
            continue
        group.append(token)
        utf8.decode(token.bytes)
        if not utf8.getstate()[0]:
            yield group
            group = []
    if group:
        yield group


def _span(group: Sequence[TokenLogprob], place: int) -> str:
    if not group:
        return '<span title="the first token of a prompt has no probability">·</span>'
    styles = []
    if colour := shade(DEEPEST * (1 - probability(sum(token.logprob for token in group)))):
        styles.append(f"background:{colour}")
    if any(token.rank > 1 for token in group):
        styles.append("border-bottom:2px dotted")
    style = f' style="{";".join(styles)}"' if styles else ""
    return f'<span title="{markup.visible(title(group, place))}"{style}>{markup.visible(shown(group))}</span>'


def shown(group: Sequence[TokenLogprob]) -> str:
    """Return the text of tokens, with marks before line ends and tabs; their ids where they have no text."""
    text = (
        group[0].text if len(group) == 1 else b"".join(token.bytes for token in group).decode(errors="backslashreplace")
    )
    if not text:
        return f"⟨{group[0].token_id}⟩"
    text = text if len(text) <= LONGEST_TOKEN else f"{text[:LONGEST_TOKEN]}…"
    return text.replace("\n", "↵\n").replace("\t", "→\t")


def shade(depth: float) -> str:
    """Return a colour of such an alpha; nothing for one that nobody could see."""
    return f"rgba(240,90,30,{depth:.2f})" if depth >= 0.01 else ""


def title(group: Sequence[TokenLogprob], place: int) -> str:
    """Return what is known of the tokens of a character, the first of which has this place."""
    return "\n".join(_title(token, place + further) for further, token in enumerate(group))


def _title(token: TokenLogprob, place: int) -> str:
    likely = markup.percent(probability(token.logprob))
    lines = [f"{_named(token)}: {likely}, rank {token.rank:,}, token {token.token_id}, place {place}"]
    lines += [
        f"  {each.rank}. {_named(each)} {markup.percent(probability(each.logprob))}" for each in token.top[:SHOWN_TOP]
    ]
    return "\n".join(lines)


def _named(token: TokenLogprob) -> str:
    return f"“{markup.one_line(token.text, LONGEST_TOKEN)}”" if token.text else f"⟨{token.token_id}⟩"


def probability(logprob: float) -> float:
    """Return the probability of a logarithm, which may be above 0 by a rounding error."""
    return math.exp(min(0.0, logprob))
