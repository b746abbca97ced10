"""Groups of a mesh's data axis: each has separate pages and slots, and all compute their ticks in step."""

from collections.abc import Iterable, Iterator, Sequence

from rekindle.core.buckets import QUERY_BLOCK
from rekindle.core.scheduler.cache.outbox import HostTierOutbox
from rekindle.core.scheduler.cache.prefix_cache import PrefixCache
from rekindle.core.scheduler.limits import EngineLimits
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


class Group:
    """A data-parallel group of devices, with its page cache and its running requests.

    Pages and slots are numbered over all groups: first those of group 0, then as many of group 1, and so on.

    Attributes:
        number: the number of the group.
        cache: its pages, and the prefix tree over them.
        running: its running requests.
        queued_tokens: tokens to compute for its queued requests, estimated when each joined.
    """

    def __init__(self, limits: EngineLimits, outbox: HostTierOutbox, number: int):
        self.number = number
        self.cache = PrefixCache(limits, outbox, number)
        self.running = RunningSet(range(number * limits.max_running, (number + 1) * limits.max_running))
        self.queued_tokens = 0

    def uncached(self, state: RequestState) -> int:
        """Return the number of tokens of a request to compute in this group."""
        last = state.last_usable(self.cache.tree.match(state.namespace, state.reusable, marks=state.marks))
        return len(state.tokens) - (last.depth if last else 0) * self.cache.tree.page_size

    def load(self, state: RequestState) -> tuple[int, int]:
        """Return the load for a new request: tokens to compute before its first one, and running requests."""
        running_tokens = sum(max(0, other.prefill_end - other.computed) for other in self.running)
        return self.queued_tokens + running_tokens + self.uncached(state), len(self.running)


def least_loaded(groups: Sequence[Group], state: RequestState) -> Group:
    """Return the group expected to generate the next token of a request first."""
    return groups[0] if len(groups) == 1 else min(groups, key=lambda group: group.load(state))


def requests_of(groups: Iterable[Group]) -> list[RequestState]:
    """Return the running requests, group by group, each in the order of admission."""
    return [state for group in groups for state in group.running]
