"""The followers in one session: what its engine tells them, and waits for."""

from collections.abc import Mapping
from typing import Any

from rekindle.concurrency.mailbox import Mailbox
from rekindle.concurrency.progress import Progress, Report
from rekindle.device.orders import Order
from rekindle.engine.hosts.members import Members
from rekindle.engine.hosts.wire import frame_of
from rekindle.errors import HostLost, HostRefused

LOOK_SECONDS = 0.1
"""How often a wait for followers looks whether it is still wanted."""
NOTICE_SECONDS = 2.0
"""How long an error waits for news of a follower's end: a broken collective is often heard of first."""


class Crew:
    """All followers, for one session.

    Args:
        members: the followers.
        number: the session's own.

    Attributes:
        closed: whether the session has ended.
    """

    def __init__(self, members: Members, number: int):
        self._members, self._number = members, number
        self._lost: Mailbox[HostLost] = Mailbox()
        self.closed = False
        members.when_lost(self._lost.put)

    def open(self, asked: Mapping[str, Any]) -> None:
        """Have all followers open a model, as `opening.asked` says it."""
        self._members.say({"say": "open", "session": self._number, **asked})

    def wait(self, report: Report) -> None:
        """Wait until all followers have opened the model.

        Raises:
            HostRefused: one of them cannot, and says why.
            HostLost: one of them is gone.
        """
        ready: set[int] = set()
        while True:
            report(Progress("waiting for followers to open it", len(ready), len(self._members), "followers"))
            if len(ready) == len(self._members):
                return
            answer = self._members.reply(LOOK_SECONDS)
            if answer is None or answer[1].header.get("session") != self._number:  # of a session that was given up
                continue
            place, (said, _) = answer
            if said["say"] == "refused":
                raise HostRefused(f"process {place + 1} of {len(self._members) + 1} cannot follow: {said['why']}")
            ready.add(place)

    def send(self, order: Order) -> None:
        """Tell all followers of an order, as the stepper does before it runs it here; never block."""
        self._members.say(*frame_of(order))

    async def watch(self) -> None:
        """Wait for the loss of a follower, for ever, and raise it.

        Raises:
            HostLost: a follower is gone.
        """
        raise await self._lost.receive()

    def reason(self, error: BaseException) -> BaseException:
        """Return the loss of a follower if that is why there is an error, else the error."""
        return self._members.lost(NOTICE_SECONDS) or error

    def close(self) -> None:
        """Tell all followers that the session has ended."""
        if not self.closed:
            self.closed = True
            self._members.say({"say": "close"})
