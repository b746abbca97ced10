"""The uses of a model other than generating text, as its files describe them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rekindle.core.request.request import Pooling


@dataclass(frozen=True, slots=True)
class Embedding:
    """The way in which a model's authors make embeddings of its hidden states.

    Attributes:
        pooling: None if they do not say.
        normalize: whether embeddings have length 1; None if they do not say.
        prompts: texts to put before a text, by name.
        default_prompt: the name of the one that is put there if a call names none; None for none.
        unserved: why these embeddings cannot be computed; empty if they can.
    """

    pooling: Pooling | None = None
    normalize: bool | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    unserved: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Classifier:
    """A head that classifies a text by the hidden state of its last token.

    Attributes:
        weight: (labels, hidden) float32.
        labels: the names of the classes.
        independent: whether each class is likely or not by itself, rather than one of all.
    """

    weight: np.ndarray[Any, np.dtype[np.float32]]
    labels: tuple[str, ...]
    independent: bool


@dataclass(frozen=True, slots=True)
class Uses:
    """The uses of a model.

    Attributes:
        generates: whether it has a head that predicts the next token.
        classifier: the head that classifies texts; None if it has none.
    """

    generates: bool = True
    embedding: Embedding = field(default_factory=Embedding)
    classifier: Classifier | None = None
