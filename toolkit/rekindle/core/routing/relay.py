"""The relay: the router where one lane computes prompts, and another generates."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from rekindle.core.errors import StepTimeout, WeightsChanged
from rekindle.core.messages import (
    Admit,
    CacheSaved,
    CacheSaving,
    Collected,
    FromLane,
    KeepWeights,
    Message,
    NewWeights,
    Output,
    Outputs,
    PagesStaged,
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
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason
from rekindle.core.routing.placed import LaneView
from rekindle.core.routing.tickets import Tickets

PREFILL: Final = 0
DECODE: Final = 1
"""The numbers of the two lanes."""
Stage = Literal["prefill", "moving", "decode"]


class DecodeView(LaneView, Protocol):
    """The scheduler of the decode lane as the relay sees it."""

    def pages_on_device(self, request: Request) -> int:
        """Return the number of pages of a request's known tokens that are cached on the devices."""


@dataclass(slots=True)
class _Relayed:
    """A request on its way.

    Attributes:
        stage: where it is: its prompt is computed, its pages are moving, or it is with the lane that generates.
        alone: whether the lane that it is with serves it to its end.
        first: the page from which on its pages move.
        token: its first token, once that is drawn.
        ending: how it is to end, if it was told to end while its prompt was computed.
        exchanges: how often the prefill lane had exchanged its weights when it began the request.
    """

    request: Request
    stage: Stage
    alone: bool = False
    first: int = 0
    token: tuple[int, ...] = ()
    ending: EndReason | None = None
    exchanges: int = 0


@dataclass(slots=True)
class _Exchange:
    """An exchange of weights that the decode lane does not know of yet.

    Attributes:
        moving: the requests whose pages were moving when the prefill lane began to use the weights; None before that.
    """

    asked: NewWeights
    moving: set[int] | None = None


class Relay:
    """Has the prefill lane compute prompts and draw first tokens, moves the pages, and has the decode lane go on.

    What of a prompt the decode lane has cached does not move. A prompt of which it lacks few tokens is computed there,
    and so is the end of a prompt that fills no page. The prefill lane serves to their end those that generate one token
    or none: prefixes to hold, embeddings, scores. A constrained request has its first token drawn by the decode lane,
    which follows its grammar.

    Args:
        decode: the scheduler of the lane that generates.
        threshold: so many uncached tokens are too many to be computed where the others decode.
        page_size: tokens of a page.
    """

    def __init__(self, decode: DecodeView, threshold: int, page_size: int):
        self._decode = decode
        self._threshold, self._page_size = threshold, page_size
        self._relayed: dict[int, _Relayed] = {}
        self._held: set[int] = set()
        self._tickets = Tickets(2)
        self._exchanges: dict[int, _Exchange] = {}
        self._exchanged = [0, 0]  # how often each lane has exchanged its weights
        self._early: list[int] = []  # the requests that wait for the decode lane to have their weights
        self._staging: set[int] = set()  # the requests whose pages are being copied, ended ones too

    def handle(self, message: Message) -> Iterable[Message]:
        """Pass messages to lanes as `ToLane`, and what comes of them as `FromLane` to others, as it is."""
        match message:
            case FromLane(lane, said):
                yield from self._take(lane, said)
                yield from self._go_on()
            case Admit(request):
                yield self._admit(request)
            case Withdraw(request_id) | Stopped(request_id):
                yield from self._end(request_id, message)
            case NewWeights(ticket, weights, fail):
                self._exchanges[ticket] = _Exchange(message)
                yield ToLane(PREFILL, NewWeights(ticket, weights[PREFILL], fail))
                if fail:
                    yield from self._fail(WeightsChanged("the request was ended by update_weights; submit it again"))
            case KeepWeights(ticket):
                if ticket in self._exchanges:
                    yield ToLane(PREFILL, message)
            case SaveCache():
                yield from self._tickets.ask(message)
            case _:
                raise TypeError(
                    "the relay takes Admit, Withdraw, Stopped, NewWeights, KeepWeights, SaveCache and FromLane, got "
                    f"{message!r:.80}"
                )

    # Requests

    def _admit(self, request: Request) -> Message:
        """Give a request to the lane that begins it."""
        relayed = self._relayed[request.id] = _Relayed(request, "prefill")
        short = request.longest - len(request.initial_tokens) <= 1
        if request.hold or request.pooling is not None or short or request.params.prompt_logprobs is not None:
            relayed.alone = True
            return ToLane(PREFILL, Admit(request))
        few = self._decode.uncached(request) < max(self._threshold, self._page_size)
        if (few or request.complete) and not self._exchanges:
            relayed.stage, relayed.alone = "decode", True
            return ToLane(DECODE, Admit(request))
        if request.constrained is not None:
            none = replace(request.params, max_tokens=len(request.output_prefix))
            return ToLane(PREFILL, Admit(replace(request, params=none, constrained=None)))
        one = replace(request.params, max_tokens=len(request.initial_output) + 1)
        return ToLane(PREFILL, Admit(replace(request, params=one)))

    def _end(self, request_id: int, message: Withdraw | Stopped) -> Iterator[Message]:
        """Pass on that a request is to end; one whose pages are moving ends here."""
        relayed = self._relayed.get(request_id)
        if relayed is None:
            if request_id in self._held and isinstance(message, Withdraw):
                self._held.remove(request_id)
                yield ToLane(PREFILL, message)
            return
        end: EndReason = "stop" if isinstance(message, Stopped) else "cancelled"
        if relayed.stage == "moving":
            del self._relayed[request_id]
            yield Outputs((Output(relayed.request, (), end),))
            return
        relayed.ending = end  # the lane may have drawn its first token before it hears
        yield ToLane(PREFILL if relayed.stage == "prefill" else DECODE, message)

    def _take(self, lane: int, said: Message) -> Iterator[Message]:
        match said:
            case Outputs(outputs):
                kept, moves = [], list[Message]()
                for output in outputs:
                    shown, further = self._output(lane, output)
                    kept += [shown] if shown is not None else []
                    moves += further
                if kept:
                    yield Outputs(tuple(kept))
                yield from moves
            case Started(request_id, exchanges=exchanges):
                relayed = self._relayed.get(request_id)
                if relayed is not None and lane == PREFILL:
                    relayed.exchanges = exchanges
                if relayed is None or lane == PREFILL or relayed.alone:
                    yield said
            case Rejected(request_id, error):
                self._relayed.pop(request_id, None)
                yield said
                if lane == PREFILL and isinstance(error, StepTimeout):  # their pages wait for that tick too
                    yield from self._fail(error)
            case Collected():
                yield from self._collected(said)
            case PagesStaged(request_id):
                self._staging.remove(request_id)
                if relayed := self._relayed.get(request_id):
                    yield self._handed_over(relayed)
            case WeightsUsed(ticket):
                self._exchanged[lane] += 1
                if lane == PREFILL:
                    self._exchanges[ticket].moving = {*self._staging, *filter(self._is_of_old_weights, self._relayed)}
                else:
                    early, self._early = self._early, []
                    for relayed in [self._relayed[each] for each in early if each in self._relayed]:
                        yield from self._move(relayed)
                    yield said
            case WeightsKept(ticket):
                del self._exchanges[ticket]
                yield said
            case CacheSaving() | CacheSaved():
                yield from self._tickets.answer(lane, said)
            case _:
                yield said

    def _output(self, lane: int, output: Output) -> tuple[Output | None, list[Message]]:
        """Return the output as others are told of it, or None, and the messages to lanes that follow from it."""
        relayed = self._relayed.get(output.request.id)
        if relayed is None:
            return output, []
        if relayed.stage == "prefill" and not relayed.alone:
            constrained = relayed.request.constrained is not None
            if output.end == "length" and relayed.ending is None:
                relayed.stage, relayed.token = "moving", output.token_ids
                shown = None if constrained else replace(output, request=relayed.request, end=None)
                return shown, list(self._move(relayed))
            if output.end is None and constrained:
                return None, []  # what is given of its output, which the decode lane says too
        if output.end is not None:
            del self._relayed[output.request.id]
            if output.end == "held" and relayed.ending is None:
                self._held.add(output.request.id)
        end = output.end
        if end == "length" and relayed.stage == "prefill" and not relayed.alone:
            end = relayed.ending  # else it would have gone on
        return replace(output, request=relayed.request, end=end), []

    def _move(self, relayed: _Relayed) -> Iterator[Message]:
        """Have the pages of a request collected, once the decode lane has its weights: those that are not there."""
        if relayed.exchanges > self._exchanged[DECODE]:
            self._early.append(relayed.request.id)
            return
        relayed.first = self._decode.pages_on_device(relayed.request)
        yield ToLane(PREFILL, SendPages(relayed.request, relayed.first, relayed.exchanges))

    def _collected(self, message: Collected) -> Iterator[Message]:
        """Have the pages of a request copied to the decode lane."""
        relayed = self._relayed.get(message.request_id)
        if relayed is None:  # it ended meanwhile
            return
        if message.contents:
            self._staging.add(message.request_id)
            yield ToLane(DECODE, StagePages(relayed.request, relayed.first, message.contents))
        else:
            yield self._handed_over(relayed)

    def _handed_over(self, relayed: _Relayed) -> Message:
        """Have the decode lane go on with a request."""
        relayed.stage, request = "decode", relayed.request
        return ToLane(
            DECODE, Admit(replace(request, output_prefix=request.output_prefix + relayed.token), bool(relayed.token))
        )

    # Weights

    def _go_on(self) -> Iterator[Message]:
        """Give new weights to the decode lane once it has all requests that the other one began on the old ones."""
        for ticket, exchange in list(self._exchanges.items()):
            if exchange.moving is None:
                return
            exchange.moving = {each for each in exchange.moving if self._is_moving(each)}
            if exchange.moving:
                return
            del self._exchanges[ticket]
            yield ToLane(DECODE, NewWeights(ticket, exchange.asked.weights[DECODE], exchange.asked.fail))

    def _is_moving(self, request_id: int) -> bool:
        relayed = self._relayed.get(request_id)
        return request_id in self._staging or (relayed is not None and relayed.stage == "moving")

    def _is_of_old_weights(self, request_id: int) -> bool:
        return self._is_moving(request_id) and self._relayed[request_id].exchanges < self._exchanged[PREFILL]

    def _fail(self, error: Exception) -> Iterator[Message]:
        """Fail the requests whose pages are moving; lanes fail their own."""
        for request_id in list(filter(self._is_moving, self._relayed)):
            del self._relayed[request_id]
            yield Rejected(request_id, error)
