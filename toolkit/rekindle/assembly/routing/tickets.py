"""Questions to all lanes at once, each with one merged answer, and inspections, which go to the first lane."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from rekindle.core.messages import (
    AdapterPut,
    CacheSaved,
    CacheSaving,
    Inspect,
    Inspected,
    KeepWeights,
    Message,
    NewWeights,
    PutAdapter,
    SaveCache,
    ToLane,
    WeightsKept,
    WeightsUsed,
)


@dataclass(slots=True)
class _Exchange:
    """An exchange of weights.

    Attributes:
        question: the question; its weights are a list for each lane.
        used: for each answer so far, the version of the new weights; None for a lane that keeps the old ones.
    """

    question: NewWeights
    used: dict[int, int | None] = field(default_factory=dict)

    def of(self, lane: int) -> ToLane:
        """Return the question to a lane."""
        return ToLane(lane, replace(self.question, weights=self.question.weights[lane]))


class Tickets:
    """The questions to all lanes without a complete answer, for a `Router` or a `Relay`.

    Args:
        lanes: the number of lanes.
    """

    def __init__(self, lanes: int):
        self._lanes = lanes
        self._exchanges: dict[int, _Exchange] = {}  # the first is with the lanes, the others wait for it
        self._saving: dict[int, dict[int, CacheSaving | CacheSaved]] = {}
        self._putting: dict[int, set[int]] = {}  # the lanes with a new adapter

    def ask(self, question: NewWeights | KeepWeights | SaveCache | PutAdapter | Inspect) -> Sequence[Message]:
        """Return the question to each lane, unless an earlier exchange of weights comes first."""
        match question:
            case NewWeights(ticket):
                self._exchanges[ticket] = _Exchange(question)
                return self._begin() if len(self._exchanges) == 1 else []
            case KeepWeights(ticket) if ticket in list(self._exchanges)[1:]:
                del self._exchanges[ticket]
                return [WeightsKept(ticket)]
            case KeepWeights(ticket) if ticket not in self._exchanges:
                return []
            case SaveCache(ticket):
                self._saving[ticket] = {}
            case PutAdapter(ticket, _, content, empty):
                self._putting[ticket] = set()
                own = [(content[lane], None if empty is None else empty[lane]) for lane in range(self._lanes)]
                return [ToLane(lane, replace(question, content=c, empty=e)) for lane, (c, e) in enumerate(own)]
            case Inspect():
                return [ToLane(0, question)]
        return [ToLane(lane, question) for lane in range(self._lanes)]

    def _begin(self) -> list[Message]:
        """Return the first exchange to each lane, if there is one."""
        exchange = next(iter(self._exchanges.values()), None)
        return [] if exchange is None else [exchange.of(lane) for lane in range(self._lanes)]

    def answer(
        self, lane: int, answer: WeightsUsed | WeightsKept | AdapterPut | Inspected | CacheSaving | CacheSaved
    ) -> Iterator[Message]:
        """Record a lane's answer; yield the merged answer once it is complete, and further questions to lanes."""
        match answer:
            case WeightsUsed(ticket, version):
                yield from self._record_exchange(lane, ticket, version)
            case WeightsKept(ticket):
                yield from self._record_exchange(lane, ticket, None)
            case CacheSaving(ticket) | CacheSaved(ticket):
                self._saving[ticket][lane] = answer
                yield from self._record_save(ticket)
            case Inspected():
                yield answer
            case AdapterPut(ticket):
                self._putting[ticket].add(lane)
                if len(self._putting[ticket]) == self._lanes:
                    del self._putting[ticket]
                    yield answer

    def _record_exchange(self, lane: int, ticket: int, version: int | None) -> Iterator[Message]:
        """Record the answer of a lane: it uses the new weights, with this version, or keeps the old ones.

        If the exchange was withdrawn after some lanes had answered, lanes with the old weights are asked again: all
        lanes must serve the same model.
        """
        exchange = self._exchanges[ticket]
        exchange.used[lane] = version
        if len(exchange.used) < self._lanes:
            return
        versions = [version for version in exchange.used.values() if version is not None]
        keep = [lane for lane, version in exchange.used.items() if version is None]
        if 0 < len(keep) < self._lanes:
            for each in keep:
                del exchange.used[each]
                yield exchange.of(each)
            return
        del self._exchanges[ticket]
        asleep = exchange.question.asleep
        yield WeightsUsed(ticket, max(versions), asleep) if versions else WeightsKept(ticket)
        yield from self._begin()

    def _record_save(self, ticket: int) -> Iterator[Message]:
        answer = self._saving[ticket]
        pages = sum(each.pages for each in answer.values())
        saving = [each for each in answer.values() if isinstance(each, CacheSaving)]
        if len(answer) < self._lanes:
            return
        if saving:
            yield CacheSaving(ticket, pages, pages + sum(each.total - each.pages for each in saving))
            return
        del self._saving[ticket]
        saved = [each for each in answer.values() if isinstance(each, CacheSaved)]
        complete = all(each.complete for each in saved)
        yield CacheSaved(ticket, pages, complete, sum(each.crowded_out for each in saved))
