"""Figures of a request on its caller's side: progress, counts of tokens, and times."""

from dataclasses import dataclass

from rekindle.core.request.figures import CachedTokens
from rekindle.core.words import quantity, seconds


@dataclass(frozen=True, slots=True)
class Standing:
    """Progress of a request.

    Attributes:
        state: "waiting", "running", "cancelling", or the reason for its end.
        prompt_tokens: tokens in the prompt; None while the request waits.
        generated: tokens generated so far.
        seconds: time since submission.
    """

    state: str
    prompt_tokens: int | None
    generated: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request.

    Attributes:
        prompt_tokens: tokens in the prompt, including the chat template's.
        completion_tokens: generated tokens, including the end token.
        reasoning_tokens: generated tokens of the reasoning, without its delimiters.
        image_tokens: tokens of images in the prompt, a part of `prompt_tokens`.
    """

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0
    image_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Number of tokens in prompt and output together."""
        return self.prompt_tokens + self.completion_tokens

    def texts(self, cached: CachedTokens, images: int = 0) -> dict[str, str]:
        """Return the counts as text for a notebook cell, by name.

        Args:
            cached: the prompt tokens found in the cache.
            images: the number of images in the prompt; 0 if it is unknown.
        """
        which = quantity(images, "image") if images else "images"
        of_prompt = [f"{which}: {self.image_tokens:,}"] if self.image_tokens else []
        of_prompt += [f"cached: {cached}"] if cached.total else []
        parts = f" ({', '.join(of_prompt)})" if of_prompt else ""
        of_reasoning = f" (reasoning: {self.reasoning_tokens:,})" if self.reasoning_tokens else ""
        return {
            "prompt": f"{quantity(self.prompt_tokens, 'token')}{parts}",
            "generated": f"{quantity(self.completion_tokens, 'token')}{of_reasoning}",
        }


@dataclass(frozen=True, slots=True)
class Timings:
    """Times of a request on its caller's side, in seconds since submission.

    Attributes:
        queued: time until the request left the waiting queue.
        first_token: time until the first token, or until the end without a token.
        total: time until the end.
    """

    queued: float
    first_token: float
    total: float

    def per_token(self, tokens: int) -> float | None:
        """Return the mean seconds per token after the first; None for fewer than 2 tokens."""
        return (self.total - self.first_token) / (tokens - 1) if tokens > 1 else None

    def texts(self, tokens: int) -> dict[str, str | None]:
        """Return the times as text for a notebook cell, by name."""
        each = self.per_token(tokens)
        return {
            "queued": seconds(self.queued),
            "first token after": seconds(self.first_token),
            "then per token": None if each is None else seconds(each),
            "total": seconds(self.total),
        }
