"""The running set: requests with a slot and pages."""

from collections.abc import Iterator

from rekindle.core.buckets import QUERY_BLOCK
from rekindle.core.scheduler.requests.state import RequestState


class RunningSet:
    """The running requests of one group, each with a slot and a lease, in the order of admission.

    Args:
        slots: the numbers of the slots.

    Attributes:
        slots: the slot of each request.
        free_slots: the free slots; the last one is used next.
        preempted: the ids of requests preempted since the last plan.
    """

    def __init__(self, slots: range):
        self._all = slots
        self.slots: dict[RequestState, int] = {}
        self.free_slots = list(reversed(slots))
        self.preempted: list[int] = []

    def __len__(self) -> int:
        return len(self.slots)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self.slots)

    @property
    def victim(self) -> RequestState:
        """The request to preempt first: of the lowest priority, the last one admitted."""
        return max(reversed(self.slots), key=lambda state: state.request.params.priority)

    @property
    def next_slot(self) -> int:
        """The slot that the next request joins."""
        return self.free_slots[-1]

    def join(self, state: RequestState) -> None:
        """Give a free slot to a request with a lease."""
        self.slots[state] = self.free_slots.pop()

    def leave(self, state: RequestState) -> None:
        """Publish the computed pages of a request, and take its slot and its pages back."""
        self.free_slots.append(self.slots.pop(state))
        state.give_back()

    def check(self) -> None:
        """Assert the invariants: each slot has one holder, each request is within its pages and its tokens."""
        slots = sorted([*self.slots.values(), *self.free_slots])
        assert slots == list(self._all), "slots do not add up"
        for state in self.slots:
            assert state.lease is not None, "a request runs without a lease"
            state.lease.check()
            assert state.computed <= state.lease.reserved, "computed past its pages"
            assert state.computed <= len(state.tokens) + state.pending, "computed past its tokens"
            is_computed = state.has_states or state.lease.published <= state.computed + QUERY_BLOCK
            assert is_computed, "published before it was computed"
