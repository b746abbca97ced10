"""Questions to all lanes at once, and the one answer that is made of theirs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rekindle.core.messages import (
    CacheSaved,
    CacheSaving,
    KeepWeights,
    Message,
    NewWeights,
    SaveCache,
    ToLane,
    WeightsKept,
    WeightsUsed,
)


@dataclass(slots=True)
class _Exchange:
    """An exchange of weights.

    Attributes:
        asked: the question; its weights are those of each lane.
        used: for each lane that has answered, whether it uses them.
    """

    asked: NewWeights
    used: dict[int, bool] = field(default_factory=dict)

    def of(self, lane: int) -> ToLane:
        """Return the question to a lane."""
        return ToLane(lane, NewWeights(self.asked.ticket, self.asked.weights[lane], self.asked.fail))


class Tickets:
    """The questions that lanes have not all answered.

    Args:
        lanes: how many lanes there are.
    """

    def __init__(self, lanes: int):
        self._lanes = lanes
        self._exchanges: dict[int, _Exchange] = {}  # of which the first is with the lanes, and the others wait for it
        self._saving: dict[int, dict[int, CacheSaving | CacheSaved]] = {}

    def ask(self, question: NewWeights | KeepWeights | SaveCache) -> Sequence[Message]:
        """Return a question to each lane."""
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
        return [ToLane(lane, question) for lane in range(self._lanes)]

    def _begin(self) -> list[Message]:
        """Return the first exchange to each lane, if there is one."""
        exchange = next(iter(self._exchanges.values()), None)
        return [] if exchange is None else [exchange.of(lane) for lane in range(self._lanes)]

    def answer(self, lane: int, said: WeightsUsed | WeightsKept | CacheSaving | CacheSaved) -> Iterator[Message]:
        """Take the answer of a lane, and yield what its caller is to be told, and what others are to be asked again."""
        match said:
            case WeightsUsed(ticket) | WeightsKept(ticket):
                yield from self._exchanged(lane, ticket, used=isinstance(said, WeightsUsed))
            case CacheSaving(ticket) | CacheSaved(ticket):
                self._saving[ticket][lane] = said
                yield from self._saved(ticket)

    def _exchanged(self, lane: int, ticket: int, *, used: bool) -> Iterator[Message]:
        """Take note of a lane that uses new weights or keeps the old ones.

        If the question was given up when some lanes had answered it, those that kept the old weights are asked again:
        all lanes serve the same model.
        """
        exchange = self._exchanges[ticket]
        exchange.used[lane] = used
        if len(exchange.used) < self._lanes:
            return
        keep = [lane for lane, used in exchange.used.items() if not used]
        if 0 < len(keep) < self._lanes:
            for each in keep:
                del exchange.used[each]
                yield exchange.of(each)
            return
        del self._exchanges[ticket]
        answer: Any = WeightsKept if keep else WeightsUsed
        yield answer(ticket)
        yield from self._begin()

    def _saved(self, ticket: int) -> Iterator[Message]:
        said = self._saving[ticket]
        pages = sum(each.pages for each in said.values())
        saving = [each for each in said.values() if isinstance(each, CacheSaving)]
        if len(said) < self._lanes:
            return
        if saving:
            yield CacheSaving(ticket, pages, pages + sum(each.total - each.pages for each in saving))
            return
        del self._saving[ticket]
        yield CacheSaved(ticket, pages, all(isinstance(each, CacheSaved) and each.complete for each in said.values()))
