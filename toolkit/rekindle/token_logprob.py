"""How likely a token was: plain data, which the settler reads from the device's scores."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was by the model alone, before any sampling parameter.

    Attributes:
        token_id: the token.
        text: the text of this token by itself; U+FFFD where it is a part of a character.
        logprob: natural logarithm of its probability.
        rank: its place among all tokens; 1 is the likeliest.
        top: the likeliest tokens at this place, as many as were asked for, the likeliest first; theirs are empty.
    """

    token_id: int
    text: str
    logprob: float
    rank: int
    top: tuple["TokenLogprob", ...] = ()
