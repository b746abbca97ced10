"""Classified tokens of a text, and the spans that they make."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rekindle import markup
from rekindle.core.words import one_line, percent, quantity

LONGEST: Final = 80
"""Most characters of a span in a card."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text with a class.

    Attributes:
        label: the class, without the "B-" or "I-" of its tokens; with it for single tokens.
        score: the mean probability of the class over its tokens.
        word: the text of its tokens, as the tokenizer decodes them.
        start, end: the place in the text, in characters.
    """

    label: str
    score: float
    word: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The classes of the tokens of a text. Iteration yields the `Span` of each part with a class, in order.

    Attributes:
        text: the text.
        labels: the names of the classes.
        token_ids: the tokens, with the special ones around the text.
        logits: the logit of each class for each token, (tokens, labels) float32.
        spans: the parts of the text with a class other than "O".
    """

    text: str
    labels: tuple[str, ...]
    token_ids: tuple[int, ...]
    logits: np.ndarray[Any, np.dtype[np.float32]]
    spans: tuple[Span, ...]

    def __len__(self) -> int:
        return len(self.spans)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __getitem__(self, index: int) -> Span:
        return self.spans[index]

    def __repr__(self) -> str:
        parts = "; ".join(f"{each.label} {self._part(each)!r} {percent(each.score)}" for each in self.spans)
        return f"<rekindle.Spans: {quantity(len(self.spans), 'span')}{parts and f': {parts}'}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        rows = [(f"{each.label} {percent(each.score)}", one_line(self._part(each), LONGEST)) for each in self.spans]
        title = quantity(len(self.spans), "span")
        return markup.bundle(repr(self), markup.card("Spans", title, markup.table(rows)))

    def _part(self, span: Span) -> str:
        return self.text[span.start : span.end]
