"""What comes of a request token by token."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

EndReason = Literal["stop", "length", "cancelled", "held"]
"""Why a request ended. "stop": an end token or a stop string. "length": `max_tokens` or the context. "cancelled": its
caller. "held": it asked for a prefix, which is computed."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    r"""The probability of a token: by the model alone, before any sampling parameter, or as `logprobs_of` asks.

    Attributes:
        token_id: the token.
        text: the text of this token by itself; of a part of a character its bytes, as in `\xe4\xb8`.
        logprob: the natural logarithm of its probability.
        rank: its rank among all tokens; 1 is the likeliest.
        top: the likeliest tokens at this position, as many as were asked for and are possible, the likeliest first,
            without `top`.
        bytes: the UTF-8 bytes of this token; those of all tokens, joined, are the text with its special tokens.
    """

    token_id: int
    text: str
    logprob: float
    rank: int
    top: tuple["TokenLogprob", ...] = ()
    bytes: bytes = b""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a generation, as soon as it is settled.

    Attributes:
        text: the text that these tokens complete; empty while a character, or a possible stop string, is incomplete.
        token_ids: one token, as a rule.
        logprobs: one for each token; None unless asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, eq=False)
class StateSum:
    """The sum of the last hidden states, after the final norm, of tokens of a prompt that follow each other.

    Attributes:
        count: how many tokens.
        values: (hidden,) float32.
    """

    count: int
    values: np.ndarray[Any, np.dtype[np.float32]]
