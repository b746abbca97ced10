"""Uses of a model other than text generation, as described by its files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from rekindle.core.request.request import Pooling

Activation = Literal["identity", "sigmoid", "softmax", "tanh"]
"""Functions from the logits of a text to its scores."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """A model's method of computing embeddings from hidden states.

    Attributes:
        pooling: the pooling, or None if the files do not specify it.
        normalize: whether embeddings are scaled to length 1, or None if the files do not specify it.
        prompts: named texts to prepend to an input.
        default_prompt: name of the prompt used by default, or None.
        unsupported_reason: reason for unsupported embeddings; empty if they are supported.
    """

    pooling: Pooling | None = None
    normalize: bool | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    unsupported_reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Classifier:
    """A classification head on the last token's hidden state.

    Attributes:
        weight: (labels, hidden) float32.
        labels: the class names.
        activation: the function from logits to scores: "sigmoid" for independent classes, "softmax" for exclusive ones,
            "identity" for numbers.
    """

    weight: np.ndarray[Any, np.dtype[np.float32]]
    labels: tuple[str, ...]
    activation: Activation


@dataclass(frozen=True, slots=True)
class Uses:
    """The uses of a model.

    Attributes:
        generates: whether the model has a language-model head.
        embedding: the method of computing embeddings.
        classifier: the classification head, or None.
    """

    generates: bool = True
    embedding: Embedding = field(default_factory=Embedding)
    classifier: Classifier | None = None
