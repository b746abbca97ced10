"""Classification of a text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rekindle import markup
from rekindle.core.words import percent
from rekindle.formats.checkpoints.uses import Activation
from rekindle.results.scores.options import softmax


@dataclass(frozen=True, slots=True)
class Classification:
    """Classification of a text by the classification head of a model.

    Attributes:
        labels: the names of the classes.
        logits: the logit of each class.
        activation: the model's function from logits to scores: "softmax" for exclusive classes, "sigmoid" for
            independent ones (multi-label), "identity" for regression, or "tanh".
    """

    labels: tuple[str, ...]
    logits: tuple[float, ...]
    activation: Activation

    @property
    def independent(self) -> bool:
        """True for independent classes (multi-label, or numbers), False for mutually exclusive ones."""
        return self.activation != "softmax"

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Probability of each class; with the activation "identity" or "tanh", its number."""
        return activated(self.logits, self.activation)

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
        form = "{:.4g}".format if self.activation in ("identity", "tanh") else percent
        return [(label, form(share)) for share, label in pairs]


def activated(logits: Sequence[float], activation: Activation) -> tuple[float, ...]:
    """Return the scores of a text from its logits."""
    match activation:
        case "identity":
            return tuple(logits)
        case "sigmoid":
            return tuple(map(sigmoid, logits))
        case "softmax":
            return softmax(logits)
        case "tanh":
            return tuple(map(math.tanh, logits))


def sigmoid(logit: float) -> float:
    """Return the sigmoid 1 / (1 + exp(-logit)), without overflow."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
