"""State of one request in the scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rekindle.core.buckets import QUERY_BLOCK
from rekindle.core.messages import Onload, Row
from rekindle.core.page import Marks
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.picture import Picture, page_marks, shift_behind
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.cache.tree import NextPage
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.requests.aspects.drafting import Drafting
from rekindle.core.scheduler.requests.aspects.keeping import StateCopies
from rekindle.core.scheduler.requests.aspects.masking import Masking
from rekindle.core.scheduler.requests.aspects.observed import Observed
from rekindle.core.scheduler.requests.aspects.queued import Queued
from rekindle.core.scheduler.requests.aspects.rope_rule import RopeLengthRule
from rekindle.core.scheduler.requests.aspects.thinking import Thinking
from rekindle.core.scheduler.requests.lease import Lease


@dataclass(slots=True, eq=False)
class RequestState:
    """One request in the scheduler: its tokens, how far they are computed, its pages or its place in the queue.

    The `RequestTable` creates it and moves it between the queue and the groups. The `Planner` takes chunks and rows
    from it, and the `Scheduler` adds the settled tokens.

    Attributes:
        request: the request, as prepared by the intake.
        tokens: the initial tokens, and every settled token; for a prefix to hold, the tokens of its whole pages.
        final_length: the most tokens of the request, prompt and output together.
        publishable: the number of its first tokens that may be published.
        computed: positions written by dispatched ticks, or found in the cache.
        prefill_end: the end of the positions to compute in chunks; decode rows compute the positions from there on.
        pending: the number of sampled tokens in flight.
        lease: its pages while it runs.
        started: whether it was ever admitted, here or in the lane of its start.
        held_at: the tick with the last chunk of a prefix to hold.
        rope_rule: the model's rule for its rope.
        group: the number of its group.
        queued: its state in the waiting queue.
        observed: its observed positions.
        masking: its allowed next tokens.
        thinking: the budget of its thoughts; None for none.
        keeping: the copies of its state; None if there are none to keep.
        drafting: its drafts; None for none.
        has_states: whether its model has layers with a state.
        marks: the marks of its images in the keys of its pages.
        shift: the position of a token behind its images minus the token's index.
        last_row: the last row; the next ones are the same object as long as they are equal.
        same_row_until: the end of the positions for which each decode row of as many tokens is `last_row`, and needs no
            further check.
    """

    request: Request
    tokens: list[int]
    final_length: int
    publishable: int
    rope_rule: RopeLengthRule
    observed: Observed
    masking: Masking
    thinking: Thinking | None = None
    keeping: StateCopies | None = None
    drafting: Drafting | None = None
    has_states: bool = False
    marks: Marks = field(default_factory=dict)
    shift: int = 0
    last_row: Row | None = None
    same_row_until: int = 0
    queued: Queued = field(default_factory=Queued)
    computed: int = 0
    prefill_end: int = 0
    pending: int = 0
    lease: Lease | None = None
    started: bool = False
    held_at: int | None = None
    group: int = 0

    @classmethod
    def of(cls, request: Request, limits: EngineLimits) -> "RequestState":
        """Return the initial state of an admitted request."""
        tokens, longest, publishable = list(request.initial_tokens), request.longest, request.longest
        if request.hold:
            longest = publishable = len(request.prompt) // limits.pool.page_size * limits.pool.page_size
            tokens = tokens[:longest]
        elif request.synthetic or limits.whole_prompts:
            publishable = 0
        elif limits.one_shape:  # a prefill would recompute the output with another program, to other low bits
            publishable = len(request.prompt)
        of_prompt = limits.whole_prompts  # what a token sees depends on the length of the prompt
        rope_rule = RopeLengthRule(0 if of_prompt else limits.long_from, of_prompt or limits.grows)
        masking = Masking(None if request.constrained is None else request.constrained.first)
        observed, keeping, has_states = Observed.of(request), StateCopies.of(limits), limits.pool.state_pages > 0
        thinking = Thinking.of(request, jumps=not (limits.one_shape or has_states))
        state = cls(request, tokens, longest, publishable, rope_rule, observed, masking, thinking, keeping)
        state.has_states = has_states
        state.marks = page_marks(request.pictures, limits.pool.page_size)
        state.shift = shift_behind(request.pictures)
        return state

    @property
    def length(self) -> int:
        """The length for its rope."""
        return self.rope_rule.length(len(self.request.prompt), len(self.tokens))

    @property
    def namespace(self) -> str:
        """The namespace of its pages: another rope means other keys."""
        return self.rope_rule.namespace(self.request.namespace, self.length)

    @property
    def outgrown(self) -> bool:
        """True if the next token changes the rope of all its tokens."""
        return self.rope_rule.outgrown(self.computed)

    @property
    def in_prefill(self) -> bool:
        """True if known tokens remain to compute before the next one is sampled."""
        return self.computed < self.prefill_end

    @property
    def wants_token(self) -> bool:
        """True if it is ready for a decode row."""
        is_ready = self.prefill_end <= self.computed < self.final_length - 1
        # With a budget of its thoughts, the next token may depend on a pending one.
        has_room = self.thinking is None or self.pending < self.thinking.watch.room
        return is_ready and not self.awaits_mask and has_room and not self.awaits_draft

    @property
    def takes_masks(self) -> bool:
        """True if each of its tokens has a mask."""
        return self.masking.constrained or (self.thinking is not None and self.thinking.masked)

    @property
    def next_mask(self) -> Any:
        """The mask of its next token; None for all tokens."""
        return self.masking.bits if self.thinking is None else self.thinking.bits(self.pending)

    @property
    def unsettled(self) -> bool:
        """True if a token or a mask is pending."""
        return self.pending > 0 or self.masking.is_pending

    @property
    def awaits_mask(self) -> bool:
        """True if its next token depends on a pending token or mask."""
        return self.masking.constrained and self.unsettled

    @property
    def awaits_draft(self) -> bool:
        """True if its draft is in flight."""
        return self.drafting is not None and self.drafting.in_flight > 0

    @property
    def delays_plans(self) -> bool:
        """True if planning waits for its mask."""
        return self.awaits_mask and not self.masking.late

    @property
    def reusable(self) -> list[int]:
        """The tokens before its first observed position; their keys and values may come from the cache."""
        first, end = self.observed.first, min(len(self.request.prompt), _last_block(len(self.tokens)))
        return self.tokens if first >= end else self.tokens[:first]

    def last_usable(self, nodes: Sequence[Node]) -> Node | None:
        """Return the last node of its cached prefix after which its computation can continue, or None.

        If its model has states, this is the last one with a state before its last token, which is always computed.
        """
        if not self.has_states:
            return nodes[-1] if nodes else None
        if self.keeping is None:
            return None
        most = (len(self.tokens) - 1 + self.request.hold) // self.keeping.page_size
        return next((node for node in reversed(nodes) if node.depth <= most and node.state is not None), None)

    def begin(self, lease: Lease, state: Node | None) -> None:
        """Start running with a lease; the tokens of its published pages count as computed, or those before its state.

        The query block of the last token is always computed, because this token gives the logits of the next one.
        """
        self.lease, self.queued.prefix_nodes = lease, []
        self.prefill_end = len(self.tokens)
        self.computed = lease.published if self.request.hold else min(lease.published, _last_block(self.prefill_end))
        if self.has_states:
            self.computed = 0 if state is None else state.depth * lease.page_size
        if self.keeping is not None:
            end = self.prefill_end if self.request.hold else self.prefill_end - 1
            end = min(end, self.publishable) // lease.page_size * lease.page_size
            self.keeping.begin(self.computed, lease.published, end)

    def cached(self, onload: Onload | None) -> CachedTokens:
        """Return its cached tokens by tier, given the onloaded part of its prefix."""
        if onload is None:
            return CachedTokens(device=self.computed)
        assert self.lease is not None
        assert self.queued.fetching is not None
        disk = onload.from_disk * self.lease.page_size
        host = len(onload.pages) * self.lease.page_size - disk
        if self.has_states:  # all onloaded pages are before the state
            return CachedTokens(self.computed - host - disk, host, disk)
        again = self.lease.published - self.computed  # tokens of the last page, which is then the last onloaded one
        if self.queued.fetching.nodes[-1] in self.queued.fetching.from_disk:
            disk -= again
        else:
            host -= again
        return CachedTokens(self.computed - host - disk, host, disk)

    def next_page(self) -> NextPage | None:
        """Return the identity of its first unpublished whole page, or None."""
        assert self.lease is not None
        return self.lease.next_page(self.tokens, self.marks)

    @property
    def uncached_pictures(self) -> list[Picture]:
        """The images with tokens to compute, in order.

        Tokens of a cached page that are computed again need none: only the last token of a prompt is read from there.
        """
        assert self.lease is not None
        start = self.chunk_start if self.has_states else max(self.chunk_start, self.lease.published)
        start = min(start, self.prefill_end - 1)
        return [
            picture
            for picture in self.request.pictures
            if picture.positions[-1] >= start and picture.positions[0] < self.prefill_end
        ]

    @property
    def chunk_start(self) -> int:
        """The start of its next chunk: of the first query block that is not computed as a whole."""
        return self.computed // QUERY_BLOCK * QUERY_BLOCK

    def steps(self, most: int) -> int:
        """Return the number of tokens it can still decode in a tick, at most `most`.

        Its state is copied at the end of a page, between two ticks.
        """
        steps = min(most, self.final_length - 1 - self.computed)
        if self.keeping is not None:
            steps = min(steps, self.keeping.page_size - self.computed % self.keeping.page_size)
        return steps if self.thinking is None else int(min(steps, self.thinking.watch.room - self.pending))

    def missing_pages(self, steps: int) -> int:
        """Return the number of pages missing for `steps` more tokens."""
        assert self.lease is not None
        return max(0, -(-(self.computed + steps) // self.lease.page_size) - len(self.lease.pages))

    def has_same_row(self, steps: int) -> bool:
        """Return True if its row for the next `steps` tokens is the last row again."""
        is_within = self.computed + steps <= self.same_row_until
        return is_within and self.last_row is not None and self.last_row.steps == steps

    def same_row(self) -> Row:
        """Return the last row again, for its next tokens; see `has_same_row`."""
        assert self.last_row is not None
        self.computed += self.last_row.steps
        self.pending += self.last_row.steps
        return self.last_row

    def take_back(self, rejected: int) -> None:
        """Take back rejected tokens of a draft, which are pending no longer and not computed."""
        self.pending -= rejected
        if self.lease is not None:
            self.computed -= rejected

    def take(self, token: int) -> EndReason | None:
        """Add a settled token; return the end reason if it ends the request, else None."""
        self.pending -= 1
        self.tokens.append(token)
        if self.thinking is not None:
            self.thinking.watch.push(token)
        if self.lease is None and self.rope_rule.outgrown(len(self.tokens) - 1):
            self.queued.prefix_nodes = []  # the cached prefix is of another namespace
        if token in self.request.end_ids:
            return "stop"
        if self.masking.constrained:
            self.masking.is_pending = True  # it may be complete
            return None
        return "length" if len(self.tokens) >= self.final_length else None

    @property
    def full(self) -> bool:
        """True if it has reached its maximal length."""
        return len(self.tokens) >= self.final_length

    def jump(self, forced: Sequence[int]) -> bool:
        """Add forced tokens, to be computed in chunks; return False if its rope changes.

        Computation continues at the start of a query block.
        """
        namespace = self.namespace
        self.tokens += forced
        if self.thinking is not None:
            for token in forced:
                self.thinking.watch.push(token)
        self.same_row_until = 0
        if self.lease is not None:
            self.prefill_end = len(self.tokens)
            self.computed -= self.computed % QUERY_BLOCK
        else:
            self.queued.prefix_nodes = []
        return namespace == self.namespace

    def lose_dispatched(self) -> None:
        """Stop expecting results of dispatched ticks, after a loss of the device state."""
        self.pending = 0
        self.observed.lose_dispatched()
        if self.drafting is not None:
            self.drafting.in_flight = 0

    @property
    def publishable_end(self) -> int:
        """The number of its first tokens whose pages may be published."""
        return min(self.computed, len(self.tokens), self.publishable)

    def place_states(self) -> None:
        """Put the copies of its state into the cache whose tokens are settled by now."""
        if self.keeping is not None and self.keeping.is_due(self.publishable_end):
            assert self.lease is not None
            self.publish()
            self.keeping.place(self.publishable_end, self.lease)

    def keep_state(self, slot: int, *, decoded: bool) -> None:
        """Copy its state after a tick with a chunk or a decode row of it, where this is of use."""
        assert self.keeping is not None
        assert self.lease is not None
        if not decoded:
            self.keeping.reach(self.computed, self.lease, slot)
        elif self.computed <= self.publishable:
            self.keeping.decode(self.computed, self.lease, slot)

    def publish(self) -> None:
        """Put its whole pages with computed and settled tokens into the prefix tree."""
        assert self.lease is not None
        self.lease.publish(self.tokens, self.publishable_end, self.marks)

    def give_back(self) -> None:
        """Publish its computed pages, release its lease, and reset its progress."""
        assert self.lease is not None
        self.publish()
        if self.keeping is not None:
            self.keeping.end(self.publishable_end, self.lease)
        self.lease.release()
        self.lease = None
        self.computed = self.prefill_end = self.same_row_until = 0
        self.held_at = None


def _last_block(tokens: int) -> int:
    """Return the first position of the query block with the last token, which is always computed."""
    return (tokens - 1) // QUERY_BLOCK * QUERY_BLOCK
