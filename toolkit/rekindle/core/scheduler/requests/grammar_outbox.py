"""What the grammars are to be told of constrained requests."""

from collections.abc import Sequence

from rekindle.core.messages import Advance, Message
from rekindle.core.request.request import Request
from rekindle.core.scheduler.requests.state import RequestState


class GrammarOutbox:
    """Constrained requests that go on or have ended, as it is to be said.

    Attributes:
        tokens: those that have generated a token, with it.
        ended: the ids of those that have ended.
        late: the ids of those to ask about again, since their answer was not ready.
    """

    def __init__(self) -> None:
        self.tokens: list[tuple[Request, int]] = []
        self.ended: list[int] = []
        self.late: list[int] = []

    def said(self, running: Sequence[RequestState]) -> list[Message]:
        """Return what the grammars are to be told, once, while these requests run."""
        if not self.tokens and not self.ended and not self.late:
            return []
        free = sum(not state.masking.constrained for state in running)
        said = Advance(tuple(self.tokens), tuple(self.ended), len(running), free, tuple(self.late))
        self.tokens, self.ended, self.late = [], [], []
        return [said]
