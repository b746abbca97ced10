"""Drafter: chooses the drafts of each tick, and measures them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from rekindle.core.messages import Settled
from rekindle.core.scheduler.drafts.gain import Chances, Times, best_room, counts_of
from rekindle.core.scheduler.drafts.index import MOST_DRAFT
from rekindle.core.scheduler.drafts.memory import FinishedOutputs
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.requests.aspects.drafting import Drafting, HeadDrafting, LookupDrafting, obstacle
from rekindle.core.scheduler.requests.state import RequestState
from rekindle.core.scheduler.stats import Counts

LEAST_CHANCE: Final = 0.1
"""Smallest chance of a drafted token that the grammars compute a mask for."""


class Drafter:
    """The drafts of all requests of a scheduler.

    Args:
        limits: the sizes of decode buckets, and the default of requests.
        counts: the scheduler's counters.

    Attributes:
        drafting: the number of requests with drafts.
    """

    def __init__(self, limits: EngineLimits, counts: Counts):
        self._limits, self._counts = limits, counts
        self._unready: Collection[int] = ()
        self._outputs, self._chances, self._times = FinishedOutputs(), Chances(), Times()
        self._of_head = Chances()
        self.drafting = 0

    def join(self, state: RequestState) -> None:
        """Let a new request have drafts, if wanted and possible."""
        request = state.request
        choice = self._limits.draft if request.params.draft is None else request.params.draft
        if not choice or request.hold:
            return
        if (name := obstacle(request, self._limits)) is not None:
            self._counts.add_undrafted(name)
            return
        self.drafting += 1
        if choice == "mtp":
            state.drafting = HeadDrafting(self._of_head)
        else:
            state.drafting = LookupDrafting(request, self._chances, self._outputs)

    def leave(self, state: RequestState) -> None:
        """Keep the output of an ended request for later drafts."""
        if state.drafting is None:
            return
        self.drafting -= 1
        if not state.request.synthetic:
            self._outputs.add(state.request.namespace, state.tokens[len(state.request.prompt) :])

    def forget(self) -> None:
        """Forget the outputs of other weights."""
        self._outputs.forget()

    def waits(self, states: Sequence[RequestState]) -> bool:
        """Return True if the next plan should wait for pending tokens, because drafts after these will pay.

        Args:
            states: the running requests that want a token, or have a draft in flight.
        """
        return any(state.awaits_draft for state in states) or any(map(self._group_waits, _by_group(states)))

    def _group_waits(self, states: Sequence[RequestState]) -> bool:
        if not any(state.pending for state in states) or not self._pays(len(states), states):
            return False
        offers = [state.drafting.coming(state.tokens) for state in states if state.drafting is not None]
        return self._room(len(states), offers)[1] > self._times.gap

    def choose(self, states: Sequence[RequestState]) -> Mapping[RequestState, tuple[int, ...]]:
        """Return the tokens to draft for some of the requests in the next tick."""
        drafts: dict[RequestState, tuple[int, ...]] = {}
        for of_group in _by_group(states):
            drafts |= self._choose(of_group)
        return drafts

    def _choose(self, states: Sequence[RequestState]) -> Mapping[RequestState, tuple[int, ...]]:
        if not self._pays(len(states), states):
            return {}
        guesses = [
            (state, *self._guess(state, state.drafting))
            for state in states
            if state.drafting is not None and not state.unsettled
        ]
        offers = [chances for *_, chances in guesses]
        counts = counts_of(offers, self._room(len(states), offers)[0])
        return {state: tokens[:count] for (state, tokens, _), count in zip(guesses, counts, strict=True) if count}

    def propose(self, states: Sequence[RequestState], running: Sequence[RequestState]) -> Mapping[int, tuple[int, ...]]:
        """Return the drafts of constrained requests for the grammars to check, by request id.

        Args:
            states: the requests with new tokens.
            running: all running requests.
        """
        if not self._pays(max(map(len, _by_group(running)), default=1), states):
            return {}
        proposals = {}
        for state in states:
            if (drafting := state.drafting) is None:
                continue
            draft = drafting.after(state.tokens)
            chances = drafting.chances(draft.match, len(draft.tokens))
            proposals[state.request.id] = draft.tokens[: sum(chance > LEAST_CHANCE for chance in chances)]
        return proposals

    def _guess(self, state: RequestState, drafting: Drafting) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return the tokens of a possible draft, and the chance of each."""
        draft, sure = drafting.after(state.tokens), 0
        tokens = draft.tokens
        if state.masking.allowed is not None:
            tokens, sure = state.masking.allowed.draft, state.masking.allowed.sure
        tokens = tokens[: max(0, state.steps(MOST_DRAFT + 1) - 1)]
        sure = min(sure, len(tokens))
        return tokens, ((1.0,) * sure + drafting.chances(draft.match + sure, len(tokens) - sure))

    def _pays(self, rows: int, states: Sequence[RequestState]) -> bool:
        """Return False if even right drafts of some requests save no time in a tick of so many rows."""
        best = [(1.0,) * state.drafting.longest for state in states if state.drafting is not None]
        return bool(best) and self._room(rows, best)[0] > 0

    def _room(self, rows: int, offers: Sequence[Sequence[float]]) -> tuple[int, float]:
        """Return the number of draft tokens for a tick, and the seconds saved."""
        chances = sorted((chance for offer in offers for chance in offer), reverse=True)
        return best_room(rows, chances, self._times, self._limits.decode_buckets, self._unready)

    def settle(self, message: Settled, states: Iterable[RequestState]) -> list[RequestState]:
        """Take back the rejected tokens of drafts, and measure the tick.

        Args:
            message: the results of a tick.
            states: the requests in progress.

        Returns:
            The requests with verified drafts.
        """
        if message.rows and message.steps == 1:
            self._times.add(message.rows, message.seconds, message.gap)
            self._unready = message.unready
        if not self.drafting:
            return []
        verified = [state for state in states if state.drafting is not None and state.awaits_draft]
        news: dict[int, list[int]] = {}
        for request_id, token in message.tokens if verified or message.proposals else ():
            news.setdefault(request_id, []).append(token)
        for state in states if message.proposals else ():
            if state.drafting is not None and (guess := message.proposals.get(state.request.id)) is not None:
                state.drafting.propose(len(state.tokens), news[state.request.id], guess)
        for state in verified:
            if state.drafting is not None and (tokens := news.get(state.request.id)):
                drafted, accepted = state.drafting.in_flight, len(tokens) - 1
                state.drafting.in_flight = 0
                state.take_back(drafted - accepted)
                self._counts.add_draft(drafted, accepted)
        return verified


def _by_group(states: Sequence[RequestState]) -> list[list[RequestState]]:
    """Return the requests of each group of devices; a tick pads the rows of a group."""
    groups: dict[int, list[RequestState]] = {}
    for state in states:
        groups.setdefault(state.group, []).append(state)
    return list(groups.values())
