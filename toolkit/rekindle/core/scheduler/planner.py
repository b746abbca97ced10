"""What is computed in the next tick: chunks of prompts, decode rows, and who is admitted for them."""

from collections.abc import Sequence
from operator import attrgetter

from rekindle.core.errors import PromptTooLong
from rekindle.core.messages import Output, Started
from rekindle.core.scheduler.archiving import Archiving
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.draft import Draft
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.requests.lease import Lease
from rekindle.core.scheduler.requests.roster import Roster
from rekindle.core.scheduler.requests.tracked import Tracked


class Planner:
    """Drafts one tick after the other.

    Args:
        limits: the budgets of a tick, and the order of chunks and rows.
        roster: the requests; who is admitted gets slot and pages there.
        archiving: is told which cached pages are used.
    """

    def __init__(self, limits: EngineLimits, roster: Roster, archiving: Archiving):
        self._limits = limits
        self._roster = roster
        self._archiving = archiving
        self._last_had_rows = False

    def draft(self, *, only_started: bool) -> Draft:
        """Decide on the next tick.

        Args:
            only_started: admit nobody who has not started.
        """
        draft, ticks = Draft(self._limits.max_prefill_tokens, len(self._roster.groups)), self._limits.ticks
        rows_first = ticks == "combined" or (ticks == "alternate" and not self._last_had_rows)
        if rows_first:
            self._add_rows(draft)
        if ticks == "combined" or not draft.rows:
            self._add_chunks(draft, only_started)
        if not rows_first and not draft.chunks:
            self._add_rows(draft)
        if not draft.empty:
            self._last_had_rows = bool(draft.rows)
        return draft

    def make_room(self, first: Tracked) -> PromptTooLong | None:
        """Make room for who comes next, when nothing runs and only staged or held pages are in its way.

        Returns:
            What it is to be rejected with if no room can be made.
        """
        if self._roster.waiting.give_up_staged(first) or self._moved(first):
            return None
        assert self._roster.group_of(first).cache.held, "a request has no room though nobody holds any"
        return PromptTooLong.of("prompt", self._held_up(first))

    # Rows

    def _add_rows(self, draft: Draft) -> None:
        """Add a decode row for each request that can have one, rows of similar context side by side."""
        draft.steps = steps = self._steps()
        wanting = [tracked for tracked in self._roster.running if tracked.wants_token]
        able = [tracked for tracked in wanting if self._reserve_next(tracked, steps)]
        kept = [tracked for tracked in able if tracked.lease is not None]  # a later one may have taken an earlier one's
        for tracked in sorted(kept, key=attrgetter("computed")):
            slot = self._roster.group_of(tracked).running.slots[tracked]
            draft.rows.append(tracked.next_row(slot) if steps == 1 else tracked.next_rows(slot, steps))

    def _steps(self) -> int:
        """Return how many tokens each row of the next tick may get.

        It is one where somebody waits for a turn or for a page, or where the host has to see each token first.
        """
        steps, roster = self._limits.decode_steps, self._roster
        if steps == 1 or len(roster.waiting) or self._limits.long_from is not None:
            return 1
        if any(tracked.in_prefill or tracked.masking.constrained for tracked in roster.running):
            return 1
        for group in roster.groups:
            wanting = [tracked for tracked in group.running if tracked.wants_token and tracked.lease is not None]
            if sum(tracked.missing_pages(tracked.steps(steps)) for tracked in wanting) > group.cache.available:
                return 1
        return steps

    def _reserve_next(self, tracked: Tracked, steps: int) -> bool:
        """See that the next positions have pages, as `Roster.reserve` does.

        Return False also if the request was preempted because it has to be computed again: its tokens turn otherwise
        from now on, once all of them are known.
        """
        if tracked.outgrown:
            if not tracked.pending:
                self._roster.preempt(tracked)
            return False
        return self._roster.reserve(tracked, tracked.computed + (1 if steps == 1 else tracked.steps(steps)))

    # Chunks

    def _add_chunks(self, draft: Draft, only_started: bool) -> None:
        """Add chunks of prompts within the token budget, those that are already under way first."""
        roster = self._roster
        for tracked in roster.running:
            if tracked.in_prefill and draft.budgets[tracked.group]:
                self._add_chunk(draft, tracked)
        roomy = {group.number for group in roster.groups if group.running.free_slots}
        able = {number for number in roomy if draft.budgets[number]}
        next_tick = roomy - able
        ready = roster.waiting.ready(able, next_tick, draft.coming, draft.said, only_started=only_started)
        while able and (candidate := next(ready, None)):
            tracked, nodes = candidate
            admitted = self._admit(tracked, nodes, draft)
            if admitted and tracked.in_prefill:
                self._add_chunk(draft, tracked)
            elif admitted:
                roster.hold(tracked)
            full = not draft.budgets[tracked.group]
            if not admitted or full or not roster.group_of(tracked).running.free_slots:
                able.discard(tracked.group)
            if admitted and full and roster.group_of(tracked).running.free_slots:
                next_tick.add(tracked.group)

    def _add_chunk(self, draft: Draft, tracked: Tracked) -> None:
        most = min(self._limits.prefill_chunk, draft.budgets[tracked.group])
        chunk = tracked.next_chunk(self._roster.group_of(tracked).running.slots[tracked], most)
        if tracked.request.hold and not tracked.in_prefill:
            tracked.held_at = self._roster.counts.ticks + 1
        draft.add(chunk, tracked)

    # Admission

    def _admit(self, tracked: Tracked, nodes: Sequence[Node], draft: Draft) -> bool:
        """Give a request a slot and pages for all its tokens, the cached ones first; return False if there is no room.

        A page is left for each running request, or its admission would soon preempt it.
        """
        roster, group = self._roster, self._roster.group_of(tracked)
        warm = [node for node in nodes if node.page is not None]
        lease = Lease(group.cache, tracked.namespace, warm)
        needed = self._pages_for(tracked) - len(warm)
        if needed + len(group.running) > group.cache.available or not lease.reserve(needed):
            lease.release()
            return False
        onload = roster.waiting.onload(tracked, nodes[len(warm) :], lease)
        if onload is not None:
            draft.onloads.append(onload)
        tracked.begin(lease)
        cached = tracked.cached(onload)
        roster.waiting.leave(tracked)
        group.running.join(tracked)
        self._archiving.use(group.cache, lease.tip)
        roster.counts.admitted(tracked.prefill_end, cached, again=tracked.started)
        if not tracked.started:
            tracked.started = True
            group.cache.tree.hit(lease.tip)
            request = tracked.request
            draft.said.append(Started(request.id, request.prompt, request.params.seed, cached, roster.exchanges))
            if request.given:
                roster.counts.forced(len(request.given) - len(request.begun))
                roster.outputs.append(Output(request, request.given, None))
        return True

    def _pages_for(self, tracked: Tracked) -> int:
        """Return how many pages a request needs before it starts."""
        # One that was preempted would compute its output again by another program, with other last digits.
        tokens = tracked.final_length if self._limits.one_shape else len(tracked.tokens)
        return -(-tokens // self._limits.pool.page_size)

    def _moved(self, tracked: Tracked) -> bool:
        """Let a request that its own group has no room for wait for one that has; return False if there is none."""
        roomiest = max(self._roster.groups, key=lambda group: group.cache.available)
        if self._pages_for(tracked) > roomiest.cache.available:
            return False
        assert roomiest is not self._roster.group_of(tracked), "a request has no room though it fits"
        self._roster.waiting.move(tracked, roomiest)
        return True

    def _held_up(self, tracked: Tracked) -> str:
        """Say that a request has no room beside the prefixes that are held, and what the caller can do."""
        then = "go on, with the tokens that it has generated" if tracked.started else "start"
        left = max(group.cache.available for group in self._roster.groups)
        return (
            f"the request needs {self._pages_for(tracked)} pages to {then}, and prefixes that are held leave "
            f"{left} of {self._limits.pool.num_pages - 1}; release one, or raise num_pages in open()"
        )
