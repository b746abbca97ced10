"""What the grammars are to be told of constrained requests."""

from rekindle.messages import Advance, Message
from rekindle.request.request import Request


class Advances:
    """Constrained requests that go on or have ended, as it is to be said.

    Attributes:
        taken: those that have generated a token, with it.
        ended: the ids of those that have ended.
    """

    def __init__(self) -> None:
        self.taken: list[tuple[Request, int]] = []
        self.ended: list[int] = []

    def said(self, running: int) -> list[Message]:
        """Return what the grammars are to be told, once, while so many requests run."""
        if not self.taken and not self.ended:
            return []
        said = Advance(tuple(self.taken), tuple(self.ended), running)
        self.taken, self.ended = [], []
        return [said]
