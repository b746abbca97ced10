"""The grammars actor: it follows constrained requests in their grammars, in a worker thread."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import perf_counter

from anyio import to_thread

from rekindle.core.messages import Advance, Advanced, Message
from rekindle.core.request.request import Request
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.text.grammar import Matcher
from rekindle.core.text.masks import MaskBatcher, Masks


@dataclass(frozen=True, slots=True)
class Jumps:
    """The rule by which tokens that a constraint leaves no choice of are computed together rather than one by one.

    Attributes:
        fewest: so many of one request, at least.
        each: and so many more for each request that runs, whose rows a processor computes beside for hardly more.
    """

    fewest: int
    each: int

    def of(self, running: int) -> int:
        """Return how many tokens are computed together, at least, beside so many requests."""
        return self.fewest + self.each * running


NEVER = Jumps(2**30, 0)
"""For where tokens that were computed together would have other last digits."""
TOKENS_OF_A_ROW = 12
"""Tokens of a prompt that a CPU computes in the time of a decode row alone: of that, most is reading the weights."""
ON_ACCELERATORS = Jumps(2, 0)
"""A chunk costs hardly more than a row."""


def jumps_on(platform: str, limits: EngineLimits) -> Jumps:
    """Return the rule for a platform, by its name in jax.

    On a CPU, a chunk takes the time of some rows alone, as many as its bucket says. Measured with SmolLM2 and a bucket
    of 16: where 4 tokens are enough, a request alone is faster by a quarter, and 32 together are slower by half.
    """
    if limits.one_shape:
        return NEVER
    if platform == "cpu":
        return Jumps(max(2, limits.prefill_buckets[0] // TOKENS_OF_A_ROW), 1)
    return ON_ACCELERATORS


SHARE_OF_A_TICK = 0.04
"""For so much of the time between two ticks, the requests that are free wait for masks; asking takes a hundredth."""
LONGEST_WAIT = 0.005
"""And for so many seconds at most, since there may have been an hour between two ticks."""


class Grammars:
    """The keeper of the places of constrained requests, each from its first generated token to its end.

    Args:
        jumps: the rule for tokens that have to follow.
        masks: computes them.
    """

    def __init__(self, jumps: Jumps, masks: Masks):
        self._jumps = jumps
        self._together = MaskBatcher(masks)
        self._places: dict[int, Matcher] = {}
        self._began = self._wait = 0.0

    async def handle(self, message: Message) -> list[Message]:
        """Answer Advance with Advanced, if anything is asked in it."""
        if not isinstance(message, Advance):
            raise TypeError(f"the grammars take Advance, got {message!r}")
        if message.answer_ids:
            return [await to_thread.run_sync(self.advanced, message, self._patience(message))]
        self._forget(message)
        return []

    def advanced(self, message: Advance, enough: Callable[[], bool]) -> Advanced:
        """Go on with requests until it is enough; the others are late. No other message may be handled meanwhile."""
        self._forget(message)
        fewest = self._jumps.of(message.running)
        for request, token in message.tokens:
            self._together.begin(request.id, self._place(request).take(token, fewest))
        outcomes, late = self._together.advance(message.answer_ids, enough)
        return Advanced(tuple(outcomes), tuple(late))

    def _patience(self, message: Advance) -> Callable[[], bool]:
        """Return what says when the free requests have waited for long enough, if there are any.

        An answer for late requests does not hold them up by itself, but the next question may wait behind it.
        """
        began = perf_counter()
        if message.tokens:
            self._wait = min(LONGEST_WAIT, SHARE_OF_A_TICK * (began - self._began))
            self._began = began
        latest = began + self._wait if message.free else inf
        looked = began

        def enough() -> bool:
            nonlocal looked
            now = perf_counter()
            took, looked = now - looked, now
            return now + took > latest  # the next masks may take as long as the last

        return enough

    def _forget(self, message: Advance) -> None:
        for request_id in message.ended:
            self._places.pop(request_id, None)
            self._together.forget(request_id)

    def _place(self, request: Request) -> Matcher:
        place = self._places.get(request.id)
        if place is None:
            assert request.constrained is not None, "what is not constrained has no place in a grammar"
            place = self._places[request.id] = request.constrained.grammar.matcher(request)
            place.follow(request.constrained.first)  # to where its first token was chosen
        return place
