"""Sampling parameters of the requests whose tokens are compared."""

from typing import Any

SEEDED: dict[str, Any] = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "seed": 11}
MIXED: dict[str, Any] = {
    **SEEDED,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.3,
    "presence_penalty": -0.2,
    "logit_bias": {17: 2.0, 18: -3.0},
    "bad_words": [[4, 5], [6]],
    "allowed_token_ids": range(3, 500),
    "min_tokens": 5,
    "min_p": 0.01,
}
