"""Pooling of the hidden states of a text's tokens, of encoders."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from rekindle.formats.checkpoints.heads import Floats


def _weighted(states: Floats) -> Floats:
    weights = np.arange(1.0, len(states) + 1)
    mean: Floats = weights @ states / weights.sum()
    return mean


def _mean(states: Floats) -> Floats:
    mean: Floats = states.mean(0)
    return mean


def _maximum(states: Floats) -> Floats:
    greatest: Floats = states.max(0)
    return greatest


def _by_root(states: Floats) -> Floats:
    mean: Floats = states.sum(0) / np.sqrt(len(states))
    return mean


POOLINGS: Final[Mapping[str, Callable[[Floats], Floats]]] = {
    "max": _maximum,
    "mean": _mean,
    "mean_sqrt_len": _by_root,
    "weightedmean": _weighted,
}
"""Functions from the hidden states of tokens, (tokens, hidden), to one, by the names of sentence-transformers."""


def pooled(states: Floats, pooling: str, skipped: int) -> Floats:
    """Return the pooled state of tokens, without the first ones; of all, if a long prompt leaves none.

    Args:
        states: (tokens, hidden).
        pooling: a name in `POOLINGS`.
        skipped: the number of first tokens left out.
    """
    return POOLINGS[pooling](states[skipped:] if skipped < len(states) else states)
