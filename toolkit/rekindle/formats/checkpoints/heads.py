"""Heads of encoders, computed by numpy from hidden states."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Weights = np.ndarray[Any, np.dtype[np.float32]]


def _gelu(x: Floats) -> Floats:
    from scipy.special import erf  # type: ignore[import-untyped]

    result: Floats = 0.5 * x * (1 + erf(x / np.sqrt(2)))
    return result


def _gelu_tanh(x: Floats) -> Floats:
    result: Floats = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return result


def _sigmoid(x: Floats) -> Floats:
    result: Floats = 0.5 * (1 + np.tanh(0.5 * x))
    return result


HEAD_ACTIVATIONS: Final[Mapping[str, Callable[[Floats], Floats]]] = {
    "tanh": np.tanh,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_quick": lambda x: x * _sigmoid(1.702 * x),
    "silu": lambda x: x * _sigmoid(x),
    "relu": lambda x: np.maximum(x, 0.0),
    "relu_squared": lambda x: np.maximum(x, 0.0) ** 2,
}
"""Activations of heads: those of feed-forward layers without learned numbers, and "tanh"."""


@dataclass(frozen=True, slots=True, eq=False)
class RowNorm:
    """LayerNorm of rows.

    Attributes:
        weight: (features,) float32.
        bias: (features,) float32; None for none.
        eps: the number added to the variance.
    """

    weight: Weights
    bias: Weights | None
    eps: float

    def __call__(self, rows: Floats) -> Floats:
        """Normalise rows (rows, features)."""
        centred = rows - rows.mean(-1, keepdims=True)
        y: Floats = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + self.eps) * self.weight
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, slots=True, eq=False)
class HeadLayer:
    """A product with an activation, and a norm after it.

    Attributes:
        weight: (out, in) float32.
        bias: (out,) float32; None for none.
        activation: a name in `HEAD_ACTIVATIONS`.
        norm: the norm; None for none.
    """

    weight: Weights
    bias: Weights | None
    activation: str
    norm: RowNorm | None = None

    def __call__(self, rows: Floats) -> Floats:
        """Map rows (rows, in) to (rows, out)."""
        y = HEAD_ACTIVATIONS[self.activation](product(rows, self.weight, self.bias))
        return y if self.norm is None else self.norm(y)


def product(rows: Floats, weight: Weights, bias: Weights | None) -> Floats:
    """Return the product of rows (rows, in) with a matrix (out, in), and the sum with a bias."""
    y: Floats = rows @ weight.astype(np.float64).T
    return y if bias is None else y + bias


@dataclass(frozen=True, slots=True, eq=False)
class WordHead:
    """The head of an encoder over masked words.

    Attributes:
        layers: the layers before the product with all words.
        weight: returns the matrix of words, (vocabulary, features); it is the embedding in most models.
        bias: (vocabulary,) float32; None for none.
        mask: the token in the place of a missing word.
        mask_text: its text.
    """

    layers: tuple[HeadLayer, ...]
    weight: Callable[[], Any]
    bias: Weights | None
    mask: int
    mask_text: str

    def logits(self, rows: Floats) -> Floats:
        """Return the logit of each word of the vocabulary, (rows, vocabulary), for hidden states (rows, hidden)."""
        for layer in self.layers:
            rows = layer(rows)
        matrix = np.asarray(self.weight()).astype(np.float32)
        y: Floats = rows @ matrix.T
        return y if self.bias is None else y + self.bias
