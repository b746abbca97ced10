"""How likely some texts are after a prompt."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rekindle.core import markup
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.tokens import TokenLogprob

By = Literal["total", "token", "byte"]
"""What the log-probability of an option is divided by: nothing, or its number of tokens or bytes."""


@dataclass(frozen=True, slots=True)
class Option:
    """One text, and how likely it is after the prompt.

    Attributes:
        text: the option as it was given.
        logprobs: one for each of its tokens.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...]

    @property
    def total(self) -> float:
        """The natural logarithm of the probability of the whole text."""
        return math.fsum(token.logprob for token in self.logprobs)

    @property
    def per_token(self) -> float:
        """The total, divided by the number of tokens."""
        return self.total / len(self.logprobs)

    @property
    def per_byte(self) -> float:
        """The total, divided by the number of UTF-8 bytes of the text."""
        return self.total / len(self.text.encode())

    @property
    def greedy(self) -> bool:
        """Tell whether each of its tokens is the likeliest, so that it is what greedy decoding would write."""
        return all(token.rank == 1 for token in self.logprobs)

    def __repr__(self) -> str:
        return f"<Option {self.text!r:.80}: logprob {self.total:.3f}, {markup.quantity(len(self.logprobs), 'token')}>"

    def by(self, by: By) -> float:
        """Return the total, or what it is when divided.

        Raises:
            InvalidRequest: it is none of "total", "token" and "byte".
        """
        known = {"total": self.total, "token": self.per_token, "byte": self.per_byte}
        if by not in known:
            raise InvalidRequest(f"by must be one of {', '.join(map(repr, known))}, got {by!r:.80}")
        return known[by]


@dataclass(frozen=True, slots=True)
class Scores:
    """Options after one prompt, in the order in which they were given.

    Attributes:
        options: each with its log-probabilities.
        cached_tokens: how many tokens of all options' prompts were found in the prefix cache instead of computed.
    """

    options: tuple[Option, ...]
    cached_tokens: int = 0

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The natural logarithm of the probability of each option."""
        return tuple(option.total for option in self.options)

    @property
    def probabilities(self) -> tuple[float, ...]:
        """The probability of each option if it is one of these: they are 1 in sum."""
        return softmax(self.logprobs)

    @property
    def best(self) -> str:
        """The text of the likeliest option."""
        return self.ranked()[0].text

    def ranked(self, by: By = "total") -> list[Option]:
        """Return the options, likeliest first; equal ones stay in their order.

        Args:
            by: "total" compares whole options, "token" and "byte" what they are per token or per byte, which does not
                favour short ones.

        Raises:
            InvalidRequest: `by` is none of these.
        """
        return sorted(self.options, key=lambda option: -option.by(by))

    def __str__(self) -> str:
        return self.best

    def __repr__(self) -> str:
        lines = [" ".join(f"{cell:>11}" for cell in row[1:]) + f"  {row[0]}" for row in [_HEAD, *self._rows()]]
        return "\n".join(
            [f"<rekindle.Scores: {markup.quantity(len(self.options), 'option')}, best {self.best!r}>", *lines]
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        state = f"{markup.quantity(len(self.options), 'option')}, {self.cached_tokens} tokens cached"
        return markup.bundle(repr(self), markup.card("Scores", state, markup.table(self._rows(), _HEAD)))

    def _rows(self) -> list[tuple[str, ...]]:
        shares = dict(zip(map(id, self.options), self.probabilities, strict=True))
        return [
            (
                markup.one_line(option.text, 60),
                markup.percent(shares[id(option)]),
                f"{option.total:.3f}",
                f"{option.per_token:.3f}",
                f"{option.per_byte:.3f}",
            )
            for option in self.ranked()
        ]


_HEAD = ("option", "probability", "logprob", "per token", "per byte")


def softmax(logits: Sequence[float]) -> tuple[float, ...]:
    """Return the probabilities whose logarithms differ as these numbers do."""
    highest = max(logits)
    shares = [math.exp(logit - highest) for logit in logits]
    return tuple(share / math.fsum(shares) for share in shares)
