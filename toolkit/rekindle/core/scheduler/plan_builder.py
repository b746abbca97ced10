"""Builder of the plan for the next tick."""

from rekindle.core.buckets import QUERY_BLOCK
from rekindle.core.messages import Chunk, Message, Onload, Plan, Row, SegmentEmbedding
from rekindle.core.scheduler.cache.tree import NextPage
from rekindle.core.scheduler.requests.state import RequestState


class PlanBuilder:
    """The parts of the plan for one tick, collected by the `Planner`; the `Scheduler` sends the plan.

    Args:
        budget: the limit of prompt tokens for each group.
        groups: the number of groups.

    Attributes:
        budgets: the remaining prompt tokens of each group.
        chunks, rows, onloads, embeddings: the parts of the plan.
        prefilling, decoding: the requests of the chunks, and of the rows.
        expected_pages: for each group, the first unpublished page of each request in prefill. Other requests wait for
            these pages instead of computing the same.
        kept_images: the digests of the images in the chunks.
        messages: messages to send after the plan.
        steps: the limit of new tokens for each row.
    """

    def __init__(self, budget: int, groups: int):
        self.budgets = [budget] * groups
        self.chunks: list[Chunk] = []
        self.rows: list[Row] = []
        self.onloads: list[Onload] = []
        self.embeddings: list[SegmentEmbedding] = []
        self.kept_images: set[bytes] = set()
        self.prefilling: list[RequestState] = []
        self.decoding: list[RequestState] = []
        self.expected_pages: list[set[NextPage | None]] = [set() for _ in range(groups)]
        self.messages: list[Message] = []
        self.steps = 1

    @property
    def is_empty(self) -> bool:
        """True if the tick would do nothing."""
        return not (self.chunks or self.rows or self.onloads or self.embeddings)

    def add(self, chunk: Chunk, state: RequestState) -> None:
        """Add a chunk of a request, and subtract its whole query blocks from the group's budget."""
        self.budgets[state.group] -= -(-len(chunk.tokens) // QUERY_BLOCK) * QUERY_BLOCK
        self.chunks.append(chunk)
        self.prefilling.append(state)
        self.expect(state)

    def expect(self, state: RequestState) -> None:
        """Expect the next page of a request from this tick or a later one."""
        self.expected_pages[state.group].add(state.next_page())

    def plan(self, tick: int, preempted: tuple[int, ...], losses: int) -> Plan:
        """Return the plan for a tick, with the requests preempted since the previous plan."""
        parts = tuple(self.chunks), tuple(self.rows), tuple(self.onloads)
        return Plan(tick, *parts, preempted, losses, self.steps, tuple(self.embeddings))
