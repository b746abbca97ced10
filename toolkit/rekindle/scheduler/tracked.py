"""One request as the scheduler sees it, and the chunks that its tokens are cut into."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.buckets import QUERY_BLOCK
from rekindle.messages import Chunk, Onload, Scoring
from rekindle.page import NULL_PAGE
from rekindle.request import Request
from rekindle.results import CachedTokens
from rekindle.scheduler.cache.nodes import Node
from rekindle.scheduler.leases import Lease


@dataclass(slots=True, eq=False)
class Fetching:
    """What a waiting request gets from the host tier and the disk.

    Attributes:
        nodes: whose copies; the last one is locked.
        from_disk: those of them whose copy is on disk alone.
        staged: the copy of each on the device, once they are there.
    """

    nodes: list[Node]
    from_disk: list[Node]
    staged: Sequence[Any] = ()

    @property
    def ends_on_disk(self) -> bool:
        """Whether the last one's copy is on disk alone."""
        return self.from_disk[-1:] == self.nodes[-1:]


@dataclass(slots=True, eq=False)
class Tracked:
    """One request as the scheduler sees it.

    Attributes:
        tokens: the prompt and every settled token; of a prefix to hold, its whole pages.
        computed: positions whose keys and values are written by dispatched ticks, or were found and are not looked at.
        prefill_end: how many tokens were known when it last got its pages; up to there it is computed in chunks.
        pending: sampled tokens that are dispatched and not settled.
        slot: its row of the decode batch while it runs.
        lease: its pages while it runs.
        fetching: what it waits for from the host tier, or has from there, while it waits.
        fetchable: whether the host tier is to be asked; not again after it had no room.
        started: whether it ever left the waiting queue.
        scored: tokens of the prompt whose log-probabilities, if wanted, are settled or dispatched; the first has none.
        held_at: the tick that computes the last of a prefix that is to be held.
    """

    request: Request
    tokens: list[int]
    computed: int = 0
    prefill_end: int = 0
    pending: int = 0
    slot: int | None = None
    lease: Lease | None = None
    fetching: Fetching | None = None
    fetchable: bool = True
    started: bool = False
    scored: int = 1
    held_at: int | None = None

    @classmethod
    def of(cls, request: Request, page_size: int) -> "Tracked":
        """A request that was just admitted to the waiting queue."""
        whole = len(request.prompt) // page_size * page_size
        return cls(request, list(request.prompt[:whole] if request.hold else request.prompt))

    @property
    def final_length(self) -> int:
        """The length at which it ends at the latest."""
        if self.request.hold:
            return len(self.tokens)
        return min(len(self.request.prompt) + self.request.params.max_tokens, self.request.capacity)

    @property
    def in_prefill(self) -> bool:
        """Whether known tokens are left to compute before the next one is sampled."""
        return self.computed < self.prefill_end

    @property
    def wants_token(self) -> bool:
        """Whether a decode row is to be planned for it."""
        return not self.in_prefill and self.computed + 1 < self.final_length

    @property
    def reusable(self) -> list[int]:
        """Those of its tokens whose keys and values may be found instead of computed."""
        return [] if self.request.params.prompt_logprobs is not None else self.tokens

    def begin(self, published: int) -> None:
        """It has its pages, and those up to `published` are there already.

        Its last token is computed in any case, because that gives the logits of the next.
        """
        self.prefill_end = len(self.tokens)
        last_block = (self.prefill_end - 1) // QUERY_BLOCK * QUERY_BLOCK
        self.computed = published if self.request.hold else min(published, last_block)

    def cached(self, onload: Onload | None, page_size: int) -> CachedTokens:
        """Where those of its tokens that need not be computed were found, as it begins with these pages copied in."""
        if onload is None:
            return CachedTokens(device=self.computed)
        assert self.lease is not None
        assert self.fetching is not None
        again = self.lease.published - self.computed  # of the last page, which is then the last that is copied in
        onloaded = len(onload.pages) * page_size - again
        disk = onload.from_disk * page_size - again * self.fetching.ends_on_disk
        return CachedTokens(self.computed - onloaded, onloaded - disk, disk)

    def next_chunk(self, most: int, page_size: int) -> Chunk:
        """The next `most` of its known tokens, which count as computed from now on."""
        assert self.slot is not None
        assert self.lease is not None
        request, start, pages = self.request, self.computed, self.lease.pages
        size = min(self.prefill_end - start, most)
        last = start + size == self.prefill_end and not request.hold
        self.computed += size
        self.pending += last
        return Chunk(
            request_id=request.id,
            slot=self.slot,
            start=start,
            tokens=tuple(self.tokens[start : start + size]),
            pages=tuple(self._page(at, page_size) for at in range(start, start + size, QUERY_BLOCK)),
            table=tuple(pages),
            completes=request if last else None,
            generated=tuple(self.tokens[len(request.prompt) :]) if last else (),
            scoring=self._scoring(start, start + size),
        )

    def _page(self, position: int, page_size: int) -> int:
        """Where its keys and values go from there: what is published is read by others, and never written again."""
        assert self.lease is not None
        return NULL_PAGE if position < self.lease.published else self.lease.pages[position // page_size]

    def _scoring(self, start: int, end: int) -> Scoring | None:
        """What to score when the positions from `start` to `end` are computed; each tells of the token after it."""
        alternatives = self.request.params.prompt_logprobs
        tokens = self.request.prompt[self.scored : end + 1]
        if alternatives is None or not tokens:
            return None
        first = self.scored - 1 - start
        self.scored += len(tokens)
        return Scoring(first, tokens, alternatives)
