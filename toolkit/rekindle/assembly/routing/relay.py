"""The relay: the router of disaggregated lanes, one for prefill and one for decode."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from rekindle.assembly.routing.lane_requests import LaneView
from rekindle.assembly.routing.tickets import Tickets
from rekindle.core.errors import StepTimeout
from rekindle.core.messages import (
    AdapterPut,
    Admit,
    CacheSaved,
    CacheSaving,
    Collected,
    FromLane,
    Inspect,
    Inspected,
    KeepWeights,
    Message,
    NewWeights,
    Output,
    Outputs,
    PagesStaged,
    PutAdapter,
    Rejected,
    SaveCache,
    SendPages,
    StagePages,
    Started,
    Stopped,
    ToLane,
    WeightsKept,
    WeightsUsed,
    Withdraw,
)
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason

PREFILL: Final = 0
DECODE: Final = 1
"""The numbers of the two lanes."""
Stage = Literal["prefill", "moving", "decode"]


class DecodeView(LaneView, Protocol):
    """The relay's view of the decode lane's scheduler."""

    def pages_on_device(self, request: Request) -> int:
        """Return the number of device pages with a request's initial tokens."""


@dataclass(slots=True)
class _Transfer:
    """A request in progress in the relay.

    Attributes:
        stage: "prefill" while its prompt is computed, "moving" while its pages move, then "decode".
        alone: whether its current lane serves it to the end.
        first: the first page to move.
        token: its first token, once sampled.
        ending: the end reason, once the caller or a stop string has ended it.
        exchanges: the number of weight exchanges of the prefill lane before it started the request.
    """

    request: Request
    stage: Stage
    alone: bool = False
    first: int = 0
    token: tuple[int, ...] = ()
    ending: EndReason | None = None
    exchanges: int = 0


@dataclass(slots=True)
class _RelayedExchange:
    """An exchange of weights not yet sent to the decode lane.

    Attributes:
        message: the request for new weights.
        moving: the requests on the old weights whose pages still move; None until the prefill lane uses the new ones.
    """

    message: NewWeights
    moving: set[int] | None = None


class Relay:
    """The router of an engine with a prefill lane and a decode lane, in place of `Router`.

    The prefill lane computes prompts and samples first tokens; then the relay moves the pages of the prompt, and the
    decode lane continues the request.

    Pages already cached in the decode lane do not move. The decode lane itself computes prompts with few uncached
    tokens, and the end of a prompt after its last whole page. The prefill lane alone serves requests with at most one
    generated token: held prefixes, embeddings, scores. The decode lane samples the first token of a constrained
    request, because it follows the grammar.

    Args:
        decode: the view of the decode lane.
        threshold: the number of uncached tokens from which a prompt goes to the prefill lane.
        page_size: tokens of a page.
    """

    def __init__(self, decode: DecodeView, threshold: int, page_size: int):
        self._decode = decode
        self._threshold, self._page_size = threshold, page_size
        self._transfers: dict[int, _Transfer] = {}
        self._held_ids: set[int] = set()
        self._tickets = Tickets(2)
        self._exchanges: dict[int, _RelayedExchange] = {}
        self._exchange_counts = [0, 0]  # the number of weight exchanges of each lane
        self._early: list[int] = []  # requests started on weights the decode lane does not have yet
        self._staging: set[int] = set()  # requests with pages being copied, ended ones too

    def handle(self, message: Message) -> Iterable[Message]:
        """Pass messages to lanes in `ToLane`; unwrap `FromLane` for the shared actors."""
        match message:
            case FromLane(lane, answer):
                yield from self._take(lane, answer)
                yield from self._forward_weights()
            case Admit(request):
                yield self._admit(request)
            case Withdraw(request_id) | Stopped(request_id):
                yield from self._end(request_id, message)
            case NewWeights(ticket, weights, in_flight):
                self._exchanges[ticket] = _RelayedExchange(message)
                yield ToLane(PREFILL, replace(message, weights=weights[PREFILL]))
                if in_flight == "fail":
                    yield from self._fail(message.failure)
            case KeepWeights(ticket):
                if ticket in self._exchanges:
                    yield ToLane(PREFILL, message)
            case SaveCache() | PutAdapter() | Inspect():
                yield from self._tickets.ask(message)
            case _:
                raise wrong_receiver("relay", message)

    # Requests

    def _admit(self, request: Request) -> Message:
        """Assign a request to its first lane."""
        transfer = self._transfers[request.id] = _Transfer(request, "prefill")
        short = request.longest - len(request.initial_tokens) <= 1
        if request.hold or request.pooling is not None or short or request.params.prompt_logprobs is not None:
            transfer.alone = True
            return ToLane(PREFILL, Admit(request))
        few = self._decode.uncached(request) < max(self._threshold, self._page_size)
        if (few or request.complete) and not self._exchanges:
            transfer.stage, transfer.alone = "decode", True
            return ToLane(DECODE, Admit(request))
        if request.may_force:
            none = replace(request.params, max_tokens=len(request.output_prefix))
            return ToLane(PREFILL, Admit(replace(request, params=none, constrained=None, thoughts=None)))
        one = replace(request.params, max_tokens=len(request.initial_output) + 1)
        return ToLane(PREFILL, Admit(replace(request, params=one)))

    def _end(self, request_id: int, message: Withdraw | Stopped) -> Iterator[Message]:
        """Forward the end of a request; a request with moving pages ends here."""
        transfer = self._transfers.get(request_id)
        if transfer is None:
            if request_id in self._held_ids and isinstance(message, Withdraw):
                self._held_ids.remove(request_id)
                yield ToLane(PREFILL, message)
            return
        end: EndReason = "stop" if isinstance(message, Stopped) else "cancelled"
        if transfer.stage == "moving":
            del self._transfers[request_id]
            yield Outputs((Output(transfer.request, (), end),))
            return
        transfer.ending = end  # the lane may sample its first token before the message arrives
        yield ToLane(PREFILL if transfer.stage == "prefill" else DECODE, message)

    def _take(self, lane: int, answer: Message) -> Iterator[Message]:
        match answer:
            case Outputs(outputs):
                outgoing, moves = [], list[Message]()
                for output in outputs:
                    visible, further = self._output(lane, output)
                    outgoing += [visible] if visible is not None else []
                    moves += further
                if outgoing:
                    yield Outputs(tuple(outgoing))
                yield from moves
            case Started(request_id, exchanges=exchanges):
                transfer = self._transfers.get(request_id)
                if transfer is not None and lane == PREFILL:
                    transfer.exchanges = exchanges
                if transfer is None or lane == PREFILL or transfer.alone:
                    yield answer
            case Rejected(request_id, error):
                self._transfers.pop(request_id, None)
                yield answer
                if lane == PREFILL and isinstance(error, StepTimeout):  # moving pages wait for the overdue tick too
                    yield from self._fail(error)
            case Collected():
                yield from self._on_collected(answer)
            case PagesStaged(request_id):
                self._staging.remove(request_id)
                if transfer := self._transfers.get(request_id):
                    yield self._hand_over(transfer)
            case WeightsUsed(ticket, version):
                self._exchange_counts[lane] = version
                if lane == PREFILL:
                    exchange = self._exchanges[ticket]
                    if exchange.message.in_flight == "keep":
                        self._restart_prompts()
                    waits = self._is_moving if exchange.message.asleep else self._is_of_old_weights
                    exchange.moving = {*self._staging, *filter(waits, self._transfers)}
                else:
                    early, self._early = self._early, []
                    for transfer in [self._transfers[each] for each in early if each in self._transfers]:
                        yield from self._move(transfer)
                    yield answer
            case WeightsKept(ticket):
                del self._exchanges[ticket]
                yield answer
            case CacheSaving() | CacheSaved() | AdapterPut() | Inspected():
                yield from self._tickets.answer(lane, answer)
            case _:
                yield answer

    def _output(self, lane: int, output: Output) -> tuple[Output | None, list[Message]]:
        """Return the output for the caller or None, and the resulting messages to lanes."""
        transfer = self._transfers.get(output.request.id)
        if transfer is None:
            return output, []
        if transfer.stage == "prefill" and not transfer.alone:
            may_force = transfer.request.may_force
            if output.end == "length" and transfer.ending is None:
                transfer.stage, transfer.token = "moving", output.token_ids
                visible = None if may_force else replace(output, request=transfer.request, end=None)
                return visible, list(self._move(transfer))
            if output.end is None and may_force:
                return None, []  # the initial output; the decode lane outputs it too
        if output.end is not None:
            del self._transfers[output.request.id]
            if output.end == "held" and transfer.ending is None:
                self._held_ids.add(output.request.id)
        end = output.end
        if end == "length" and transfer.stage == "prefill" and not transfer.alone:
            end = transfer.ending  # otherwise it would have continued
        return replace(output, request=transfer.request, end=end), []

    def _move(self, transfer: _Transfer) -> Iterator[Message]:
        """Collect the pages missing in the decode lane, once this lane has the weights of the request."""
        if transfer.exchanges > self._exchange_counts[DECODE]:
            self._early.append(transfer.request.id)
            return
        transfer.first = self._decode.pages_on_device(transfer.request)
        yield ToLane(PREFILL, SendPages(transfer.request, transfer.first, transfer.exchanges))

    def _on_collected(self, message: Collected) -> Iterator[Message]:
        """Send the collected pages of a request to the decode lane."""
        transfer = self._transfers.get(message.request_id)
        if transfer is None:  # it ended meanwhile
            return
        if message.contents:
            self._staging.add(message.request_id)
            yield ToLane(DECODE, StagePages(transfer.request, transfer.first, message.contents))
        else:
            yield self._hand_over(transfer)

    def _hand_over(self, transfer: _Transfer) -> Message:
        """Continue a request in the decode lane."""
        transfer.stage, request = "decode", transfer.request
        return ToLane(
            DECODE, Admit(replace(request, output_prefix=request.output_prefix + transfer.token), bool(transfer.token))
        )

    # Weights

    def _forward_weights(self) -> Iterator[Message]:
        """Send new weights to the decode lane once it has all requests started on the old ones in the prefill lane."""
        for ticket, exchange in list(self._exchanges.items()):
            if exchange.moving is None:
                return
            exchange.moving = {each for each in exchange.moving if self._is_moving(each)}
            if exchange.moving:
                return
            del self._exchanges[ticket]
            yield ToLane(DECODE, replace(exchange.message, weights=exchange.message.weights[DECODE]))

    def _restart_prompts(self) -> None:
        """Count the requests in the prefill lane as started on its new weights: it computes them again."""
        for transfer in self._transfers.values():
            if transfer.stage == "prefill":
                transfer.exchanges = self._exchange_counts[PREFILL]

    def _is_moving(self, request_id: int) -> bool:
        transfer = self._transfers.get(request_id)
        return request_id in self._staging or (transfer is not None and transfer.stage == "moving")

    def _is_of_old_weights(self, request_id: int) -> bool:
        return self._is_moving(request_id) and self._transfers[request_id].exchanges < self._exchange_counts[PREFILL]

    def _fail(self, error: Exception) -> Iterator[Message]:
        """Fail the requests with moving pages; lanes fail their requests themselves."""
        for request_id in list(filter(self._is_moving, self._transfers)):
            del self._transfers[request_id]
            yield Rejected(request_id, error)
