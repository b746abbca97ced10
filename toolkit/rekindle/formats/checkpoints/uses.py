"""Uses of a model other than text generation, as described by its files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.request import AnyPooling, Pooling
from rekindle.formats.checkpoints.heads import Floats, HeadLayer, WordHead, product

Activation = Literal["identity", "sigmoid", "softmax", "tanh"]
"""Functions from the logits of a text to its scores."""


DENSE_ACTIVATIONS: Final[Mapping[str, Callable[[Floats], Floats]]] = {
    "Identity": lambda x: x,
    "ReLU": lambda x: np.maximum(x, 0.0),
    "Sigmoid": lambda x: 0.5 * (1.0 + np.tanh(0.5 * x)),
    "Tanh": np.tanh,
}
"""Activations by the name of their class in torch."""


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A dense layer after the pooling of hidden states, as of sentence-transformers.

    Attributes:
        weight: (out, in) float32.
        bias: (out,) float32; None for none.
        activation: a name in `DENSE_ACTIVATIONS`.
    """

    weight: np.ndarray[Any, np.dtype[np.float32]]
    bias: np.ndarray[Any, np.dtype[np.float32]] | None = None
    activation: str = "Identity"

    def __call__(self, rows: Floats) -> Floats:
        """Map rows (rows, in) to (rows, out)."""
        product = rows @ self.weight.astype(np.float64).T
        return DENSE_ACTIVATIONS[self.activation](product if self.bias is None else product + self.bias)


@dataclass(frozen=True, slots=True)
class ConversationForm:
    """The form of texts as conversations, with the model's prompt as their system message.

    Attributes:
        variables: variables of the chat template, by name.
        has_parts: whether the content of a message is a list of parts.
    """

    variables: Mapping[str, Any]
    has_parts: bool

    def message(self, role: str, content: Any) -> dict[str, Any]:
        """Return a message with a text, or with parts."""
        is_whole = isinstance(content, str) and self.has_parts
        return {"role": role, "content": [{"type": "text", "text": content}] if is_whole else content}


@dataclass(frozen=True, slots=True)
class Embedding:
    """A model's method of computing embeddings from hidden states.

    Attributes:
        pooling: the pooling, or None if the files do not specify it.
        normalize: whether embeddings are scaled to length 1, or None if the files do not specify it.
        prompts: named texts to prepend to an input, or to be the system message before it.
        default_prompt: name of the prompt used by default, or None.
        dense: dense layers after the pooling.
        messages: the form of texts as conversations; None for texts as they are.
        pools_prompt: whether the pooling takes the tokens of a prompt before the text.
        unsupported_reason: reason for unsupported embeddings; empty if they are supported.
    """

    pooling: AnyPooling | None = None
    normalize: bool | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    dense: tuple[Dense, ...] = ()
    messages: ConversationForm | None = None
    pools_prompt: bool = True
    unsupported_reason: str = ""

    def project(self, rows: Floats) -> Floats:
        """Return pooled hidden states, (rows, hidden), after the dense layers."""
        for layer in self.dense:
            rows = layer(rows)
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class Classifier:
    """A classification head on a hidden state.

    Attributes:
        weight: (labels, hidden) float32.
        labels: the class names.
        activation: the function from logits to scores: "sigmoid" for independent classes, "softmax" for exclusive ones,
            "identity" for numbers.
        bias: (labels,) float32; None for none.
        layers: layers before the product with `weight`.
        pooling: the selection of a text's hidden states, for a head over texts.
    """

    weight: np.ndarray[Any, np.dtype[np.float32]]
    labels: tuple[str, ...]
    activation: Activation
    bias: np.ndarray[Any, np.dtype[np.float32]] | None = None
    layers: tuple[HeadLayer, ...] = ()
    pooling: Pooling = "last"

    def logits(self, states: Floats) -> Floats:
        """Return the logits (rows, labels) for hidden states (rows, hidden)."""
        for layer in self.layers:
            states = layer(states)
        return product(states, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class DecisionForm:
    """A model's form of typed questions, from decision.json and decision_template.jinja of transformers.

    Attributes:
        labels: the labels of options by the kind of question, "choice", "noul" (yes or no) or "score"; kinds that are
            missing have Yes and No, or the letters A, B, C, ...
        temperature: the divisor of the logits of labels, by kind; 1 for a missing one.
        noul_options: the order of "true" and "false".
        template: the Jinja source of the prompt; None for the common one, in the model's chat template.
    """

    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    temperature: Mapping[str, float] = field(default_factory=dict)
    noul_options: tuple[str, str] = ("true", "false")
    template: str | None = None


@dataclass(frozen=True, slots=True)
class Uses:
    """The uses of a model.

    Attributes:
        generates: whether the model has a language-model head.
        embedding: the method of computing embeddings.
        classifier: the classification head over texts, or None.
        tokens: the classification head over tokens, or None.
        words: the head over masked words, or None.
        decisions: the form of typed questions.
        answers: the tokens of yes and no of a model that ranks by its answer; None without those in its files.
        both_ways: whether the model reads each text in both directions, and so predicts no tokens.
    """

    generates: bool = True
    embedding: Embedding = field(default_factory=Embedding)
    classifier: Classifier | None = None
    tokens: Classifier | None = None
    words: WordHead | None = None
    decisions: DecisionForm = field(default_factory=DecisionForm)
    answers: tuple[int, int] | None = None
    both_ways: bool = False

    def check_generates(self) -> None:
        """Raise InvalidRequest if the model has no language-model head, or reads texts in both directions."""
        if self.both_ways or not self.generates:
            labels = 0 if self.classifier is None else len(self.classifier.labels)
            others = {0: "", 1: ", classify() or rerank()"}.get(labels, " or classify()")
            others += "" if self.tokens is None else " or spans()"
            others += "" if self.words is None else " or fill()"
            reason = "reads texts in both directions" if self.both_ways else "has no head that predicts tokens"
            raise InvalidRequest(f"the model {reason}, so it generates and scores nothing: use embed(){others}")
