"""A settler that tests can follow and hold back, and a session that is stepped to its end."""

from rekindle.concurrency.feed import Feed
from rekindle.messages import Message
from rekindle.session.session import Session
from rekindle.testing import FakeSettler


class Telling(FakeSettler):
    """Says what it took; each tick waits to be let go.

    Args:
        fails: raise an error then, instead of an answer.
    """

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__(held=True)
        self._fails = fails
        self.took: Feed[Message] = Feed()

    async def handle(self, message: Message) -> list[Message]:
        self.took.put(message)
        said = await super().handle(message)
        if self._fails:
            raise ZeroDivisionError("the device is gone")
        return said


async def run_to_the_end(session: Session) -> None:
    """Step until no message waits."""
    while await session.step() is not None:
        pass
