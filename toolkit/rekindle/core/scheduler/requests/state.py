"""One request as the scheduler sees it, and the chunks that its tokens are cut into."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rekindle.core.buckets import QUERY_BLOCK
from rekindle.core.messages import Chunk, Onload, Row
from rekindle.core.page import NULL_PAGE
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason
from rekindle.core.scheduler.cache.tree import NextPage
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.requests.lease import Lease
from rekindle.core.scheduler.requests.masking import Masking
from rekindle.core.scheduler.requests.observed import Observed
from rekindle.core.scheduler.requests.queued import Queued
from rekindle.core.scheduler.requests.rope_rule import RopeLengthRule


@dataclass(slots=True, eq=False)
class RequestState:
    """One request as the scheduler sees it.

    Attributes:
        tokens: the prompt, what is given of its output, and every settled token; of a prefix to hold, its whole pages.
        final_length: the number of tokens with which it ends at the latest.
        publishable: how many of its first tokens may be published.
        computed: positions whose keys and values are written by dispatched ticks, or were found and are not looked at.
        prefill_end: how many tokens were known when it last got its pages; up to there it is computed in chunks.
        pending: sampled tokens that are dispatched and not settled.
        lease: its pages while it runs.
        started: whether it ever left a waiting queue, here or where it began.
        held_at: the tick that computes the last of a prefix that is to be held.
        rope_rule: how its length changes its positions.
        group: the number of the group that computes it, or is to compute it.
        queued: what the waiting queue knows of it.
        observed: the positions that it looks at.
        masking: what may follow its tokens.
    """

    request: Request
    tokens: list[int]
    final_length: int
    publishable: int
    rope_rule: RopeLengthRule
    observed: Observed
    masking: Masking
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
        """Make what is known of a request that was just admitted to the waiting queue."""
        tokens, longest, publishable = list(request.initial_tokens), request.longest, request.longest
        if request.hold:
            longest = publishable = len(request.prompt) // limits.pool.page_size * limits.pool.page_size
            tokens = tokens[:longest]
        elif limits.one_shape:  # a prompt that has its output would compute that by another program, with other digits
            publishable = len(request.prompt)
        rope_rule = RopeLengthRule(limits.long_from, limits.grows)
        masking = Masking(None if request.constrained is None else request.constrained.first)
        return cls(request, tokens, longest, publishable, rope_rule, Observed.of(request), masking)

    @property
    def length(self) -> int:
        """Return the length by which its tokens turn."""
        return self.rope_rule.length(len(self.request.prompt), len(self.tokens))

    @property
    def namespace(self) -> str:
        """Return the namespace of its pages: tokens that turn otherwise have other keys."""
        return self.rope_rule.namespace(self.request.namespace, self.length)

    @property
    def outgrown(self) -> bool:
        """Tell whether the next token makes it so long that all its tokens turn otherwise."""
        return self.rope_rule.outgrown(self.computed)

    @property
    def in_prefill(self) -> bool:
        """Tell whether known tokens are left to compute before the next one is sampled."""
        return self.computed < self.prefill_end

    @property
    def wants_token(self) -> bool:
        """Tell whether a decode row is to be planned for it."""
        return self.prefill_end <= self.computed < self.final_length - 1 and not self.held_up

    @property
    def unsettled(self) -> bool:
        """Tell whether a token of it is on its way, or what may follow its tokens."""
        return self.pending > 0 or self.masking.asked

    @property
    def held_up(self) -> bool:
        """Tell whether its next token cannot be planned, since it depends on what is on its way."""
        return self.masking.constrained and self.unsettled

    @property
    def waited_for(self) -> bool:
        """Tell whether no tick is planned until it is known what may follow its tokens."""
        return self.held_up and not self.masking.late

    @property
    def reusable(self) -> list[int]:
        """The tokens whose keys and values may be found instead of computed: those before any that is looked at."""
        first, needed = self.observed.first, min(len(self.request.prompt), _last_block(len(self.tokens)))
        return self.tokens if first >= needed else self.tokens[:first]

    def begin(self, lease: Lease) -> None:
        """Run with these pages, of which those that are published hold its tokens already.

        The last token is computed in any case, because that gives the logits of the next.
        """
        self.lease, self.queued.found = lease, []
        self.prefill_end = len(self.tokens)
        self.computed = lease.published if self.request.hold else min(lease.published, _last_block(self.prefill_end))

    def cached(self, onload: Onload | None) -> CachedTokens:
        """Return where the tokens that it need not compute were found, given what it begins with that is onloaded."""
        if onload is None:
            return CachedTokens(device=self.computed)
        assert self.lease is not None
        assert self.queued.fetching is not None
        disk = onload.from_disk * self.lease.page_size
        host = len(onload.pages) * self.lease.page_size - disk
        again = self.lease.published - self.computed  # of the last page, which is then the last that is onloaded
        if self.queued.fetching.nodes[-1] in self.queued.fetching.from_disk:
            disk -= again
        else:
            host -= again
        return CachedTokens(self.computed - host - disk, host, disk)

    def next_page(self) -> NextPage | None:
        """Return what identifies the first whole page that it has not published."""
        assert self.lease is not None
        return self.lease.next_page(self.tokens)

    def next_chunk(self, slot: int, most: int) -> Chunk:
        """Return a chunk of at most the next `most` known tokens, which count as computed from now on."""
        assert self.lease is not None
        request, start, lease = self.request, self.computed, self.lease
        end = min(self.prefill_end, start + most)
        last = end == self.prefill_end and not request.hold
        if last:
            self.pending += 1
        self.computed = end
        return Chunk(
            request_id=request.id,
            slot=slot,
            start=start,
            tokens=tuple(self.tokens[start:end]),
            pages=tuple(_written_page(lease, at) for at in range(start, end, QUERY_BLOCK)),
            table=tuple(lease.pages),
            completes=request if last else None,
            generated=tuple(self.tokens[len(request.prompt) :]) if last else (),
            scoring=self.observed.scoring(start, end),
            length=self.length,
            group=self.group,
            summing=self.observed.summing(start, end),
            allowed=self.masking.bits if last else None,
        )

    def steps(self, most: int) -> int:
        """Return how many more tokens it wants, at most so many."""
        return min(most, self.final_length - 1 - self.computed)

    def missing_pages(self, steps: int) -> int:
        """Return how many pages it needs more for so many tokens more."""
        assert self.lease is not None
        return max(0, -(-(self.computed + steps) // self.lease.page_size) - len(self.lease.pages))

    def next_row(self, slot: int) -> Row:
        """Return a row for its next token, which counts as computed from now on."""
        assert self.lease is not None
        page = self.lease.pages[self.computed // self.lease.page_size]
        row = Row(self.request.id, slot, page, self.request.params.logprobs, self.length, self.masking.bits)
        self.computed += 1
        self.pending += 1
        return row

    def next_rows(self, slot: int, most: int) -> Row:
        """Return a row for at most so many next tokens, which count as computed from now on."""
        assert self.lease is not None
        after, more = self.lease.pages[self.computed // self.lease.page_size + 1 :], self.steps(most) - 1
        row = replace(
            self.next_row(slot),
            steps=1 + more,
            next_page=after[0] if after else NULL_PAGE,
            end_ids=self.request.end_ids,
        )
        self.computed += more
        self.pending += more
        return row

    def take(self, token: int) -> EndReason | None:
        """Add a settled token; return why the request ends with it, if that is known."""
        self.pending -= 1
        self.tokens.append(token)
        if self.lease is None and self.rope_rule.outgrown(len(self.tokens) - 1):
            self.queued.found = []  # of another namespace
        if token in self.request.end_ids:
            return "stop"
        self.masking.asked = self.masking.constrained  # it may be complete
        return "length" if self.full and not self.masking.asked else None

    @property
    def full(self) -> bool:
        """Tell whether it has as many tokens as it may."""
        return len(self.tokens) >= self.final_length

    def jump(self, forced: Sequence[int]) -> bool:
        """Add tokens that need not be sampled, to be computed in chunks; return False if all turn otherwise with them.

        Computing goes on where a query block begins.
        """
        namespace = self.namespace
        self.tokens += forced
        if self.lease is not None:
            self.prefill_end = len(self.tokens)
            self.computed -= self.computed % QUERY_BLOCK
        else:
            self.queued.found = []
        return namespace == self.namespace

    def lose_dispatched(self) -> None:
        """Expect nothing more of the ticks that are dispatched."""
        self.pending = 0
        self.observed.lose_dispatched()

    def publish(self) -> None:
        """Put the whole pages that are computed, and whose tokens are known, into the prefix tree."""
        assert self.lease is not None
        self.lease.publish(self.tokens, min(self.computed, len(self.tokens), self.publishable))

    def give_back(self) -> None:
        """Publish what is computed, and run no longer."""
        assert self.lease is not None
        self.publish()
        self.lease.release()
        self.lease = None
        self.computed = self.prefill_end = 0
        self.held_at = None


def _last_block(tokens: int) -> int:
    """Return the first position of the block that is computed in any case, since it has the last of the tokens."""
    return (tokens - 1) // QUERY_BLOCK * QUERY_BLOCK


def _written_page(lease: Lease, position: int) -> int:
    """Return where keys and values go from a position on; pages that others read are never written again."""
    return NULL_PAGE if position < lease.published else lease.pages[position // lease.page_size]
