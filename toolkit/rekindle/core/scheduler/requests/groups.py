"""Groups of a mesh's data axis: each has separate pages and slots, and all compute their ticks in step."""

from collections.abc import Iterable, Sequence

from rekindle.core.scheduler.cache.outbox import HostTierOutbox
from rekindle.core.scheduler.cache.prefix_cache import PrefixCache
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.requests.running import RunningSet
from rekindle.core.scheduler.requests.state import RequestState


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
