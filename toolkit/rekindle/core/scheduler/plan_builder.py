"""A plan while it is being made."""

from rekindle.core.buckets import QUERY_BLOCK
from rekindle.core.messages import Chunk, Message, Onload, Plan, Row
from rekindle.core.scheduler.cache.tree import NextPage
from rekindle.core.scheduler.requests.state import RequestState


class PlanBuilder:
    """The work of the next tick, as far as it is decided.

    Args:
        budget: prompt tokens that each group has room for.
        groups: how many there are.

    Attributes:
        budgets: prompt tokens that each group has room for.
        chunks, rows, onloads: its parts.
        computing: the requests of the chunks.
        coming: for each group, the first page of each of them that is not published, which others wait for.
        said: what is to be said besides the plan.
        steps: how many tokens each row may get.
    """

    def __init__(self, budget: int, groups: int):
        self.budgets = [budget] * groups
        self.chunks: list[Chunk] = []
        self.rows: list[Row] = []
        self.onloads: list[Onload] = []
        self.computing: list[RequestState] = []
        self.coming: list[set[NextPage | None]] = [set() for _ in range(groups)]
        self.said: list[Message] = []
        self.steps = 1

    @property
    def empty(self) -> bool:
        """Tell whether the tick would do nothing."""
        return not (self.chunks or self.rows or self.onloads)

    def add(self, chunk: Chunk, state: RequestState) -> None:
        """Compute this chunk of a request; the budget is of whole query blocks."""
        self.budgets[state.group] -= -(-len(chunk.tokens) // QUERY_BLOCK) * QUERY_BLOCK
        self.chunks.append(chunk)
        self.computing.append(state)
        self.coming[state.group].add(state.next_page())

    def plan(self, tick: int, preempted: tuple[int, ...], losses: int) -> Plan:
        """Return the plan for a tick, with who was preempted since the plan before."""
        parts = tuple(self.chunks), tuple(self.rows), tuple(self.onloads)
        return Plan(tick, *parts, preempted, losses, self.steps)
