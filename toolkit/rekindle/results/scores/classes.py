"""The class of a text, as a model's classifying head sees it."""

import math
from dataclasses import dataclass

from rekindle.core import markup
from rekindle.results.scores.options import softmax


@dataclass(frozen=True, slots=True)
class Classification:
    """The classes of a text.

    Attributes:
        labels: the names of the classes.
        logits: what the head gives for each.
        independent: whether each class is likely or not by itself, rather than one of all.
    """

    labels: tuple[str, ...]
    logits: tuple[float, ...]
    independent: bool

    @property
    def probabilities(self) -> tuple[float, ...]:
        """The probability of each class: its own if they are independent, else they are 1 in sum."""
        return tuple(map(sigmoid, self.logits)) if self.independent else softmax(self.logits)

    @property
    def best(self) -> str:
        """The likeliest class."""
        return self.labels[self.logits.index(max(self.logits))]

    def __str__(self) -> str:
        return self.best

    def __repr__(self) -> str:
        return f"<rekindle.Classification: {', '.join(f'{label} {share}' for label, share in self._rows())}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(repr(self), markup.card("Classification", self.best, markup.table(self._rows())))

    def _rows(self) -> list[tuple[str, str]]:
        pairs = sorted(zip(self.probabilities, self.labels, strict=True), key=lambda pair: -pair[0])
        return [(label, markup.percent(share)) for share, label in pairs]


def sigmoid(logit: float) -> float:
    """Return the probability whose odds have this logarithm."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
