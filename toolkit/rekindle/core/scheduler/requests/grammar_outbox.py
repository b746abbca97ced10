"""Outbox of messages to the grammars."""

from collections.abc import Sequence

from rekindle.core.messages import Advance, Message
from rekindle.core.request.request import Request
from rekindle.core.scheduler.requests.state import RequestState


class GrammarOutbox:
    """Progress of constrained requests, to send to the grammars.

    Attributes:
        tokens: requests with a new token, each with the token.
        ended: the ids of ended requests.
        late: the ids of requests with a late answer, to ask about again.
    """

    def __init__(self) -> None:
        self.tokens: list[tuple[Request, int]] = []
        self.ended: list[int] = []
        self.late: list[int] = []

    def drain(self, running: Sequence[RequestState]) -> list[Message]:
        """Remove and return the queued messages, given the running requests."""
        if not self.tokens and not self.ended and not self.late:
            return []
        free = sum(not state.masking.constrained for state in running)
        message = Advance(tuple(self.tokens), tuple(self.ended), len(running), free, tuple(self.late))
        self.tokens, self.ended, self.late = [], [], []
        return [message]
