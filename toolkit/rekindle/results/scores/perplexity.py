"""Perplexity of a text."""

import math
from dataclasses import dataclass

from rekindle import markup
from rekindle.core.request.tokens import TokenLogprob
from rekindle.results.heat_map import heat_map


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Log-probabilities of a text, token by token, and the measures derived from them.

    Attributes:
        logprobs: the log-probability of each token of the text; None for the first token, which has no context.
        windows: the number of windows computed.
        text_bytes: the number of UTF-8 bytes of the text; None for a text of token ids.
    """

    logprobs: tuple[TokenLogprob | None, ...]
    windows: int
    text_bytes: int | None = None

    @property
    def scored(self) -> int:
        """Number of predicted tokens: all but the first."""
        return sum(token is not None for token in self.logprobs)

    @property
    def total(self) -> float:
        """Natural logarithm of the probability of the text, given its first token."""
        return math.fsum(token.logprob for token in self.logprobs if token is not None)

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood per predicted token, in nats."""
        return -self.total / self.scored

    @property
    def perplexity(self) -> float:
        """Perplexity, exp(`nll`)."""
        return math.exp(self.nll)

    @property
    def bits_per_byte(self) -> float | None:
        """Negative log2-likelihood divided by `text_bytes`; None for a text of token ids."""
        return None if self.text_bytes is None else -self.total / math.log(2) / self.text_bytes

    def __float__(self) -> float:
        return self.perplexity

    def __repr__(self) -> str:
        return (
            f"<rekindle.Perplexity: {', '.join(f'{name} {value}' for name, value in self._facts().items() if value)}>"
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        tokens = heat_map(self.logprobs)
        return markup.bundle(repr(self), markup.card("Perplexity", "", markup.facts(self._facts()), tokens))

    def _facts(self) -> dict[str, str | None]:
        bits = self.bits_per_byte
        return {
            "perplexity": f"{self.perplexity:.4f}",
            "nll": f"{self.nll:.4f}",
            "bits per byte": None if bits is None else f"{bits:.4f}",
            "tokens scored": f"{self.scored:,}",
            "windows": f"{self.windows:,}",
        }
