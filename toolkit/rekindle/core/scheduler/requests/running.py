"""The running set: who has a slot and pages."""

from collections.abc import Iterator

from rekindle.core.buckets import QUERY_BLOCK
from rekindle.core.scheduler.requests.tracked import Tracked


class RunningSet:
    """Requests with a slot and a lease, in the order in which they were admitted.

    Args:
        slots: their numbers.

    Attributes:
        slots: the slot of each.
        free_slots: the others; the last one is taken next.
        preempted: the ids of those that gave their pages back since the last plan.
    """

    def __init__(self, slots: range):
        self._all = slots
        self.slots: dict[Tracked, int] = {}
        self.free_slots = list(reversed(slots))
        self.preempted: list[int] = []

    def __len__(self) -> int:
        return len(self.slots)

    def __iter__(self) -> Iterator[Tracked]:
        return iter(self.slots)

    @property
    def victim(self) -> Tracked:
        """The request that gives its pages back first: of the lowest priority, the one that was admitted last."""
        return max(reversed(self.slots), key=lambda tracked: tracked.request.params.priority)

    def join(self, tracked: Tracked) -> None:
        """Give a free slot to a request that has a lease."""
        self.slots[tracked] = self.free_slots.pop()

    def leave(self, tracked: Tracked) -> None:
        """Take the slot and the pages of a request back; what is computed of it is published first."""
        self.free_slots.append(self.slots.pop(tracked))
        tracked.give_back()

    def check(self) -> None:
        """Assert that every slot has one holder, and that every request is within its pages and its tokens."""
        slots = sorted([*self.slots.values(), *self.free_slots])
        assert slots == list(self._all), "slots do not add up"
        for tracked in self.slots:
            assert tracked.lease is not None, "a request runs without a lease"
            tracked.lease.check()
            assert tracked.computed <= tracked.lease.reserved, "computed past its pages"
            assert tracked.computed <= len(tracked.tokens) + tracked.pending, "computed past its tokens"
            assert tracked.lease.published <= tracked.computed + QUERY_BLOCK, "published before it was computed"
