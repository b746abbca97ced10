"""The groups of a mesh's data axis: each has pages and slots of its own, and all compute their ticks in step."""

from collections.abc import Iterable, Sequence

from rekindle.core.scheduler.cache.outbox import HostTierOutbox
from rekindle.core.scheduler.cache.prefix_cache import PrefixCache
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.requests.running import RunningSet
from rekindle.core.scheduler.requests.state import RequestState


class Group:
    """The devices that compute the same rows.

    Pages and slots are numbered over all groups: each group has as many as the others, one group after the other.

    Attributes:
        number: which group it is.
        cache: its pages, and the prefix tree over them.
        running: the requests that it computes.
        owed: tokens that those who wait for it have to compute, as far as was known when they joined.
    """

    def __init__(self, limits: EngineLimits, outbox: HostTierOutbox, number: int):
        self.number = number
        self.cache = PrefixCache(limits, outbox, number)
        self.running = RunningSet(range(number * limits.max_running, (number + 1) * limits.max_running))
        self.owed = 0

    def uncached(self, state: RequestState) -> int:
        """Return how many tokens of a request it would have to compute."""
        found = self.cache.tree.match(state.namespace, state.reusable)
        return len(state.tokens) - len(found) * self.cache.tree.page_size

    def load(self, state: RequestState) -> tuple[int, int]:
        """Return how many tokens are to be computed before a request has its first, and how many requests run."""
        begun = sum(max(0, other.prefill_end - other.computed) for other in self.running)
        return self.owed + begun + self.uncached(state), len(self.running)


def least_loaded(groups: Sequence[Group], state: RequestState) -> Group:
    """Return the group that comes soonest to the first token of a request."""
    return groups[0] if len(groups) == 1 else min(groups, key=lambda group: group.load(state))


def requests_of(groups: Iterable[Group]) -> list[RequestState]:
    """Return the requests that run, those of each group in the order in which they were admitted."""
    return [state for group in groups for state in group.running]
