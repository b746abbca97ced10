"""Classification of a text."""

import math
from dataclasses import dataclass

from rekindle.core import markup
from rekindle.results.scores.options import softmax


@dataclass(frozen=True, slots=True)
class Classification:
    """Classification of a text by the classification head of a model.

    Attributes:
        labels: the names of the classes.
        logits: the logit of each class.
        independent: whether the classes are independent (multi-label), rather than mutually exclusive.
    """

    labels: tuple[str, ...]
    logits: tuple[float, ...]
    independent: bool

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Probability of each class: the sigmoid of its logit if `independent`, otherwise the softmax of all logits."""
        return tuple(map(sigmoid, self.logits)) if self.independent else softmax(self.logits)

    @property
    def best(self) -> str:
        """Most likely class."""
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
    """Return the sigmoid 1 / (1 + exp(-logit)), without overflow."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
