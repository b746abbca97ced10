"""Explanation of an answer, token by token: the prediction of each layer, the page and the tick of each token.

The card works without a kernel and without scripts: each token is the label of a radio button, and a style sheet shows
the part of the chosen one. Where a page removes the style sheet or the buttons, the table of the text is shown.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from rekindle import markup
from rekindle.core.words import one_line, percent, quantity, seconds, spelled
from rekindle.markup import visible
from rekindle.results.generation import Generation
from rekindle.results.heat_map import DEEPEST, shade

MOST_TOKENS = 96
"""The most tokens of an explanation: the last ones. Each takes about 2 kB of the page."""
MOST_LAYERS = 12
"""The most layers of an explanation, at one distance, with the last one."""
ALTERNATIVES = 3
"""The number of likeliest tokens of the last layer."""
_CLASS = "rekindle-explanation"
_STYLE = (
    f"<style>.{_CLASS}-text:has(+.{_CLASS} input){{display:none}}.{_CLASS}:has(input){{display:flex!important}}"
    f".{_CLASS} label{{position:relative;cursor:pointer;white-space:pre;padding:0 1px;border-bottom:3px solid}}"
    f".{_CLASS} input{{position:absolute;opacity:0;width:1px;height:1px;margin:0}}"
    f".{_CLASS} label:has(:checked){{outline:2px solid rgb({markup.EMBER});border-radius:2px}}"
    f".{_CLASS} label:has(:focus-visible){{outline-offset:2px}}"
    f".{_CLASS} label+div{{display:none;order:1;flex:0 0 100%}}.{_CLASS} label:has(:checked)+div{{display:block}}"
    f".{_CLASS} tr{{background:none!important}}"
    f".{_CLASS} td,.{_CLASS} th{{padding:0.1em 0.8em 0.1em 0.3em;border:0;text-align:left;font-weight:normal;"
    "white-space:pre}</style>"
)
_COLUMNS = (
    "display:grid;grid-template-columns:repeat(auto-fit,minmax(15em,1fr));gap:0.5em 2em;margin:0.7em 0 0 0;"
    "line-height:1.5"
)
_TABLE = "border-collapse:collapse;font-size:inherit"


@dataclass(frozen=True, slots=True)
class ExplainedToken:
    """A token of the prompt or the answer.

    Attributes:
        position: its index in prompt and answer together.
        text: its text.
        is_new: True for a token of the answer.
        is_cached: True if it was found in the prefix cache.
        tick: the number of the tick that computed it, or drew it for a token of the answer; None if not traced.
        tick_seconds: the time of this tick on the device; None if not traced.
        layers: (layer, text, probability) of the likeliest token in this position by each layer, the last one first;
            empty for the first token of a prompt.
        likeliest: (text, probability) of the likeliest tokens by the last layer.
    """

    position: int
    text: str
    is_new: bool
    is_cached: bool
    tick: int | None
    tick_seconds: float | None
    layers: tuple[tuple[int, str, float], ...]
    likeliest: tuple[tuple[str, float], ...]

    @property
    def probability(self) -> float | None:
        """The probability of the token by the last layer; None if it is not among the likeliest."""
        return dict(self.likeliest).get(self.text)

    @property
    def settled_at(self) -> int | None:
        """The layer from which on each shown layer predicts this token; None if the last one does not."""
        last = None
        for layer, text, _ in self.layers:
            if text != self.text:
                break
            last = layer
        return last


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Explanation:
    """Explanation of an answer, from `session.explain`. A cell shows it as a card in which tokens can be chosen.

    Attributes:
        generation: the answer.
        tokens: the last tokens of prompt and answer, at most 96.
        page_size: the number of tokens in a page of the prefix cache.
        count: the number of tokens of prompt and answer.
    """

    generation: Generation
    tokens: tuple[ExplainedToken, ...]
    page_size: int
    count: int

    def __repr__(self) -> str:
        head = ("", "token", "probability", "from layer", "page", "tick")
        rows = [head, *(self._row(token) for token in self.tokens)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
        return "\n".join([f"<rekindle.Explanation of {self._state}>", *lines])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        text = f'<pre class="{_CLASS}-text" style="white-space:pre;overflow-x:auto">{visible(repr(self))}</pre>'
        name = f"rekindle-{sha256(repr(self).encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
        first = next((token for token in self.tokens if token.is_new), self.tokens[-1])
        tokens = "".join(self._token_html(token, name, token is first) for token in self.tokens)
        style = "display:none;flex-wrap:wrap;line-height:1.9"
        group = f'<div class="{_CLASS}" role="radiogroup" aria-label="Tokens" style="{style}">{tokens}</div>'
        legend = markup.note(
            "choose a token; orange below: found in the prefix cache, blue: computed or drawn now; the deeper the "
            "shade, the less likely the token"
        )
        return markup.bundle(repr(self), _STYLE + markup.card("Explanation", self._state, text + group, legend))

    @property
    def _state(self) -> str:
        usage, omitted = self.generation.usage, self.count - len(self.tokens)
        state = f"prompt of {quantity(usage.prompt_tokens, 'token')}, answer of {usage.completion_tokens:,}"
        return f"{state}; without the first {omitted:,}" if omitted else state

    def _row(self, token: ExplainedToken) -> tuple[str, ...]:
        """Return the facts about a token as text for a table."""
        probability = "" if token.probability is None else percent(token.probability)
        layer = "" if token.settled_at is None else str(token.settled_at)
        tick = "cached" if token.is_cached else "" if token.tick is None else str(token.tick)
        place = f"{1 + token.position // self.page_size}"
        name = repr(spelled(token.text))
        return f"{token.position}{' new' if token.is_new else ''}", name, probability, layer, place, tick

    def _token_html(self, token: ExplainedToken, group: str, checked: bool) -> str:
        """Return a token as a label with its radio button, followed by its part, and by a break after a line end."""
        likely = 1.0 if not token.layers or not token.is_new else token.probability or 0.0
        colour = markup.TIERS["device"] if token.is_cached else markup.COOL
        style = f"border-bottom-color:rgba({colour},0.6);background:{shade(DEEPEST * (1 - likely)) or 'none'}"
        style += "" if token.is_new else ";opacity:0.8"
        text = token.text.replace("\n", "↵").replace("\t", "→") or "∅"
        described = visible(f"token {token.position}: {token.text!r}")
        button = f'<input type="radio" name="{group}" aria-label="{described}"{" checked" if checked else ""}>'
        line_end = '<span style="flex:0 0 100%;height:0"></span>' if token.text.endswith("\n") else ""
        label = f'<label style="{style}">{button}{visible(text)}</label>'
        parts = (self._lens_html(token), self._page_html(token), self._tick_html(token))
        return f'{label}<div><div style="{_COLUMNS}">{"".join(parts)}</div></div>{line_end}'

    def _lens_html(self, token: ExplainedToken) -> str:
        if not token.layers:
            return _section("lens", "the first token of a prompt is not predicted")
        rows = "".join(
            f'<tr><th scope="row">{layer}</th><td style="background:rgba({markup.COOL},{0.6 * probability:.2f})">'
            f"{'<b>' if text == token.text else ''}{visible(_name(text))}{'</b>' if text == token.text else ''}</td>"
            f"<td>{percent(probability)}</td></tr>"
            for layer, text, probability in token.layers
        )
        others = ", ".join(f"{_name(text)} {percent(probability)}" for text, probability in token.likeliest)
        layer = token.settled_at
        words = "the last layer predicts another token" if layer is None else f"predicted from layer {layer} on"
        table = f'<table style="{_TABLE}">{rows}</table>'
        last = markup.note(f"by the last layer: {others}")
        return _section("lens: the likeliest here, by layer", words, table, last)

    def _page_html(self, token: ExplainedToken) -> str:
        page, place = divmod(token.position, self.page_size)
        pages = -(-self.count // self.page_size)
        is_whole = (page + 1) * self.page_size < self.count  # the last token of an answer is not computed
        source = "found in the prefix cache" if token.is_cached else "computed for this answer"
        later = "whole, so it is cached for later prompts" if is_whole else "not whole, so it is not cached"
        words = f"page {page + 1} of {pages}, place {place + 1} of {self.page_size}"
        colour = markup.TIERS["device"] if token.is_cached else markup.COOL
        bar = markup.bar({f"rgba({colour},0.7)": place + 1}, words, whole=self.page_size)
        return _section("page", words, bar, markup.note(f"{source}; {later}"))

    def _tick_html(self, token: ExplainedToken) -> str:
        if token.tick is None:
            return _section("tick", "none: its page was there" if token.is_cached else "not traced")
        same = [each for each in self.tokens if each.tick == token.tick and not each.is_cached]
        longest = max(each.tick_seconds or 0.0 for each in self.tokens)
        words = f"tick {token.tick} {'drew' if token.is_new else 'computed'} it"
        if token.tick_seconds is None:
            return _section("tick", words)
        label = f"{seconds(token.tick_seconds)} on the device"
        bar = markup.bar({f"rgba({markup.COOL},0.7)": token.tick_seconds}, label, whole=longest or 1.0)
        beside = f"{label}, for {quantity(len(same), 'token')} of this answer"
        return _section("tick", words, bar, markup.note(beside))


def _section(name: str, words: str, *parts: str) -> str:
    """Return a part below its name and a line of text."""
    return f"<div>{markup.note(name)}<div>{visible(words)}</div>{''.join(parts)}</div>"


def _name(text: str) -> str:
    """Return a short text of a token with a mark for its leading space."""
    line = one_line(text, 16)
    return f"␣{line[1:]}" if line.startswith(" ") else line or "∅"


def shown_layers(count: int) -> Sequence[int]:
    """Return the layers of an explanation in ascending order, for a model with `count` layers."""
    step = max(1, -(-count // MOST_LAYERS))
    return range(count - 1, -1, -step)[::-1]


def ticks_of(cells: Iterable[tuple[int, int | None, int, int]], count: int) -> dict[int, int]:
    """Return the tick of each position, without those found in the cache.

    Args:
        cells: (tick, start, tokens, new tokens) of the work of each tick; `start` is None for decode rows.
        count: the number of tokens of the prompt.
    """
    ticks: dict[int, int] = {}
    new = count
    for tick, start, tokens, new_tokens in cells:
        for position in range(start or 0, min((start or 0) + tokens, count) if start is not None else 0):
            ticks[position] = tick
        for _ in range(new_tokens):
            ticks[new] = tick
            new += 1
    return ticks
