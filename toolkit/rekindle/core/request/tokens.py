"""Outcomes of a request, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # parsers of the command line import this module, and do without numpy
    import numpy as np

EndReason = Literal["stop", "length", "repetition", "cancelled", "held"]
"""Reason for the end of a request. "stop": an end token or a stop string. "length": `max_tokens` or the context.
"repetition": the limit of repetition, in chats. "cancelled": cancelled by the caller. "held": the prefix is held."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    r"""Log-probability of a token: of the model, before any sampling parameter, or by `logprobs_of`.

    Attributes:
        token_id: id of the token.
        text: text of the token alone; for a part of a character its bytes, as in `\xe4\xb8`.
        logprob: natural logarithm of the token's probability.
        rank: rank among all tokens; 1 is the likeliest.
        top: the likeliest tokens at this position, likeliest first, without `top`: the requested number, or fewer if
            fewer are possible.
        bytes: UTF-8 bytes of the token. Joined over all tokens, they are the text with its special tokens.
    """

    token_id: int
    text: str
    logprob: float
    rank: int
    top: tuple["TokenLogprob", ...] = ()
    bytes: bytes = b""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a generation, available as soon as it is settled.

    Attributes:
        text: text completed by these tokens; empty while a character or a possible stop string is incomplete.
        token_ids: token ids of the piece, usually one.
        logprobs: one entry per token; None unless requested.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None

    def __str__(self) -> str:
        return self.text


def first_runs(runs: Sequence[tuple[int, int]], tokens: int) -> tuple[tuple[int, int], ...]:
    """Return the runs of the first tokens of an output: (version of the weights, number of tokens) of each."""
    starts = accumulate((count for _, count in runs), initial=0)
    pairs = ((version, min(count, tokens - start)) for (version, count), start in zip(runs, starts, strict=False))
    return tuple((version, count) for version, count in pairs if count > 0)


@dataclass(frozen=True, slots=True, eq=False)
class StateSum:
    """Sum of the last hidden states, after the final norm, of consecutive prompt tokens, or each of them.

    Attributes:
        count: number of tokens.
        values: the sum, (hidden,) float32; or the states of all tokens of a prompt, (tokens, hidden).
    """

    count: int
    values: "np.ndarray[Any, np.dtype[np.float32]]"
