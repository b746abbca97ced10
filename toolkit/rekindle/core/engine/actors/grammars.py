"""The grammars actor: advances the matchers of constrained requests, in a worker thread."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from math import inf
from operator import itemgetter
from time import perf_counter

from anyio import to_thread

from rekindle.core.messages import Advance, Advanced, Message
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.request.request import Request
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.text.grammar import Matcher
from rekindle.core.text.masks import MaskBatcher, Masks


@dataclass(frozen=True, slots=True)
class Jumps:
    """The rule for computing the forced tokens of a constraint in one chunk rather than one by one.

    Attributes:
        fewest: fewest forced tokens of one request for a chunk.
        each: additional tokens per running request; the decode rows of these requests make single tokens cheap.
    """

    fewest: int
    each: int

    def of(self, running: int) -> int:
        """Return the fewest forced tokens for a chunk, given the number of running requests."""
        return self.fewest + self.each * running


NEVER = Jumps(2**30, 0)
"""No chunks, for devices on which they would change the last digits of results."""
TOKENS_OF_A_ROW = 12
"""Prompt tokens computed by a CPU in the time of a single decode row, mostly spent on reading the weights."""
ON_ACCELERATORS = Jumps(2, 0)
"""A chunk costs hardly more than a row."""


def jumps_on(platform: str, limits: EngineLimits) -> Jumps:
    """Return the rule for a platform, by its name in JAX.

    On a CPU, a chunk takes the time of several single rows, depending on its bucket. With SmolLM2, a bucket of 16 and
    chunks from 4 tokens, a single request was measured to be a quarter faster, and 32 requests together half slower.
    """
    if limits.one_shape or limits.pool.state_pages:  # a jump begins within a block, whose state is gone
        return NEVER
    if platform == "cpu":
        return Jumps(max(2, limits.prefill_buckets[0] // TOKENS_OF_A_ROW), 1)
    return ON_ACCELERATORS


SHARE_OF_A_TICK = 0.04
"""Longest wait of unconstrained requests for masks, as a part of the time between ticks; the call takes 0.01."""
LONGEST_WAIT = 0.005
"""Longest wait in seconds, since there may have been an hour between two ticks."""


class Grammars:
    """The grammars actor: has a matcher for each constrained request, from its first generated token to its end.

    Args:
        jumps: rule for forced tokens.
        masks: computes the masks of allowed tokens.
    """

    def __init__(self, jumps: Jumps, masks: Masks):
        self._jumps = jumps
        self._batcher = MaskBatcher(masks)
        self._matchers: dict[int, Matcher] = {}
        self._began = self._wait = 0.0

    async def handle(self, message: Message) -> list[Message]:
        """Answer Advance with Advanced, if it has requests to answer."""
        if not isinstance(message, Advance):
            raise wrong_receiver("grammars actor", message)
        if message.answer_ids:
            return [await to_thread.run_sync(self.advance, message, self._patience(message))]
        self._forget(message)
        return []

    def advance(self, message: Advance, enough: Callable[[], bool]) -> Advanced:
        """Advance requests until `enough` returns True; the rest is late. Must not run concurrently."""
        self._forget(message)
        fewest = self._jumps.of(message.running)
        for request, of_request in groupby(message.tokens, key=itemgetter(0)):
            *earlier, token = (token for _, token in of_request)
            matcher, draft = self._matcher(request), message.drafts.get(request.id)
            matcher.skip(earlier)
            self._batcher.begin(request.id, matcher.take(token, fewest, draft))
        outcomes, late = self._batcher.advance(message.answer_ids, enough)
        return Advanced(tuple(outcomes), tuple(late))

    def _patience(self, message: Advance) -> Callable[[], bool]:
        """Return a function that returns True once unconstrained requests have waited long enough; never without any.

        Ticks do not wait for the answers of late requests, but the next Advance may wait behind this one.
        """
        began = perf_counter()
        if message.tokens:
            self._wait = min(LONGEST_WAIT, SHARE_OF_A_TICK * (began - self._began))
            self._began = began
        latest = began + self._wait if message.free else inf
        last_check = began

        def enough() -> bool:
            nonlocal last_check
            now = perf_counter()
            duration, last_check = now - last_check, now
            return now + duration > latest  # the next masks may take as long as the last

        return enough

    def _forget(self, message: Advance) -> None:
        for request_id in message.ended:
            self._matchers.pop(request_id, None)
            self._batcher.forget(request_id)

    def _matcher(self, request: Request) -> Matcher:
        matcher = self._matchers.get(request.id)
        if matcher is None:
            assert request.constrained is not None, "only constrained requests have matchers"
            matcher = self._matchers[request.id] = request.constrained.grammar.matcher(request)
            matcher.follow(request.constrained.first)  # up to the choice of the first token
        return matcher
