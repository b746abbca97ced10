"""Drafts of one request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rekindle.core.request.request import Request
from rekindle.core.scheduler.drafts.gain import Chances
from rekindle.core.scheduler.drafts.index import LEAST_MATCH, MOST_DRAFT, TokenIndex
from rekindle.core.scheduler.drafts.memory import FinishedOutputs
from rekindle.core.scheduler.limits import EngineLimits

OF_HEAD: Final = 6
"""Length of a match that counts as much as a guess of a draft head at first."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed next tokens of a request.

    Attributes:
        match: the number of equal tokens before the guess and elsewhere, or `OF_HEAD`; 0 for no draft.
        tokens: the guess, at most `match` tokens.
    """

    match: int = 0
    tokens: tuple[int, ...] = ()


class Drafting(Protocol):
    """The drafts of one request.

    Attributes:
        in_flight: the number of drafted tokens in the tick in flight.
        longest: the most tokens of a draft.
    """

    in_flight: int
    longest: int

    def after(self, tokens: Sequence[int]) -> Draft:
        """Return the draft after all tokens of the request so far."""

    def coming(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Return the chances of the next draft's tokens, after one pending token."""

    def chances(self, match: int, count: int) -> tuple[float, ...]:
        """Return the chances of a draft's tokens, see `Chances.of_all`."""

    def propose(self, length: int, tokens: Sequence[int], guess: int) -> None:
        """Receive the guess of a draft head after the newest tokens of a request.

        Args:
            length: the number of tokens before them.
            tokens: the new tokens, at least one.
            guess: the guessed token after them.
        """


class HeadDrafting:
    """The drafts of one request from the draft head of the model: one token, guessed in the tick before.

    Args:
        chances: the chances of all requests with such drafts.
    """

    def __init__(self, chances: Chances):
        self._chances = Chances(chances)
        self._length, self._guess = 0, 0
        self.in_flight, self.longest = 0, 1

    def propose(self, length: int, tokens: Sequence[int], guess: int) -> None:
        """See `Drafting.propose`. The guess before is measured, verified or not."""
        if self._length == length:
            self._chances.add(OF_HEAD, same=tokens[0] == self._guess)
        self._length, self._guess = length + len(tokens), guess

    def after(self, tokens: Sequence[int]) -> Draft:
        """See `Drafting.after`."""
        return Draft(OF_HEAD, (self._guess,)) if self._length == len(tokens) else Draft()

    def coming(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """See `Drafting.coming`. Each new token comes with a guess."""
        return self.chances(OF_HEAD, 1)

    def chances(self, match: int, count: int) -> tuple[float, ...]:
        """See `Drafting.chances`."""
        return self._chances.of_all(match, count)


class LookupDrafting:
    """The drafts of one request, from prompt and output, then from finished outputs of the namespace.

    Args:
        request: the request.
        chances: the chances of all requests.
        outputs: the finished outputs.
    """

    def __init__(self, request: Request, chances: Chances, outputs: FinishedOutputs):
        self._namespace, self._outputs = request.namespace, outputs
        self._index, self._newest = TokenIndex(), Draft()
        self._chances = Chances(chances)
        self.in_flight, self.longest = 0, MOST_DRAFT

    def propose(self, length: int, tokens: Sequence[int], guess: int) -> None:
        """See `Drafting.propose`; a lookup takes no guesses."""

    def after(self, tokens: Sequence[int]) -> Draft:
        """See `Drafting.after`."""
        if len(self._index) != len(tokens):
            self._compare(tokens[len(self._index) :])
            self._index.extend(tokens[len(self._index) :])
            last = self._index.newest(MOST_DRAFT)
            match, following = self._index.following(last, own=True)
            if match < LEAST_MATCH:
                match, following = max((match, following), self._outputs.following(self._namespace, last))
            self._newest = Draft(match, tuple(following))
        return self._newest

    def coming(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """See `Drafting.coming`. The pending token may be the expected one."""
        if not (match := self.after(tokens).match):
            return ()
        return self.chances(match, min(match + 1, MOST_DRAFT) + 1)[1:]

    def chances(self, match: int, count: int) -> tuple[float, ...]:
        """See `Drafting.chances`."""
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
        "states": limits.pool.state_pages > 0 and not limits.windows,
        "long rope": limits.long_from is not None,
        "penalties": penalties != (1.0, 0.0, 0.0),
        "bad_words": any(len(word) > 1 for word in request.bad_words),
        "processor_args": params.processor_args is not None,
        "steering": request.changes is not None,
    }
    return next((name for name, rules_out in obstacles.items() if rules_out), None)
