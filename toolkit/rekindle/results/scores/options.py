"""Scores of alternative continuations of a prompt."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rekindle import markup
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.words import one_line, percent, quantity

By = Literal["total", "token", "byte"]
"""Normalization of an option's log-probability: none, by its number of tokens, or by its number of bytes."""


@dataclass(frozen=True, slots=True)
class Option:
    """Continuation of a prompt, with its log-probabilities.

    Attributes:
        text: the text of the option.
        logprobs: the log-probability of each token.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...]

    @property
    def total(self) -> float:
        """Natural logarithm of the probability of the whole text."""
        return math.fsum(token.logprob for token in self.logprobs)

    @property
    def per_token(self) -> float:
        """Total log-probability divided by the number of tokens."""
        return self.total / len(self.logprobs)

    @property
    def per_byte(self) -> float:
        """Total log-probability divided by the number of UTF-8 bytes of the text."""
        return self.total / len(self.text.encode())

    @property
    def greedy(self) -> bool:
        """True if greedy decoding would generate this option: each token is the most likely one."""
        return all(token.rank == 1 for token in self.logprobs)

    def __repr__(self) -> str:
        return f"<Option {self.text!r:.80}: logprob {self.total:.3f}, {quantity(len(self.logprobs), 'token')}>"

    def by(self, by: By) -> float:
        """Return the log-probability, normalized.

        Args:
            by: "total" for no normalization, "token" for the mean per token, "byte" for the mean per byte.

        Raises:
            InvalidRequest: `by` is not "total", "token" or "byte".
        """
        values = {"total": self.total, "token": self.per_token, "byte": self.per_byte}
        if by not in values:
            raise InvalidRequest(f"by must be one of {', '.join(map(repr, values))}, got {by!r:.80}")
        return values[by]


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of several options after one prompt, in the order of the call.

    Attributes:
        options: the options with their log-probabilities.
        cached_tokens: the number of prompt tokens found in the prefix cache instead of computed, over all options.
    """

    options: tuple[Option, ...]
    cached_tokens: int = 0

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Total log-probability of each option, as a natural logarithm."""
        return tuple(option.total for option in self.options)

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Probability of each option relative to all options: the softmax of `logprobs`."""
        return softmax(self.logprobs)

    @property
    def best(self) -> str:
        """Text of the most likely option."""
        return self.ranked()[0].text

    def ranked(self, by: By = "total") -> list[Option]:
        """Return the options, most likely first, with ties in their original order.

        Args:
            by: "total" compares total log-probabilities, which favours short options. "token" and "byte" compare the
                means per token or per byte.

        Raises:
            InvalidRequest: `by` is not "total", "token" or "byte".
        """
        return sorted(self.options, key=lambda option: -option.by(by))

    def __str__(self) -> str:
        return self.best

    def __repr__(self) -> str:
        lines = [" ".join(f"{cell:>11}" for cell in row[1:]) + f"  {row[0]}" for row in [_HEAD, *self._rows()]]
        return "\n".join([f"<rekindle.Scores: {quantity(len(self.options), 'option')}, best {self.best!r}>", *lines])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        state = f"{quantity(len(self.options), 'option')}, {self.cached_tokens} tokens cached"
        return markup.bundle(repr(self), markup.card("Scores", state, markup.table(self._rows(), _HEAD)))

    def _rows(self) -> list[tuple[str, ...]]:
        shares = dict(zip(map(id, self.options), self.probabilities, strict=True))
        return [
            (
                one_line(option.text, 60),
                percent(shares[id(option)]),
                f"{option.total:.3f}",
                f"{option.per_token:.3f}",
                f"{option.per_byte:.3f}",
            )
            for option in self.ranked()
        ]


_HEAD = ("option", "probability", "logprob", "per token", "per byte")


def softmax(logits: Sequence[float]) -> tuple[float, ...]:
    """Return the softmax of the logits. The largest logit is subtracted first, to avoid overflow."""
    highest = max(logits)
    shares = [math.exp(logit - highest) for logit in logits]
    return tuple(share / math.fsum(shares) for share in shares)
