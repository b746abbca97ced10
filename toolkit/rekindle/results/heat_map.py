"""Heat maps: the tokens of a generation as HTML, shaded by probability."""

import codecs
import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from rekindle import markup
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.words import one_line, percent, quantity

MOST_TOKENS = 400
"""Maximum number of tokens of a heat map."""
LONGEST_TOKEN = 60
"""Maximum number of characters of a token."""
SHOWN_TOP = 5
"""Number of most likely tokens in a tooltip."""
DEEPEST = 0.55
"""Background alpha of a token of probability 0. Text stays legible on it, on light and on dark pages."""


def heat_map(tokens: Sequence[TokenLogprob | None], image_token: int | None = None) -> str:
    """Return the heat map of tokens as HTML; empty for no tokens. None stands for a token without a probability.

    Args:
        tokens: the tokens.
        image_token: the id of the token in place of embeddings of images: a run of it is shown as its length.
    """
    if not tokens:
        return ""
    spans, place, room = [], 0, MOST_TOKENS
    for is_image, run in groupby(tokens, key=lambda token: token is not None and token.token_id == image_token):
        group = list(run)
        if is_image and room:
            spans.append(f'<span style="{markup.PALE}">[{quantity(len(group), "image token")}]</span>')
            place, room = place + len(group), room - 1
            continue
        for character in by_character(group[:room]):
            spans.append(_span(character, place))
            place += len(character) or 1
        room -= min(room, len(group))
    rest = f" … {quantity(len(tokens) - place, 'more token')}" if len(tokens) > place else ""
    legend = markup.note(
        "the deeper the shade, the less likely the token; underlined: another token was likelier; point at a token for "
        "its place, rank and probability"
    )
    style = "white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.9;margin:0.2em 0"
    return f'<div dir="auto" style="{style}">{"".join(spans)}{rest}</div>{legend}'


def token_numbers(tokens: Sequence[TokenLogprob | None]) -> str:
    """Return the numbers of a heat map as folded HTML, for keyboards, touch screens and screen readers."""
    lines = (_line(token, place) for place, token in enumerate(tokens[:MOST_TOKENS]) if token is not None)
    return markup.folded("numbers of the tokens", markup.preformatted("\n".join(lines))) if tokens else ""


def _line(token: TokenLogprob, place: int) -> str:
    others = ", ".join(f"{_quoted(each)} {_share(each)}" for each in token.top[:SHOWN_TOP])
    return f"{place}. {_quoted(token)} {_share(token)}, rank {token.rank:,}{f'; likeliest: {others}' if others else ''}"


def _share(token: TokenLogprob) -> str:
    return percent(probability(token.logprob))


def covers(text: str, tokens: Sequence[TokenLogprob]) -> bool:
    """Return True if the heat map of the tokens contains all of the text, except for leading spaces."""
    if len(tokens) > MOST_TOKENS or any(len(token.text) > LONGEST_TOKEN for token in tokens):
        return False
    return b"".join(token.bytes for token in tokens).decode(errors="replace").lstrip().startswith(text.lstrip())


def by_character(tokens: Sequence[TokenLogprob | None]) -> Iterator[list[TokenLogprob]]:
    """Yield the tokens in groups of whole characters, and an empty group for a token without a probability."""
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
    return f'<span title="{markup.visible(title(group, place))}"{style}>{markup.visible(group_text(group))}</span>'


def group_text(group: Sequence[TokenLogprob]) -> str:
    """Return the text of a group, with marks for line ends and tabs; without text, the id of its first token."""
    text = (
        group[0].text if len(group) == 1 else b"".join(token.bytes for token in group).decode(errors="backslashreplace")
    )
    if not text:
        return f"⟨{group[0].token_id}⟩"
    text = text if len(text) <= LONGEST_TOKEN else f"{text[:LONGEST_TOKEN]}…"
    return text.replace("\n", "↵\n").replace("\t", "→\t")


def shade(depth: float) -> str:
    """Return the CSS colour of a background with an alpha of `depth`; empty if it would be invisible."""
    return f"rgba(240,90,30,{depth:.2f})" if depth >= 0.01 else ""


def title(group: Sequence[TokenLogprob], place: int) -> str:
    """Return the tooltip of a group of tokens; `place` is the index of the first."""
    return "\n".join(_title(token, place + further) for further, token in enumerate(group))


def _title(token: TokenLogprob, place: int) -> str:
    lines = [f"{_quoted(token)}: {_share(token)}, rank {token.rank:,}, token {token.token_id}, place {place}"]
    lines += [f"  {each.rank}. {_quoted(each)} {_share(each)}" for each in token.top[:SHOWN_TOP]]
    return "\n".join(lines)


def _quoted(token: TokenLogprob) -> str:
    return f"“{one_line(token.text, LONGEST_TOKEN)}”" if token.text else f"⟨{token.token_id}⟩"


def probability(logprob: float) -> float:
    """Return the probability for a log-probability. Values above 0 are rounding errors, and count as 0."""
    return math.exp(min(0.0, logprob))
