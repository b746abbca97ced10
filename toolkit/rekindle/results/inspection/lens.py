"""The logit lens: what each layer would predict."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rekindle import markup
from rekindle.core.words import percent, quantity
from rekindle.results.inspection.grids import name_of

SHOWN_TOKENS = 24
"""The most tokens of a picture: the last ones."""
SHOWN_LAYERS = 16
"""The most layers of a picture: every second, third, ... from the last one."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LogitLens:
    """The likeliest next tokens as if each layer were the last one.

    Attributes:
        tokens: the text of each token of the prompt.
        layers: the layers.
        token_ids: (layers, tokens, top) int32, the likeliest next tokens, the likeliest first.
        texts: their texts, in nested tuples of the same shape.
        logprobs: (layers, tokens, top) float32, their log-probabilities.
        image_positions: the positions of the tokens of images, which a cell leaves out.
    """

    tokens: tuple[str, ...]
    layers: tuple[int, ...]
    token_ids: np.ndarray[Any, np.dtype[np.int32]]
    texts: tuple[tuple[tuple[str, ...], ...], ...]
    logprobs: np.ndarray[Any, np.dtype[np.float32]]
    image_positions: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        lines = [f"<rekindle.LogitLens: {self._facts()}; the next token after {self.tokens[-1]!r} by layer:"]
        for place, layer in enumerate(self.layers):
            best, share = self.texts[place][-1][0], math.exp(min(0.0, float(self.logprobs[place, -1, 0])))
            lines.append(f"  {layer:>3} {best!r} {percent(share)}")
        return "\n".join(lines) + ">"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        note = "the likeliest next token after each token, by layer; the deeper the shade, the surer"
        notes = markup.note(note) + markup.note(self._omissions())
        return markup.bundle(
            repr(self), markup.card("Logit lens", self._facts(), self._table(), notes, self._numbers())
        )

    def _facts(self) -> str:
        return f"{quantity(len(self.layers), 'layer')}, {quantity(len(self.tokens), 'token')}"

    def _table(self) -> str:
        places, columns = self._places()
        head = "".join(f'<th scope="col" style="{_CELL}">{_name(self.tokens[column])}</th>' for column in columns)
        lines = [f'<tr style="{_ROW}"><th scope="col" style="{_CELL}">layer</th>{head}</tr>']
        for place in places:
            cells = "".join(self._cell(place, column) for column in columns)
            lines.append(f'<tr style="{_ROW}"><th scope="row" style="{_CELL}">{self.layers[place]}</th>{cells}</tr>')
        table = f'<table style="border-collapse:collapse;font-size:0.9em">{"".join(lines)}</table>'
        # Keys scroll a region that has the focus.
        return f'<div role="group" aria-label="Logit lens" tabindex="0" style="overflow-x:auto">{table}</div>'

    def _places(self) -> tuple[list[int], list[int]]:
        """Return the places of the shown layers, the last one first, and of the shown tokens."""
        places = range(len(self.layers) - 1, -1, -self._step)
        return list(places), self._texts[-SHOWN_TOKENS:]

    @property
    def _texts(self) -> list[int]:
        """The positions of the tokens that are no images."""
        return [position for position in range(len(self.tokens)) if position not in self.image_positions]

    @property
    def _step(self) -> int:
        """The distance between two shown layers."""
        return max(1, math.ceil(len(self.layers) / SHOWN_LAYERS))

    def _omissions(self) -> str:
        """Return the layers and tokens without a place in the picture, as text; empty if it is complete."""
        places, columns = self._places()
        layers = [layer for place, layer in enumerate(self.layers) if place not in places]
        notes = [f"one layer of {self._step} is shown: without {', '.join(map(str, layers))}"] if layers else []
        earlier = len(self._texts) - len(columns)
        notes += [f"without the first {quantity(earlier, 'token')}"] if earlier else []
        images = len(self.image_positions)
        notes += [f"without {quantity(images, 'token')} of images"] if images else []
        return "; ".join(notes)

    def _numbers(self) -> str:
        """Return the likeliest tokens with their numbers as folded HTML, for keyboards and screen readers."""
        places, columns = self._places()
        lines = [
            f"layer {self.layers[place]}, after {self.tokens[column]!r}: {self._ranking(place, column, ', ')}"
            for place in places
            for column in columns
        ]
        return markup.folded("numbers of the tokens", markup.preformatted("\n".join(lines)))

    def _cell(self, place: int, column: int) -> str:
        words, likeliest = (
            self._ranking(place, column, "\n"),
            math.exp(min(0.0, float(self.logprobs[place, column, 0]))),
        )
        shade = f"background:rgba({markup.COOL},{0.7 * likeliest:.2f})"
        name = _name(self.texts[place][column][0])
        return f'<td title="{markup.visible(words)}" style="{_CELL};{shade}">{name}</td>'

    def _ranking(self, place: int, column: int, between: str) -> str:
        """Return the likeliest tokens of a cell with their ranks and probabilities."""
        pairs = zip(self.texts[place][column], self.logprobs[place, column], strict=True)
        shares = ((text, math.exp(min(0.0, float(logprob)))) for text, logprob in pairs)
        return between.join(f"{rank}. {text!r} {percent(share)}" for rank, (text, share) in enumerate(shares, 1))


_ROW = "background:none"  # the pages of notebooks have stripes, which would be mistaken for shades
_CELL = "padding:0.1em 0.4em;border:0;text-align:left;font-weight:normal;white-space:pre"


def _name(text: str) -> str:
    return markup.visible(name_of(text))
