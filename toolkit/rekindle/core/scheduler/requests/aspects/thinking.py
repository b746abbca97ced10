"""Budget of a request's thoughts."""

from typing import Any

from rekindle.core.request.request import Request
from rekindle.core.request.thoughts import ThoughtLimit, ThoughtWatch


class Thinking:
    """The thoughts of one request with a budget and without a constraint.

    A thought ends by tokens added to the output and computed as a chunk, or by masks for one token each.

    Args:
        limit: the limit of the thoughts.
        watch: the watch over its output so far.
        masked: whether masks end a thought.

    Attributes:
        watch, masked: as above.
    """

    def __init__(self, limit: ThoughtLimit, watch: ThoughtWatch, *, masked: bool):
        self._masks, self.watch, self.masked = limit.masks, watch, masked

    @classmethod
    def of(cls, request: Request, *, jumps: bool) -> "Thinking | None":
        """Return the thoughts of a request, or None without a budget.

        Args:
            request: the request.
            jumps: whether the device computes added tokens as a chunk.
        """
        limit = request.thoughts
        if limit is None or request.constrained is not None:
            return None  # the matcher of a constraint has the budget
        masked = not jumps or request.params.logprobs is not None  # tokens of a chunk have no log-probabilities
        return cls(limit, ThoughtWatch(limit, request.initial_output), masked=masked)

    @property
    def forced(self) -> tuple[int, ...]:
        """The tokens to add to the output now."""
        return () if self.masked else self.watch.forced

    def bits(self, pending: int) -> Any:
        """Return the mask of the token after `pending` more, as in `Allowed.bits`; None without masks."""
        if not self.masked:
            return None
        forced = self.watch.forced
        return self._masks[forced[pending] if pending < len(forced) else None]
