"""How well a model predicts a text."""

import math
from dataclasses import dataclass

from rekindle.core import markup
from rekindle.core.request.tokens import TokenLogprob
from rekindle.results.heat_map import heat_map


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The log-probabilities of a text, token by token, and what follows of them.

    Attributes:
        logprobs: one for each token of the text, None for its first, which nothing stands before.
        windows: how many windows were computed.
        text_bytes: the UTF-8 bytes of the text; None if it was given as token ids.
    """

    logprobs: tuple[TokenLogprob | None, ...]
    windows: int
    text_bytes: int | None = None

    @property
    def scored(self) -> int:
        """The number of tokens that are predicted."""
        return sum(token is not None for token in self.logprobs)

    @property
    def total(self) -> float:
        """The natural logarithm of the probability of the text after its first token."""
        return math.fsum(token.logprob for token in self.logprobs if token is not None)

    @property
    def nll(self) -> float:
        """The mean of the negative log-probabilities of the tokens that are predicted."""
        return -self.total / self.scored

    @property
    def perplexity(self) -> float:
        """The exponential of `nll`."""
        return math.exp(self.nll)

    @property
    def bits_per_byte(self) -> float | None:
        """The bits that the text takes by the model for each of its bytes; None for a text of token ids."""
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
