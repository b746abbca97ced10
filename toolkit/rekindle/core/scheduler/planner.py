"""Planner of the next tick: prompt chunks, decode rows, and admission."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from rekindle.core.buckets import QUERY_BLOCK, smallest
from rekindle.core.errors import PromptTooLong
from rekindle.core.messages import Output, Row, Settled, Started
from rekindle.core.request.picture import Picture
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.plan_builder import PlanBuilder
from rekindle.core.scheduler.requests.lease import Lease
from rekindle.core.scheduler.requests.state import RequestState
from rekindle.core.scheduler.requests.table import RequestTable
from rekindle.core.scheduler.requests.work import drafted_rows, next_chunk, next_row
from rekindle.core.scheduler.writeback import DiskWriteback

TICK_SECONDS: Final = 0.01
"""Longest time of a tick with several steps: a new request, or the end of one, waits for at most two of them."""
ALONE_SECONDS, ALONE_STEPS = 0.04, 4
"""Longest time and most steps of a tick for one request alone on a CPU, whose cores then have less to do for Python."""
WEIGHT: Final = 0.2
"""Weight of a new measurement in the moving mean of a time."""
MOST_OF_MEAN: Final = 2.0
"""Bound of a measured time, as a multiple of the mean: a machine may be busy with something else for once."""


class StepCounts:
    """The numbers of steps of ticks, and the measured seconds of a step for each number of rows with padding.

    Args:
        shares_cores: whether the device computes on the cores of the host.
    """

    def __init__(self, *, shares_cores: bool):
        self._shares_cores = shares_cores
        self._seconds: dict[int, float | None] = {}

    def add(self, message: Settled) -> None:
        """Measure a tick without prompts. The first one of a size does not count: a new program is slow."""
        if not message.rows or not message.steps:
            return
        if message.rows not in self._seconds:
            self._seconds[message.rows] = None
            return
        seconds = message.seconds / message.steps
        mean = self._seconds[message.rows] or seconds
        self._seconds[message.rows] = mean + WEIGHT * (min(seconds, MOST_OF_MEAN * mean) - mean)

    def choose(self, rows: int, *, alone: bool) -> int:
        """Return the most steps for a tick, 1 before a measurement.

        Args:
            rows: the number of rows with padding.
            alone: whether one request has the device for itself.
        """
        seconds = self._seconds.get(rows)
        if not seconds:
            return 1
        steps = int(TICK_SECONDS / seconds)
        if alone and self._shares_cores:
            steps = max(steps, min(ALONE_STEPS, int(ALONE_SECONDS / seconds)))
        return max(1, steps)


class Planner:
    """Chooses the prompt chunks and decode rows of each tick, and admits queued requests.

    The `Scheduler` owns the planner, and gets a `PlanBuilder` from it for each tick.

    Args:
        limits: the budgets of a tick, and the order of chunks and rows.
        table: the requests; admission gives a request its slot and pages there.
        writeback: receives each use of a cached page.

    Attributes:
        step_counts: the numbers of steps by the measured ticks.
    """

    def __init__(self, limits: EngineLimits, table: RequestTable, writeback: DiskWriteback):
        self._limits = limits
        self._table = table
        self._writeback = writeback
        self.step_counts = StepCounts(shares_cores=limits.shares_cores)
        self._last_had_rows = False
        self._blocked: tuple[int, int] | None = None  # the last request to make room for, and the ticks before

    def build(self, *, only_started: bool) -> PlanBuilder:
        """Return the parts of the next tick; the builder is empty if there is nothing to compute now.

        Args:
            only_started: admit only requests that have started before.
        """
        builder, ticks = PlanBuilder(self._limits.max_prefill_tokens, len(self._table.groups)), self._limits.ticks
        rows_first = ticks == "combined" or (ticks == "alternate" and not self._last_had_rows)
        if rows_first:
            self._add_rows(builder)
        if ticks == "combined" or not builder.rows:
            self._add_chunks(builder, only_started)
        if not rows_first and not builder.chunks:
            self._add_rows(builder)
        if not builder.is_empty:
            self._last_had_rows = bool(builder.rows)
        return builder

    def make_room(self, first: RequestState) -> PromptTooLong | None:
        """Make room for the first queued request, while nothing runs and only staged or held pages block it.

        Returns:
            None after a change that may unblock the request, otherwise the error to reject it with.
        """
        blocked, self._blocked = self._blocked, (first.request.id, self._table.counts.ticks)
        if self._table.waiting.release_staged(first) and blocked != self._blocked:
            return None  # if it is still blocked without a tick since then, the copies only come and go
        if self._move_to_roomiest(first):
            return None
        assert self._table.group_of(first).cache.held_nodes, "a request has no room though no prefix is held"
        return PromptTooLong.of("prompt", self._no_room_message(first))

    # Rows

    def _add_rows(self, builder: PlanBuilder) -> None:
        """Add a decode row for each request ready for one, rows of similar context side by side.

        Drafts need settled tokens, so a tick with a draft waits for the one before it.
        """
        candidates = [
            state
            for state in self._table.running
            if state.computed < state.same_row_until or state.wants_token or (state.drafting and state.awaits_draft)
        ]
        builder.steps = steps = self._steps(candidates)
        drafter = self._table.drafter
        if drafter.drafting and drafter.waits(candidates):
            return
        same = {state for state in candidates if state.has_same_row(steps)}
        reserving = [state for state in candidates if state in same or self._reserve_next(state, steps)]
        states = [state for state in reserving if state.lease is not None]  # a later reservation may preempt it
        drafts = drafter.choose(states) if drafter.drafting and not self._adds_chunks else {}
        builder.decoding += sorted(states, key=attrgetter("computed"))
        for state in builder.decoding:
            if state in same:
                builder.rows.append(state.same_row())
            else:
                builder.rows += self._rows_of(state, steps, drafts.get(state))

    def _rows_of(self, state: RequestState, steps: int, offered: tuple[int, ...] | None) -> list[Row]:
        """Return the rows of a request for its next token, and for the part of an offered draft that has room."""
        slot = self._table.group_of(state).running.slots[state]
        if offered and (draft := self._fitting(state, offered)):
            return drafted_rows(state, slot, draft)
        return [next_row(state, slot, steps)]

    @property
    def _adds_chunks(self) -> bool:
        """True if the next tick may have both rows and chunks: its time then depends on the chunks."""
        table = self._table
        prompts = len(table.waiting) > 0 or any(state.in_prefill for state in table.running)
        return self._limits.ticks == "combined" and prompts

    def _fitting(self, state: RequestState, draft: tuple[int, ...]) -> tuple[int, ...]:
        """Return the part of a draft with pages, taken only if each running request could still have one more."""
        assert state.lease is not None
        missing, group = state.missing_pages(1 + len(draft)), self._table.group_of(state)
        if missing and (missing + len(group.running) > group.cache.available or not state.lease.reserve(missing)):
            return draft[: state.lease.reserved - state.computed - 1]
        return draft

    def _steps(self, states: Sequence[RequestState]) -> int:
        """Return the limit of new tokens for each row of the next tick, by the measured time of a step.

        The limit is 1 if a request waits for a slot or a page, or if the host has to see each token first: for a mask,
        for a draft, or for the length of a rope.

        Args:
            states: the requests with a row.
        """
        limits, table = self._limits, self._table
        if limits.decode_steps == 1 or not states or len(table.waiting) or limits.long_from is not None:
            return 1
        groups = [[state for state in states if state.group == group.number] for group in table.groups]
        rows = smallest(limits.decode_buckets, max(map(len, groups)))
        steps = min(limits.decode_steps, self.step_counts.choose(rows, alone=len(table.running) == 1))
        if steps == 1 or any(
            state.in_prefill or state.takes_masks or state.drafting is not None for state in table.running
        ):
            return 1
        for group, of_group in zip(table.groups, groups, strict=True):
            if sum(state.missing_pages(state.steps(steps)) for state in of_group) > group.cache.available:
                return 1
        return steps

    def _reserve_next(self, state: RequestState, steps: int) -> bool:
        """Reserve pages for the next positions; return False if the request was preempted or must wait.

        A request that outgrows the short rope waits until all its tokens are settled and is then preempted: with the
        long rope, all its keys have to be computed again.
        """
        if state.outgrown:
            if not state.pending:
                self._table.preempt(state)
            return False
        return self._table.reserve(state, state.computed + (1 if steps == 1 else state.steps(steps)))

    # Chunks

    def _add_chunks(self, builder: PlanBuilder, only_started: bool) -> None:
        """Add chunks of prompts within the token budget, those in progress first."""
        table = self._table
        for state in table.running:
            if state.computed < state.prefill_end and builder.budgets[state.group]:
                self._add_chunk(builder, state)
        with_slots = {group.number for group in table.groups if group.running.free_slots}
        able = {number for number in with_slots if builder.budgets[number]}
        next_tick = with_slots - able
        ready = table.waiting.ready(
            able, next_tick, builder.expected_pages, builder.messages, only_started=only_started
        )
        while able and (candidate := next(ready, None)):
            state, nodes = candidate
            is_admitted = self._admit(state, nodes, builder)
            if is_admitted and state.in_prefill:
                self._add_chunk(builder, state)
            elif is_admitted:
                table.hold(state)
            full = not builder.budgets[state.group]
            if not is_admitted or full or not table.group_of(state).running.free_slots:
                able.discard(state.group)
            if is_admitted and full and table.group_of(state).running.free_slots:
                next_tick.add(state.group)

    def _add_chunk(self, builder: PlanBuilder, state: RequestState) -> None:
        most = min(self._limits.prefill_chunk, builder.budgets[state.group])
        if state.request.pictures:
            most = self._embedded_part(builder, state, most)
            if not most:
                builder.expect(state)
                return
        if self._limits.whole_prompts and most < state.prefill_end - state.computed:
            builder.expect(state)
            return
        if state.keeping is not None:
            state.keeping.add(self._table.waiting.departures(state), state.computed)
        chunk = next_chunk(state, self._table.group_of(state).running.slots[state], most)
        if state.request.hold and not state.in_prefill:
            state.held_at = self._table.counts.ticks + 1
        if state.request.pictures:
            embedded = self._table.gallery.rows_of(state.request.pictures, chunk.start, state.computed)
            chunk = replace(chunk, embedded=embedded)
        builder.add(chunk, state)

    def _embedded_part(self, builder: PlanBuilder, state: RequestState, most: int) -> int:
        """Return the number of the next `most` tokens to compute now: those before the first image without embeddings.

        An image is whole in a chunk if a tick has room for it. A tick embeds at most one segment of an image, so that
        decode rows wait for one segment, and not for an image.
        """
        start, end = state.chunk_start, min(state.prefill_end, state.chunk_start + most)
        coming, unit = state.uncached_pictures, 1 if self._limits.whole_images else QUERY_BLOCK
        for place, picture in enumerate(coming):
            first = max(int(picture.positions[0]), start)
            last = min(int(picture.positions[-1]) + 1, state.prefill_end)
            before = max(0, first // unit * unit - start)
            if first >= end:
                break
            is_shown = self._shows(builder, state, coming[place:])
            if not is_shown or (last > end and last - (start + before) <= self._limits.prefill_chunk):
                end = start + before
                break
            builder.kept_images.add(picture.digest)
        if self._limits.whole_images:
            cut = [first for first, last in (picture.run_at(end) for picture in coming) if last > end]
            end = max(start, min(cut, default=end))
        return end - start if end > state.computed else 0

    def _shows(self, builder: PlanBuilder, state: RequestState, coming: Sequence[Picture]) -> bool:
        """Return True if the first of these images is embedded by the time of the tick."""
        gallery, picture, request_id = self._table.gallery, coming[0], state.request.id
        if not gallery.has(picture):
            gallery.await_all(request_id, coming)
            if not builder.embeddings:
                embedding = gallery.next_embedding(request_id, picture, builder.kept_images, self._table.losses)
                builder.embeddings += [] if embedding is None else [embedding]
        return gallery.has(picture)

    # Admission

    def _admit(self, state: RequestState, nodes: Sequence[Node], builder: PlanBuilder) -> bool:
        """Give a request a slot and pages for all its tokens, the cached ones first; return False without room.

        One page per running request must stay available; otherwise the admission would soon cause a preemption.
        """
        table, group = self._table, self._table.group_of(state)
        warm = [node for node in nodes if node.page is not None]
        lease = Lease(group.cache, state.namespace, warm)
        missing = self._pages_for(state) - len(warm)
        if missing + len(group.running) > group.cache.available or not lease.reserve(missing):
            lease.release()
            return False
        onload = table.waiting.onload(state, nodes[len(warm) :], lease, group.running.next_slot)
        if onload is not None:
            builder.onloads.append(onload)
        fetching = state.queued.fetching
        begun_after = (
            fetching.state if onload is not None and onload.slot is not None and fetching is not None else None
        )
        state.begin(lease, begun_after)
        cached = state.cached(onload)
        table.waiting.leave(state)
        group.running.join(state)
        for used in filter(None, (lease.tip, begun_after)):
            self._writeback.use(group.cache, used)
        if not state.request.synthetic:
            table.counts.add_admitted(state.prefill_end, cached, again=state.started)
        if state.has_states:
            table.counts.stateless_tokens += min(lease.published, state.prefill_end) - state.computed
        if not state.started:
            state.started = True
            group.cache.tree.hit(lease.tip)
            request = state.request
            table.counts.pictures += len(request.pictures)
            seed, image_tokens = request.params.seed, request.image_tokens
            builder.messages.append(Started(request.id, request.prompt, seed, cached, table.exchanges, image_tokens))
            if request.initial_output:
                table.counts.add_forced(len(request.initial_output) - len(request.output_prefix))
                table.outputs.append(Output(request, request.initial_output, None, weights_version=table.exchanges))
        return True

    def _pages_for(self, state: RequestState) -> int:
        """Return the number of pages a request needs to start."""
        # After a preemption, another program would recompute the output, with other low bits.
        tokens = state.final_length if self._limits.one_shape else len(state.tokens)
        return -(-tokens // self._limits.pool.page_size)

    def _move_to_roomiest(self, state: RequestState) -> bool:
        """Move a request without room in its group to another group; return False if none has room."""
        roomiest = max(self._table.groups, key=lambda group: group.cache.available)
        if self._pages_for(state) > roomiest.cache.available:
            return False
        assert roomiest is not self._table.group_of(state), "a request has no room though it fits"
        self._table.waiting.move(state, roomiest)
        return True

    def _no_room_message(self, state: RequestState) -> str:
        """Format the error for a request blocked by held prefixes."""
        goal = "continue after its generated tokens" if state.started else "start"
        free = max(group.cache.available for group in self._table.groups)
        return (
            f"the request needs {self._pages_for(state)} pages to {goal}, and prefixes that are held leave "
            f"{free} of {self._limits.pool.num_pages - 1}; release one, or raise num_pages in open()"
        )
