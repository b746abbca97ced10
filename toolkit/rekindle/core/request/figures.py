"""The figures of a request: how far it is, its tokens, what was cached of them, and its times."""

from dataclasses import dataclass

from rekindle.core import markup


@dataclass(frozen=True, slots=True)
class Standing:
    """The progress of a request.

    Attributes:
        state: "waiting", "running", "cancelling", or how the request ended.
        prompt_tokens: tokens in its prompt; None as long as it waits.
        generated: tokens generated so far.
        seconds: the time since it was submitted.
    """

    state: str
    prompt_tokens: int | None
    generated: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Tokens of a prompt that were found in the prefix cache, by the tier that each was in."""

    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        """The number of tokens that were found in any tier."""
        return self.device + self.host + self.disk

    def __str__(self) -> str:
        tiers = {"on the device": self.device, "in host memory": self.host, "on disk": self.disk}
        return ", ".join(f"{count:,} {where}" for where, count in tiers.items() if count) or "none"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request.

    Attributes:
        prompt_tokens: tokens in the prompt, those of the chat template included.
        completion_tokens: tokens generated, the one that ended it included.
        reasoning_tokens: of these, the tokens of the reasoning, without the marks around it.
    """

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """The number of tokens in prompt and output together."""
        return self.prompt_tokens + self.completion_tokens

    def said(self, cached: CachedTokens) -> dict[str, str]:
        """Return what a cell shows of these tokens, by name."""
        found = f" (cached: {cached})" if cached.total else ""
        thought = f" (reasoning: {self.reasoning_tokens:,})" if self.reasoning_tokens else ""
        return {
            "prompt": f"{markup.quantity(self.prompt_tokens, 'token')}{found}",
            "generated": f"{markup.quantity(self.completion_tokens, 'token')}{thought}",
        }


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds since the request was submitted, on its caller's side.

    Attributes:
        queued: until it left the waiting queue.
        first_token: until its first token came, or until its end if none came.
        total: until its end.
    """

    queued: float
    first_token: float
    total: float

    def per_token(self, tokens: int) -> float | None:
        """Return the seconds for each token after the first, of so many; None if there is no other."""
        return (self.total - self.first_token) / (tokens - 1) if tokens > 1 else None

    def said(self, tokens: int) -> dict[str, str | None]:
        """Return what a cell shows of these times after so many tokens, by name."""
        each = self.per_token(tokens)
        return {
            "queued": markup.seconds(self.queued),
            "first token after": markup.seconds(self.first_token),
            "then per token": None if each is None else markup.seconds(each),
            "total": markup.seconds(self.total),
        }
