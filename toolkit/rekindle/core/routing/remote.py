"""A lane in another process: it stands for the scheduler there, and knows what was sent and what has come."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Protocol, TypeVar

from rekindle.core.errors import RekindleError, ReplicaLost, RequestCancelled, WeightsChanged
from rekindle.core.messages import (
    Admit,
    CacheSaved,
    CacheSaving,
    Cancel,
    Found,
    KeepWeights,
    LaneBack,
    LaneLost,
    Lost,
    Message,
    NewWeights,
    Output,
    OutputPrefix,
    Outputs,
    Received,
    Rejected,
    RemoteOutput,
    RemoteOutputs,
    Returned,
    SaveCache,
    Started,
    Stopped,
    Submit,
    WeightsKept,
    WeightsUsed,
    Withdraw,
)
from rekindle.core.request.request import Request
from rekindle.core.routing.pages import pages_of
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.stats import SchedulerStats

T = TypeVar("T")
NOT_CONTINUED = "deterministic=True computes no generated tokens a second time, in another way; submit it again"


class Link(Protocol):
    """The way to a replica."""

    def send(self, message: Message) -> None:
        """Send a message to the engine there. Never blocks; from the loss of the replica until `resume`, it is lost."""

    def resume(self, life: int) -> None:
        """Send messages again, to the replica that was found with this `Found.life`, unless it is lost again."""

    def detach(self) -> None:
        """Give the replica up, so that it is found anew, with the weights of the lane."""

    def look(self, at: Callable[[Any], T]) -> T:
        """Return what `at` says of the prefix trees there; blocks."""


class Status(Protocol):
    """The state of a replica at one moment."""

    @property
    def scheduler(self) -> SchedulerStats:
        """The counters of its scheduler."""


@dataclass(slots=True)
class _Sent:
    """A request that was sent to the replica.

    Attributes:
        started: whether the beginning of its output was told before it was sent.
        tokens: those of its output that were told since it was sent.
        scores: how many log-probabilities of its prompt were told since then.
        early: what came of it without a token. It is told with the next one, for it comes again if the lane is lost.
    """

    request: Request
    started: bool
    tokens: list[int] = field(default_factory=list)
    scores: int = 0
    early: list[RemoteOutput] = field(default_factory=list)

    def again(self) -> Admit:
        """Return the request as another lane goes on with it."""
        if not self.tokens:
            return Admit(self.request, self.started)
        output_prefix = (self.request.output_prefix if self.started else ()) + tuple(self.tokens)
        params, first = self.request.params, max(1, self.request.params.prompt_logprobs_from) + self.scores
        if params.prompt_logprobs is not None:
            scored = first >= len(self.request.prompt)
            left = None if scored else params.prompt_logprobs
            params = replace(params, prompt_logprobs=left, prompt_logprobs_from=0 if scored else first)
        return Admit(replace(self.request, output_prefix=output_prefix, params=params), started=True)


def _submit(request: Request, started: bool) -> Submit:
    """Return a request as another engine makes it anew: what holds it to a constraint cannot be sent.

    Neither can a type of the caller's own, which only the caller's answer is read with.
    """
    params = request.params
    if params.json_schema is not None:
        params = replace(params, json_schema=replace(params.json_schema, adapter=None))
    return Submit(
        request.id,
        request.prompt,
        params,
        request.hold,
        caller=request.id,  # none waits for another to be tokenized
        output_prefix=OutputPrefix(request.output_prefix),
        pooling=request.pooling,
        started=started,
    )


class SentPages:
    """The pages that a replica has cached, as far as that follows from what was sent: the latest ones.

    Args:
        most: how many pages it keeps.
    """

    def __init__(self, most: int):
        self._most = most
        self._pages: OrderedDict[int, None] = OrderedDict()

    def add(self, pages: Sequence[int]) -> None:
        """Count pages as used now."""
        for page in reversed(pages):  # the first of a prefix is the last to leave
            self._pages[page] = None
            self._pages.move_to_end(page)
        while len(self._pages) > self._most:
            self._pages.popitem(last=False)

    def prefix(self, pages: Sequence[int]) -> int:
        """Return the number of these pages, from the first on, that are there."""
        return sum(1 for _ in takewhile(self._pages.__contains__, pages))

    def clear(self) -> None:
        """Forget all of them."""
        self._pages.clear()


class RemoteLane:
    """Passes messages to a replica, and gives the requests that are lost with it back, with their tokens so far.

    Args:
        link: the way to the replica.
        status: how it stands.
        pages: those that it has cached.
        limits: those of the lane.

    Attributes:
        status: how it stood when it was last heard of.
        weights: the exchanged weights that it is to have; None for those that it was opened with.
    """

    def __init__(self, link: Link, status: Status, pages: SentPages, limits: EngineLimits):
        self._link, self._pages = link, pages
        self._page_size, self._one_shape = limits.pool.page_size, limits.one_shape
        self._sent: dict[int, _Sent] = {}
        self._exchanges: dict[int, NewWeights] = {}
        self._saving: set[int] = set()
        self._lost: Exception | None = None
        self.status = status
        self.weights: list[Any] | None = None

    # The view of the router and of the session

    @property
    def stats(self) -> SchedulerStats:
        """The counters of the scheduler there, as they were last heard."""
        return self.status.scheduler

    def look(self, at: Callable[[Any], T]) -> T:
        """Return what `at` says of the prefix trees there. It blocks, and is for another thread than the engine's."""
        return self._link.look(at)

    def uncached(self, request: Request) -> int:
        """Return the number of a request's known tokens that would probably have to be computed now."""
        pages = pages_of(request, self._page_size)[: (len(request.initial_tokens) - 1) // self._page_size]
        return len(request.initial_tokens) - self._pages.prefix(pages) * self._page_size

    def remaining(self, request_id: int) -> int | None:
        """Return None: how far a prompt is computed there is not known."""
        return None

    # Messages

    def handle(self, message: Message) -> Iterator[Message]:
        """Send messages on, and say what has come."""
        match message:
            case Received(messages, status):
                if status is not None:
                    self.status = status
                for each in messages:
                    yield from self._take(each)
            case Lost(error, for_good):
                self._lost = error
                yield from self._fail_begun()
                yield LaneLost(self._given_up(), error, for_good)
                yield from self._answers()
            case Found(life, weights):
                if weights is not self.weights:  # they were exchanged meanwhile
                    self._link.detach()
                    return
                self._lost = None
                self._link.resume(life)
                yield LaneBack()
            case Admit(request, started):
                if self._lost is not None:
                    yield Returned(message)
                    return
                self._sent[request.id] = _Sent(request, started)
                self._pages.add(pages_of(request, self._page_size))
                self._link.send(_submit(request, started))
            case NewWeights(ticket):
                self._exchanges[ticket] = message
                yield from self._ask(message)
            case SaveCache(ticket):
                self._saving.add(ticket)
                yield from self._ask(message)
            case Withdraw(request_id):
                self._link.send(Cancel(request_id))
            case Stopped() | KeepWeights():
                self._link.send(message)
            case _:
                raise TypeError(
                    "a remote lane takes Admit, Withdraw, Stopped, NewWeights, KeepWeights, SaveCache, Received, Lost "
                    f"and Found, got {message!r:.80}"
                )

    def _ask(self, question: NewWeights | SaveCache) -> Iterator[Message]:
        """Send a question; the answer of a lost lane follows from its loss."""
        if self._lost is None:
            self._link.send(question)
        else:
            yield from self._answers()

    def _take(self, message: Message) -> Iterator[Message]:
        """Take what the replica says, and yield what a lane here would say."""
        match message:
            case RemoteOutputs(come):
                outputs = tuple(output for each in come for output in self._outputs(each))
                if outputs:
                    yield Outputs(outputs)
            case Started(request_id):
                if request_id in self._sent:
                    yield message
            case Rejected(request_id, error):
                if sent := self._sent.pop(request_id, None):
                    cancelled = isinstance(error, RequestCancelled)  # the intake there had not admitted it
                    yield Outputs((Output(sent.request, (), "cancelled"),)) if cancelled else message
            case WeightsUsed(ticket):
                if exchange := self._exchanges.pop(ticket, None):
                    self.weights = exchange.weights
                    self._pages.clear()
                    yield message
            case WeightsKept(ticket):
                if self._exchanges.pop(ticket, None):
                    yield message
            case CacheSaving(ticket):
                if ticket in self._saving:
                    yield message
            case CacheSaved(ticket):
                if ticket in self._saving:
                    self._saving.remove(ticket)
                    yield message

    def _outputs(self, come: RemoteOutput) -> Iterator[Output]:
        """Yield the outputs to tell now: none without a token, and with one those that were kept back too."""
        sent = self._sent.get(come.request_id)
        if sent is None:
            return
        sent.early.append(come)
        if not come.token_ids and come.end is None:
            return
        early, sent.early = sent.early, []
        for each in early:
            sent.tokens += each.token_ids
            sent.scores += len(each.prompt_logprobs)
            yield each.output(sent.request)
        if come.end is not None:
            del self._sent[come.request_id]
            self._pages.add(pages_of(sent.again().request, self._page_size))

    # Loss

    def _fail_begun(self) -> Iterator[Message]:
        """Fail the requests that have tokens, where going on elsewhere would give others than without the loss."""
        if self._exchanges:
            error: RekindleError = WeightsChanged("its replica was lost while weights were exchanged; submit it again")
        elif self._one_shape:
            error = ReplicaLost(f"its replica was lost, and {NOT_CONTINUED}")
        else:
            return
        for request_id in [request_id for request_id, sent in self._sent.items() if sent.tokens or sent.started]:
            del self._sent[request_id]
            yield Rejected(request_id, error)

    def _given_up(self) -> tuple[Admit, ...]:
        """Return all requests as they stand, and forget them and all that was cached."""
        sent, self._sent = self._sent, {}
        self._pages.clear()
        return tuple(each.again() for each in sent.values())

    def _answers(self) -> Iterator[Message]:
        """Answer all questions for a lane that is lost: it has new weights when it is back, and saves nothing."""
        exchanges, self._exchanges = self._exchanges, {}
        for ticket, exchange in exchanges.items():
            self.weights = exchange.weights
            yield WeightsUsed(ticket)
        saving, self._saving = self._saving, set()
        for ticket in saving:
            yield CacheSaved(ticket, 0, False)
