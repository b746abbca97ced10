"""The logit lens: what each layer would predict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rekindle.core import markup
from rekindle.results.inspection.grids import COLOUR, name_of

SHOWN_TOKENS = 24
"""The most tokens of a picture: the last ones."""
SHOWN_LAYERS = 16
"""The most layers of a picture: evenly spaced, with the last one."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LogitLens:
    """The likeliest next tokens as if each layer were the last one.

    Attributes:
        tokens: the text of each token of the prompt.
        layers: the layers.
        token_ids: (layers, tokens, top) int32, the likeliest next tokens, the likeliest first.
        texts: their texts, in nested tuples of the same shape.
        logprobs: (layers, tokens, top) float32, their log-probabilities.
    """

    tokens: tuple[str, ...]
    layers: tuple[int, ...]
    token_ids: np.ndarray[Any, np.dtype[np.int32]]
    texts: tuple[tuple[tuple[str, ...], ...], ...]
    logprobs: np.ndarray[Any, np.dtype[np.float32]]

    def __repr__(self) -> str:
        lines = [f"<rekindle.LogitLens: {self._facts()}; the next token after {self.tokens[-1]!r} by layer:"]
        for place, layer in enumerate(self.layers):
            best, share = self.texts[place][-1][0], math.exp(min(0.0, float(self.logprobs[place, -1, 0])))
            lines.append(f"  {layer:>3} {best!r} {markup.percent(share)}")
        return "\n".join(lines) + ">"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        note = "the likeliest next token after each token, by layer; the deeper the shade, the surer"
        card = markup.card("Logit lens", self._facts(), self._table(), f'<div style="opacity:0.75">{note}</div>')
        return markup.bundle(repr(self), card)

    def _facts(self) -> str:
        return f"{markup.quantity(len(self.layers), 'layer')}, {markup.quantity(len(self.tokens), 'token')}"

    def _table(self) -> str:
        places = sorted({round(each) for each in np.linspace(0, len(self.layers) - 1, SHOWN_LAYERS)}, reverse=True)
        columns = range(max(0, len(self.tokens) - SHOWN_TOKENS), len(self.tokens))
        head = "".join(f'<th scope="col" style="{_CELL}">{_name(self.tokens[column])}</th>' for column in columns)
        lines = [f'<tr><th scope="col" style="{_CELL}">layer</th>{head}</tr>']
        for place in places:
            cells = "".join(self._cell(place, column) for column in columns)
            lines.append(f'<tr><th scope="row" style="{_CELL}">{self.layers[place]}</th>{cells}</tr>')
        table = f'<table style="border-collapse:collapse;font-size:85%">{"".join(lines)}</table>'
        return f'<div style="overflow-x:auto">{table}</div>'

    def _cell(self, place: int, column: int) -> str:
        shares = [math.exp(min(0.0, float(each))) for each in self.logprobs[place, column]]
        words = _ranking(self.texts[place][column], shares)
        shade = f"background:rgba({COLOUR},{0.7 * shares[0]:.2f})"
        name = _name(self.texts[place][column][0])
        return f'<td title="{markup.visible(words)}" style="{_CELL};{shade}">{name}</td>'


_CELL = "padding:0.1em 0.4em;text-align:left;font-weight:normal;white-space:pre"


def _name(text: str) -> str:
    return markup.visible(name_of(text))


def _ranking(texts: Sequence[str], shares: Sequence[float]) -> str:
    pairs = zip(texts, shares, strict=True)
    return "\n".join(f"{rank}. {text!r} {markup.percent(share)}" for rank, (text, share) in enumerate(pairs, 1))
