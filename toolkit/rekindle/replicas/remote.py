"""A lane in another process: the local actor in place of its scheduler, with all requests in progress there."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Protocol, TypeVar

from rekindle.assembly.routing.pages import pages_of
from rekindle.core.errors import RekindleError, ReplicaLost, RequestCancelled, WeightsChanged
from rekindle.core.messages import (
    Admit,
    CacheSaved,
    CacheSaving,
    Cancel,
    KeepWeights,
    LaneBack,
    LaneLost,
    Lost,
    Message,
    NewWeights,
    Output,
    OutputPrefix,
    Outputs,
    PicturedTokens,
    Received,
    Rejected,
    RemoteOutput,
    RemoteOutputs,
    ReplicaFound,
    Returned,
    SaveCache,
    Started,
    Stopped,
    Submit,
    WeightsKept,
    WeightsReplaced,
    WeightsUsed,
    Withdraw,
)
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.request.request import Request
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.stats import SchedulerStats

T = TypeVar("T")
NOT_CONTINUED = "deterministic=True does not recompute generated tokens with another program; submit it again"


class LaneLink(Protocol):
    """The connection to a replica."""

    def send(self, message: Message) -> None:
        """Send a message to the replica. Never blocks; messages between a loss and `resume` are dropped."""

    def resume(self, life: int) -> None:
        """Send messages again, to the replica with this `ReplicaFound.life`, unless it is lost again."""

    def detach(self) -> None:
        """Detach the replica, so that it is found anew, with the weights of the lane."""

    def look(self, at: Callable[[Any], T]) -> T:
        """Call `at` with the replica's prefix trees; return its result. Blocks."""


class Status(Protocol):
    """The state of a replica at one moment."""

    @property
    def scheduler(self) -> SchedulerStats:
        """The counters of its scheduler."""

    @property
    def stuck(self) -> str | None:
        """The description of a stuck tick; None if the replica is not stuck."""


@dataclass(slots=True)
class _RemoteRequest:
    """A request in progress in the replica.

    Attributes:
        started: whether the caller had the beginning of its output before the request was sent.
        tokens: the output tokens delivered since then.
        scores: the number of prompt log-probabilities delivered since then.
        early: outputs without tokens. The next token's output follows together with these, because another lane would
            repeat an undelivered start.
    """

    request: Request
    started: bool
    tokens: list[int] = field(default_factory=list)
    scores: int = 0
    early: list[RemoteOutput] = field(default_factory=list)

    def readmit(self) -> Admit:
        """Return the request for another lane to continue."""
        if not self.tokens:
            return Admit(self.request, self.started)
        output_prefix = (self.request.output_prefix if self.started else ()) + tuple(self.tokens)
        params, first = self.request.params, max(1, self.request.params.prompt_logprobs_from) + self.scores
        if params.prompt_logprobs is not None:
            all_scored = first >= len(self.request.prompt)
            remaining = None if all_scored else params.prompt_logprobs
            params = replace(params, prompt_logprobs=remaining, prompt_logprobs_from=0 if all_scored else first)
        return Admit(replace(self.request, output_prefix=output_prefix, params=params), started=True)


def _submit(request: Request, started: bool) -> Submit:
    """Return a request as submitted, for the replica to prepare again, because a compiled constraint cannot be sent.

    The caller's type for a JSON schema cannot be sent either; only the caller needs it, to parse the result.
    """
    params = request.params
    if params.json_schema is not None:
        params = replace(params, json_schema=replace(params.json_schema, adapter=None))
    return Submit(
        request.id,
        PicturedTokens(request.prompt, request.pictures) if request.pictures else request.prompt,
        params,
        request.hold,
        caller=request.id,  # distinct, so that none waits for the tokenizing of another
        output_prefix=OutputPrefix(request.output_prefix),
        pooling=request.pooling,
        started=started,
        synthetic=request.synthetic,
    )


class SentPages:
    """Pages presumably cached in a replica: the latest pages sent.

    Args:
        most: the capacity in pages.
    """

    def __init__(self, most: int):
        self._most = most
        self._pages: OrderedDict[int, None] = OrderedDict()

    def add(self, pages: Sequence[int]) -> None:
        """Mark pages as used now."""
        for page in reversed(pages):  # the first of a prefix is the last to leave
            self._pages[page] = None
            self._pages.move_to_end(page)
        while len(self._pages) > self._most:
            self._pages.popitem(last=False)

    def prefix(self, pages: Sequence[int]) -> int:
        """Return the length of the longest cached prefix of `pages`, in pages."""
        return sum(1 for _ in takewhile(self._pages.__contains__, pages))

    def clear(self) -> None:
        """Remove all pages."""
        self._pages.clear()


class RemoteLane:
    """The actor of a lane in another process: it takes the place of the lane's scheduler.

    It forwards messages to the replica, and answers with the replica's messages. If the replica is lost, it returns the
    requests with their tokens so far to the `Router`, for other lanes to continue. Sessions read `stats` from it.

    Args:
        link: the connection to the replica.
        status: the initial status.
        pages: the pages presumably cached.
        limits: the limits of the lane.
        weights_version: the number of the weights in use.

    Attributes:
        status: the latest status.
        weights: the weights after the latest exchange; None for the initial ones.
        weights_version: their number.
    """

    def __init__(
        self, link: LaneLink, status: Status, pages: SentPages, limits: EngineLimits, weights_version: int = 0
    ):
        self._link, self._pages = link, pages
        self._page_size, self._one_shape = limits.pool.page_size, limits.one_shape
        self._requests: dict[int, _RemoteRequest] = {}
        self._exchanges: dict[int, NewWeights] = {}
        self._saving: set[int] = set()
        self._loss: Exception | None = None
        self.status = status
        self.weights: list[Any] | None = None
        self.weights_version = weights_version

    # The view of the router and of the session

    @property
    def stats(self) -> SchedulerStats:
        """The latest counters of the scheduler."""
        return self.status.scheduler

    @property
    def overdue(self) -> bool:
        """True while a tick of the replica exceeds `watchdog_timeout`, by its latest status."""
        return self.status.stuck is not None

    def look(self, at: Callable[[Any], T]) -> T:
        """Call `at` with the replica's prefix trees; return its result. Blocks: call it off the engine's thread."""
        return self._link.look(at)

    def uncached(self, request: Request) -> int:
        """Return the estimated number of a request's initial tokens to compute now."""
        pages = pages_of(request, self._page_size)[: (len(request.initial_tokens) - 1) // self._page_size]
        return len(request.initial_tokens) - self._pages.prefix(pages) * self._page_size

    def remaining(self, request_id: int) -> int | None:
        """Return None: the progress of a remote prompt is unknown."""
        return None

    # Messages

    def handle(self, message: Message) -> Iterator[Message]:
        """Send messages to the replica, and yield its answers."""
        match message:
            case Received(messages, status):
                if status is not None:
                    self.status = status
                for each in messages:
                    yield from self._take(each)
            case Lost(error, for_good):
                self._loss = error
                yield from self._fail_started()
                yield LaneLost(self._release_requests(), error, for_good)
                yield from self._answers()
            case ReplicaFound(life, weights):
                if weights is not self.weights:  # the weights were exchanged meanwhile
                    self._link.detach()
                    return
                self._loss = None
                self._link.resume(life)
                yield LaneBack()
            case Admit(request, started):
                if self._loss is not None:
                    yield Returned(message)
                    return
                self._requests[request.id] = _RemoteRequest(request, started)
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
                raise wrong_receiver("remote lane", message)

    def _ask(self, question: NewWeights | SaveCache) -> Iterator[Message]:
        """Send a question to the replica; if the replica is lost, answer at once."""
        if self._loss is None:
            self._link.send(question)
        else:
            yield from self._answers()

    def _take(self, message: Message) -> Iterator[Message]:
        """Handle a message from the replica; yield what a local lane would send."""
        match message:
            case RemoteOutputs(remote_outputs):
                outputs = tuple(output for each in remote_outputs for output in self._outputs(each))
                if outputs:
                    yield Outputs(outputs)
            case Started(request_id):
                if request_id in self._requests:
                    yield message
            case Rejected(request_id, error):
                if entry := self._requests.pop(request_id, None):
                    cancelled = isinstance(error, RequestCancelled)  # the intake there had not admitted it
                    yield Outputs((Output(entry.request, (), "cancelled"),)) if cancelled else message
            case WeightsUsed(ticket, version):
                if exchange := self._exchanges.pop(ticket, None):
                    self.weights, self.weights_version = exchange.weights, version
                    self._pages.clear()
                    yield message
            case WeightsReplaced(version):
                self.weights_version = version
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

    def _outputs(self, output: RemoteOutput) -> Iterator[Output]:
        """Yield the outputs to deliver now: none before the first token, then all."""
        entry = self._requests.get(output.request_id)
        if entry is None:
            return
        entry.early.append(output)
        if not output.token_ids and output.end is None:
            return
        early, entry.early = entry.early, []
        for each in early:
            entry.tokens += each.token_ids
            entry.scores += len(each.prompt_logprobs)
            yield each.output(entry.request)
        if output.end is not None:
            del self._requests[output.request_id]
            self._pages.add(pages_of(entry.readmit().request, self._page_size))

    # Loss

    def _fail_started(self) -> Iterator[Message]:
        """Fail started requests whose continuation elsewhere would differ from a run without the loss."""
        if any(exchange.in_flight != "keep" for exchange in self._exchanges.values()):
            error: RekindleError = WeightsChanged("its replica was lost while weights were exchanged; submit it again")
        elif self._one_shape:
            error = ReplicaLost(f"its replica was lost, and {NOT_CONTINUED}")
        else:
            return
        for request_id in [request_id for request_id, entry in self._requests.items() if entry.tokens or entry.started]:
            del self._requests[request_id]
            yield Rejected(request_id, error)

    def _release_requests(self) -> tuple[Admit, ...]:
        """Return all requests for other lanes, and forget these and the cached pages."""
        requests, self._requests = self._requests, {}
        self._pages.clear()
        return tuple(each.readmit() for each in requests.values())

    def _answers(self) -> Iterator[Message]:
        """Answer all open questions of a lost lane: it will return with the new weights, and no pages are saved."""
        exchanges, self._exchanges = self._exchanges, {}
        for ticket, exchange in exchanges.items():
            self.weights, self.weights_version = exchange.weights, self.weights_version + 1
            yield WeightsUsed(ticket, self.weights_version)
        saving, self._saving = self._saving, set()
        for ticket in saving:
            yield CacheSaved(ticket, 0, False)
