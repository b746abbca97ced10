"""Drafts of one request."""

from collections.abc import Sequence
from dataclasses import dataclass

from rekindle.core.request.request import Request
from rekindle.core.scheduler.drafts.gain import Chances
from rekindle.core.scheduler.drafts.index import LEAST_MATCH, MOST_DRAFT, TokenIndex
from rekindle.core.scheduler.drafts.memory import FinishedOutputs
from rekindle.core.scheduler.limits import EngineLimits


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed next tokens of a request.

    Attributes:
        match: the number of equal tokens before the guess and elsewhere; 0 for no draft.
        tokens: the guess, at most `match` tokens.
    """

    match: int = 0
    tokens: tuple[int, ...] = ()


class Drafting:
    """The drafts of one request, from prompt and output, then from finished outputs of the namespace.

    Args:
        request: the request.
        chances: the chances of all requests.
        outputs: the finished outputs.

    Attributes:
        in_flight: the number of drafted tokens in the tick in flight.
    """

    def __init__(self, request: Request, chances: Chances, outputs: FinishedOutputs):
        self._namespace, self._outputs = request.namespace, outputs
        self._index, self._newest = TokenIndex(), Draft()
        self._chances = Chances(chances)
        self.in_flight = 0

    def after(self, tokens: Sequence[int]) -> Draft:
        """Return the draft after all tokens of the request so far."""
        if len(self._index) != len(tokens):
            self._compare(tokens[len(self._index) :])
            self._index.extend(tokens[len(self._index) :])
            last = self._index.newest(MOST_DRAFT)
            match, following = self._index.following(last, own=True)
            if match < LEAST_MATCH:
                match, following = max((match, following), self._outputs.following(self._namespace, last))
            self._newest = Draft(match, tuple(following))
        return self._newest

    def chances(self, match: int, count: int) -> tuple[float, ...]:
        """Return the chances of a draft's tokens, see `Chances.of_all`."""
        return self._chances.of_all(match, count)

    def _compare(self, tokens: Sequence[int]) -> None:
        """Measure chances by the newest draft, verified or not."""
        for place, (guess, token) in enumerate(zip(self._newest.tokens, tokens, strict=False)):
            self._chances.add(self._newest.match + place, same=guess == token)
            if guess != token:
                return


def obstacle(request: Request, limits: EngineLimits) -> str | None:
    """Return the name of what rules out drafts for a request, or None.

    With a draft, a draw may depend on logits, seed and position alone, and a position may be computed twice.
    """
    params = request.params
    penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    obstacles = {
        "decode_steps": limits.decode_steps > 1,
        "states": limits.pool.state_pages > 0,
        "long rope": limits.long_from is not None,
        "penalties": penalties != (1.0, 0.0, 0.0),
        "bad_words": any(len(word) > 1 for word in request.bad_words),
        "processor_args": params.processor_args is not None,
        "steering": request.changes is not None,
    }
    return next((name for name, rules_out in obstacles.items() if rules_out), None)
