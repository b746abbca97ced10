"""What is computed in the next tick: chunks of prompts, decode rows, and who is admitted for them."""

from collections.abc import Sequence
from operator import attrgetter

from rekindle.core.errors import PromptTooLong
from rekindle.core.messages import Output, Started
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.plan_builder import PlanBuilder
from rekindle.core.scheduler.requests.lease import Lease
from rekindle.core.scheduler.requests.state import RequestState
from rekindle.core.scheduler.requests.table import RequestTable
from rekindle.core.scheduler.writeback import DiskWriteback


class Planner:
    """Drafts one tick after the other.

    Args:
        limits: the budgets of a tick, and the order of chunks and rows.
        table: the requests; who is admitted gets slot and pages there.
        writeback: is told which cached pages are used.
    """

    def __init__(self, limits: EngineLimits, table: RequestTable, writeback: DiskWriteback):
        self._limits = limits
        self._table = table
        self._writeback = writeback
        self._last_had_rows = False

    def builder(self, *, only_started: bool) -> PlanBuilder:
        """Decide on the next tick.

        Args:
            only_started: admit nobody who has not started.
        """
        builder, ticks = PlanBuilder(self._limits.max_prefill_tokens, len(self._table.groups)), self._limits.ticks
        rows_first = ticks == "combined" or (ticks == "alternate" and not self._last_had_rows)
        if rows_first:
            self._add_rows(builder)
        if ticks == "combined" or not builder.rows:
            self._add_chunks(builder, only_started)
        if not rows_first and not builder.chunks:
            self._add_rows(builder)
        if not builder.empty:
            self._last_had_rows = bool(builder.rows)
        return builder

    def make_room(self, first: RequestState) -> PromptTooLong | None:
        """Make room for who comes next, when nothing runs and only staged or held pages are in its way.

        Returns:
            What it is to be rejected with if no room can be made.
        """
        if self._table.waiting.give_up_staged(first) or self._moved(first):
            return None
        assert self._table.group_of(first).cache.held, "a request has no room though nobody holds any"
        return PromptTooLong.of("prompt", self._held_up(first))

    # Rows

    def _add_rows(self, builder: PlanBuilder) -> None:
        """Add a decode row for each request that can have one, rows of similar context side by side."""
        builder.steps = steps = self._steps()
        wanting = [state for state in self._table.running if state.wants_token]
        able = [state for state in wanting if self._reserve_next(state, steps)]
        kept = [state for state in able if state.lease is not None]  # a later one may have taken an earlier one's
        for state in sorted(kept, key=attrgetter("computed")):
            slot = self._table.group_of(state).running.slots[state]
            builder.rows.append(state.next_row(slot) if steps == 1 else state.next_rows(slot, steps))

    def _steps(self) -> int:
        """Return how many tokens each row of the next tick may get.

        It is one where somebody waits for a turn or for a page, or where the host has to see each token first.
        """
        steps, table = self._limits.decode_steps, self._table
        if steps == 1 or len(table.waiting) or self._limits.long_from is not None:
            return 1
        if any(state.in_prefill or state.masking.constrained for state in table.running):
            return 1
        for group in table.groups:
            wanting = [state for state in group.running if state.wants_token and state.lease is not None]
            if sum(state.missing_pages(state.steps(steps)) for state in wanting) > group.cache.available:
                return 1
        return steps

    def _reserve_next(self, state: RequestState, steps: int) -> bool:
        """See that the next positions have pages, as `RequestTable.reserve` does.

        Return False also if the request was preempted because it has to be computed again: its tokens turn otherwise
        from now on, once all of them are known.
        """
        if state.outgrown:
            if not state.pending:
                self._table.preempt(state)
            return False
        return self._table.reserve(state, state.computed + (1 if steps == 1 else state.steps(steps)))

    # Chunks

    def _add_chunks(self, builder: PlanBuilder, only_started: bool) -> None:
        """Add chunks of prompts within the token budget, those that are already under way first."""
        table = self._table
        for state in table.running:
            if state.in_prefill and builder.budgets[state.group]:
                self._add_chunk(builder, state)
        roomy = {group.number for group in table.groups if group.running.free_slots}
        able = {number for number in roomy if builder.budgets[number]}
        next_tick = roomy - able
        ready = table.waiting.ready(able, next_tick, builder.coming, builder.said, only_started=only_started)
        while able and (candidate := next(ready, None)):
            state, nodes = candidate
            admitted = self._admit(state, nodes, builder)
            if admitted and state.in_prefill:
                self._add_chunk(builder, state)
            elif admitted:
                table.hold(state)
            full = not builder.budgets[state.group]
            if not admitted or full or not table.group_of(state).running.free_slots:
                able.discard(state.group)
            if admitted and full and table.group_of(state).running.free_slots:
                next_tick.add(state.group)

    def _add_chunk(self, builder: PlanBuilder, state: RequestState) -> None:
        most = min(self._limits.prefill_chunk, builder.budgets[state.group])
        chunk = state.next_chunk(self._table.group_of(state).running.slots[state], most)
        if state.request.hold and not state.in_prefill:
            state.held_at = self._table.counts.ticks + 1
        builder.add(chunk, state)

    # Admission

    def _admit(self, state: RequestState, nodes: Sequence[Node], builder: PlanBuilder) -> bool:
        """Give a request a slot and pages for all its tokens, the cached ones first; return False if there is no room.

        A page is left for each running request, or its admission would soon preempt it.
        """
        table, group = self._table, self._table.group_of(state)
        warm = [node for node in nodes if node.page is not None]
        lease = Lease(group.cache, state.namespace, warm)
        needed = self._pages_for(state) - len(warm)
        if needed + len(group.running) > group.cache.available or not lease.reserve(needed):
            lease.release()
            return False
        onload = table.waiting.onload(state, nodes[len(warm) :], lease)
        if onload is not None:
            builder.onloads.append(onload)
        state.begin(lease)
        cached = state.cached(onload)
        table.waiting.leave(state)
        group.running.join(state)
        self._writeback.use(group.cache, lease.tip)
        table.counts.admitted(state.prefill_end, cached, again=state.started)
        if not state.started:
            state.started = True
            group.cache.tree.hit(lease.tip)
            request = state.request
            builder.said.append(Started(request.id, request.prompt, request.params.seed, cached, table.exchanges))
            if request.initial_output:
                table.counts.forced(len(request.initial_output) - len(request.output_prefix))
                table.outputs.append(Output(request, request.initial_output, None))
        return True

    def _pages_for(self, state: RequestState) -> int:
        """Return how many pages a request needs before it starts."""
        # One that was preempted would compute its output again by another program, with other last digits.
        tokens = state.final_length if self._limits.one_shape else len(state.tokens)
        return -(-tokens // self._limits.pool.page_size)

    def _moved(self, state: RequestState) -> bool:
        """Let a request that its own group has no room for wait for one that has; return False if there is none."""
        roomiest = max(self._table.groups, key=lambda group: group.cache.available)
        if self._pages_for(state) > roomiest.cache.available:
            return False
        assert roomiest is not self._table.group_of(state), "a request has no room though it fits"
        self._table.waiting.move(state, roomiest)
        return True

    def _held_up(self, state: RequestState) -> str:
        """Say that a request has no room beside the prefixes that are held, and what the caller can do."""
        then = "go on, with the tokens that it has generated" if state.started else "start"
        left = max(group.cache.available for group in self._table.groups)
        return (
            f"the request needs {self._pages_for(state)} pages to {then}, and prefixes that are held leave "
            f"{left} of {self._limits.pool.num_pages - 1}; release one, or raise num_pages in open()"
        )
