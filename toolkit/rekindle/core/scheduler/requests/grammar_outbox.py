"""Outbox of messages to the grammars actor."""

from collections.abc import Mapping, Sequence

from rekindle.core.messages import Advance, Message
from rekindle.core.request.request import Request
from rekindle.core.scheduler.requests.state import RequestState


class GrammarOutbox:
    """News of constrained requests for the grammars actor, collected while the scheduler handles a message.

    Attributes:
        tokens: requests with a new token, each with the token.
        ended: the ids of ended requests.
        late: the ids of requests without an answer in time; the scheduler asks for it again.
    """

    def __init__(self) -> None:
        self.tokens: list[tuple[Request, int]] = []
        self.ended: list[int] = []
        self.late: list[int] = []

    def drain(self, running: Sequence[RequestState], drafts: Mapping[int, tuple[int, ...]]) -> list[Message]:
        """Remove the news and return it as one `Advance`, with the numbers of running requests; [] without news.

        Args:
            running: the running requests.
            drafts: the drafts of requests with new tokens.
        """
        if not self.tokens and not self.ended and not self.late:
            return []
        free = sum(not state.masking.constrained for state in running)
        message = Advance(tuple(self.tokens), tuple(self.ended), len(running), free, tuple(self.late), drafts)
        self.tokens, self.ended, self.late = [], [], []
        return [message]
