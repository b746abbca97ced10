"""Compute the distribution of the step's draws by its definition: in float64, with sorts and loops."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rekindle.core.request.request import Request

Array = np.ndarray[Any, np.dtype[Any]]


def adjusted_logits(logits: Array, request: Request, output: Sequence[int]) -> Array:
    """Apply logit bias, repetition, frequency and presence penalty, bad words, min tokens and allowed tokens."""
    params, x = request.params, logits.astype(np.float64).copy()
    for token, bias in params.logit_bias:
        x[token] += bias
    for token in {*request.prompt, *output}:
        x[token] = x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
    for token in set(output):
        x[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    context = [*request.prompt, *output]
    for word in request.bad_words:
        if context[len(context) - len(word) + 1 :] == list(word[:-1]):
            x[word[-1]] = -math.inf
    if len(output) < params.min_tokens:
        x[list(request.end_ids)] = -math.inf
    if params.allowed_token_ids is not None:
        x[[token for token in range(len(x)) if token not in params.allowed_token_ids]] = -math.inf
    return x


def distribution(logits: Array, request: Request, output: Sequence[int] = ()) -> Array:
    """Return the probability of each token; for a greedy request it is 1 for the likeliest.

    Tokens of equal logits are all kept, or none of them.
    """
    params, x = request.params, adjusted_logits(logits, request, output)
    if params.temperature == 0:
        certain: Array = np.eye(len(x))[np.argmax(x)]
        return certain
    scaled = x / params.temperature
    p = np.exp(scaled - scaled.max())
    if params.top_k:
        p[p < np.sort(p)[-params.top_k :][0]] = 0
    p /= p.sum()
    if params.top_p < 1:
        ahead = np.array([p[p > own].sum() for own in p])
        p[ahead >= params.top_p] = 0
    p[p < params.min_p * p.max()] = 0
    whole: Array = p / p.sum()
    return whole
