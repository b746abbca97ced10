"""A settler that tests can follow and hold back, and a function that steps a session to its end."""

from rekindle.core.concurrency.feed import Feed
from rekindle.core.messages import Message
from rekindle.session.session import Session
from rekindle.testing import FakeSettler


class Telling(FakeSettler):
    """A settler that reports what it took. Each tick waits until it is released.

    Args:
        fails: whether it then raises an error instead of answering.
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
