"""A settler under the control of a test, and a function to step a session to its end."""

from rekindle.core.concurrency.feed import Feed
from rekindle.core.messages import Message
from rekindle.session.session import Session
from rekindle.testing import FakeSettler


class Telling(FakeSettler):
    """A settler with a feed of its messages. Each tick waits for its release.

    Args:
        fails: whether it then raises an error instead of an answer.
    """

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__(held=True)
        self._fails = fails
        self.took: Feed[Message] = Feed()

    async def handle(self, message: Message) -> list[Message]:
        self.took.put(message)
        messages = await super().handle(message)
        if self._fails:
            raise ZeroDivisionError("the device is gone")
        return messages


async def run_to_the_end(session: Session) -> None:
    """Step until no message waits."""
    while await session.step() is not None:
        pass
