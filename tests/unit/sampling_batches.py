"""Make batches of requests for the step's sampling, as the intake and the packing do."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from rekindle.core.device.packing import pack_adjustments, pack_sampling
from rekindle.core.device.sampling.adjustments import Adjustments, enter_slot
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request

PROMPT, OUTPUT, END = (3, 1, 4), [1, 5, 1, 9], frozenset({2})
HOT: dict[str, Any] = {"temperature": 1.0}
CASES: list[dict[str, Any]] = [
    HOT,
    {"temperature": 0.5},
    {"temperature": 1.7, "top_k": 4},
    HOT | {"top_p": 0.7},
    HOT | {"top_p": 0.05},
    HOT | {"min_p": 0.3},
    HOT | {"repetition_penalty": 1.5},
    HOT | {"repetition_penalty": 0.7},
    HOT | {"frequency_penalty": 1.2},
    HOT | {"presence_penalty": -1.5},
    HOT | {"logit_bias": {1: 2.0, 6: -1.0, 7: float("-inf")}},
    HOT | {"allowed_token_ids": [1, 2, 5, 8, 10]},
    HOT | {"bad_words": [[9, 6], [1, 9, 7], [8], [5, 3]]},
    HOT | {"min_tokens": 5},
    HOT | {"min_tokens": 4},
    {"temperature": 0.8, "top_k": 6, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.7, "top_p": 0.8, "min_p": 0.2},
    {"temperature": 1.3, "top_k": 8, "top_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.5, "min_tokens": 9},
    {
        "temperature": 2.0,
        "min_p": 0.1,
        "top_p": 0.95,
        "frequency_penalty": -0.5,
        "logit_bias": {4: 1.5, 5: -2.0},
        "bad_words": [[1, 9, 0]],
        "allowed_token_ids": [0, 1, 4, 5, 6, 9],
    },
]

HALF, QUARTER = -math.log(2), -math.log(4)
"""The logits of tokens half and a quarter as likely as the likeliest one, relative to its logit."""
BOUNDS: list[tuple[list[float], dict[str, Any], int]] = [
    ([0, HALF, HALF], {"top_p": 0.5}, 1),
    ([0, HALF, HALF], {"top_p": 0.501}, 3),
    ([0, HALF, QUARTER, QUARTER], {"top_p": 0.499}, 1),
    ([0, HALF, QUARTER, QUARTER], {"top_p": 0.5}, 1),
    ([0, HALF, QUARTER, QUARTER], {"top_p": 0.501}, 2),
    ([0, HALF, QUARTER, QUARTER], {"top_p": 0.75}, 2),
    ([0, HALF, QUARTER, QUARTER], {"top_p": 0.751}, 4),
    ([0, 0, 0, 0], {"top_p": 0.25}, 4),
    ([0, -1, -1, -2], {"top_k": 1}, 1),
    ([0, -1, -1, -2], {"top_k": 2}, 3),
    ([0, -1, -1, -2], {"top_k": 3}, 3),
    ([0, -1, -1, -2], {"top_k": 4}, 4),
    ([0, 0, -1, -2], {"top_k": 1}, 2),
    ([0, 0, -1, -2], {"min_p": 1.0}, 2),
    ([0, HALF, HALF, QUARTER], {"min_p": 0.501}, 1),
    ([0, HALF, HALF, QUARTER], {"min_p": 0.5}, 3),
    ([0, HALF, HALF, QUARTER], {"min_p": 0.499}, 3),
    ([0, 2 * HALF, 2 * HALF, 2 * QUARTER], {"min_p": 0.5, "temperature": 2.0}, 3),
    ([0, HALF, QUARTER, QUARTER], {"top_k": 2, "top_p": 0.66}, 1),
    ([0, HALF, QUARTER, QUARTER], {"top_k": 2, "top_p": 0.67}, 2),
    ([math.log(p) for p in (0.5, 0.3, 0.15, 0.05)], {"min_p": 0.2, "top_p": 0.79}, 2),
    ([math.log(p) for p in (0.5, 0.3, 0.15, 0.05)], {"min_p": 0.2, "top_p": 0.81}, 3),
]
"""Logits, the bounds of the draws, and the number of first tokens kept: at a bound, just below it, just above."""


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 3.0]),
        "top_k": st.integers(0, 12),
        "top_p": st.floats(0.01, 1.0),
        "min_p": st.floats(0.0, 1.0),
        "repetition_penalty": st.floats(0.5, 2.0),
        "frequency_penalty": st.floats(-2, 2),
        "presence_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, 39), st.floats(-5, 5), max_size=4),
        "allowed_token_ids": st.lists(st.integers(10, 39), min_size=3, max_size=20),
        "bad_words": st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=4),
        "min_tokens": st.integers(0, 6),
        "seed": st.integers(0, 2**64 - 1),
    },
)
"""Any mix of parameters, for vocabularies of at least 40 tokens."""


def bounded_logits(logits: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the logits, followed by the logits of tokens never drawn, some of which are in the prompt."""
    return np.array([*logits, *[-100.0] * (11 - len(logits))], np.float32)


def request_of(options: dict[str, Any]) -> Request:
    """Make a request as the intake does."""
    params = SamplingParams.from_options(options)
    words = tuple(word for word in params.bad_words if isinstance(word, tuple))
    return Request(0, PROMPT, params, END, 1000, words)


def batch_of(
    requests: Sequence[Request], outputs: Sequence[Sequence[int]], vocabulary: int
) -> tuple[jax.Array, Adjustments]:
    """Pack the parameters and enter them into slots; a request without adjustments leaves its slot as it was."""
    adjustments = Adjustments.empty(len(requests), vocabulary)
    for slot, (request, output) in enumerate(zip(requests, outputs, strict=True)):
        if request.params.adjusts:
            packed = jnp.asarray(pack_adjustments(request, output, vocabulary))
            adjustments = enter_slot(adjustments, jnp.int32(slot), packed)
    return jnp.asarray(np.stack([pack_sampling(request) for request in requests])), adjustments
