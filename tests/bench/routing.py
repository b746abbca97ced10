"""Simulate routes: four lanes with caches of a fixed size, and four kinds of load. The machine does not matter.

A lane computes prompts one after the other, at a fixed speed, and keeps the most recently used pages. A chat's next
prompt comes a while after its answer. The figures of a route are the seconds until the first token, mean and 95th
percentile, and the cached part of the tokens of prompts, without the first third of the requests.
"""

import argparse
import heapq
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import mean, quantiles

from rekindle.assembly.routing.pages import pages_of
from rekindle.assembly.routing.router import Router
from rekindle.core.messages import Admit, FromLane, Message, Output, Outputs, ToLane
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.settings.route import ROUTES, Choose, LaneLoad
from rekindle.testing import fake_limits

LANES, PAGE, SPEED = 4, 64, 10_000
"""Lanes, tokens of a page, and tokens of prompts computed by a lane in a second."""
LIMITS = fake_limits(page_size=PAGE, max_running=256)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A prompt and its time; `then` makes the next prompt after its answer."""

    at: float
    prompt: tuple[int, ...]
    then: "Callable[[float], Arrival | None]" = lambda at: None


def tokens(key: object, size: int) -> tuple[int, ...]:
    """Return tokens that are the same for the same key."""
    chance = random.Random(repr(key))
    return tuple(chance.choices(range(1 << 16), k=size))


def system_prompts(requests: int) -> Iterator[Arrival]:
    """Yield prompts that begin with one of 120 system prompts, a few far more often than others."""
    chance, at = random.Random(1), 0.0
    weights = [1 / rank for rank in range(1, 121)]
    for number in range(requests):
        at += chance.expovariate(40)
        (which,) = chance.choices(range(120), weights)
        yield Arrival(at, tokens(("system", which), 1536) + tokens(("question", number), chance.randrange(64, 320)))


def chats(requests: int) -> Iterator[Arrival]:
    """Yield the first prompts of chats of 8 turns; each next prompt has all before it, and comes after some seconds."""
    chance, at = random.Random(2), 0.0

    def turn(chat: int, number: int, before: tuple[int, ...], at: float) -> Arrival | None:
        if number == 8:
            return None
        prompt = before + tokens((chat, number), 320)
        return Arrival(at + chance.expovariate(1 / 6) * (number > 0), prompt, partial(turn, chat, number + 1, prompt))

    for chat in range(requests // 8):
        at += chance.expovariate(2.0)
        first = turn(chat, 0, (), at)
        assert first is not None, "a chat has a first turn"
        yield first


def one_prefix(requests: int) -> Iterator[Arrival]:
    """Yield prompts with one common prefix."""
    chance, at = random.Random(3), 0.0
    for number in range(requests):
        at += chance.expovariate(150)
        yield Arrival(at, tokens("prefix", 2048) + tokens(("more", number), chance.randrange(32, 256)))


def no_sharing(requests: int) -> Iterator[Arrival]:
    """Yield prompts without a common prefix."""
    chance, at = random.Random(4), 0.0
    for number in range(requests):
        at += chance.expovariate(27)
        yield Arrival(at, tokens(("alone", number), chance.randrange(64, 1800)))


@dataclass(frozen=True, slots=True)
class Load:
    """A kind of load, and the number of pages of each lane."""

    arrivals: Callable[[int], Iterator[Arrival]]
    pages: int


LOADS = {
    "system prompts": Load(system_prompts, 3200),
    "growing chats": Load(chats, 1050),
    "one prefix": Load(one_prefix, 1000),
    "no sharing": Load(no_sharing, 1000),
}
"""Kinds of load."""


def affine(request: Request, lanes: Sequence[LaneLoad]) -> int:
    """Return a lane as SGLang's router does: by the best match, unless queues are far apart."""
    queues = [load.in_flight for load in lanes]
    if max(queues) - min(queues) > 64 and max(queues) > 1.5 * min(queues):
        return min(lanes, key=lambda load: load.in_flight).lane
    best = min(lanes, key=lambda load: load.uncached)
    share = 1 - best.uncached / len(request.initial_tokens)
    return best.lane if share > 0.3 else min(lanes, key=lambda load: load.given).lane


@dataclass
class Lane:
    """A simulated lane: a queue of prompts, and a cache that evicts the least recently used page."""

    pages: int
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    free_at: float = 0.0
    overdue: bool = False
    cached: int = 0
    computed: int = 0

    def uncached(self, request: Request) -> int:
        """See `LaneView`."""
        return len(request.prompt) - self._cached(request)

    def remaining(self, request_id: int) -> int | None:
        """See `LaneView`."""
        return None

    def compute(self, request: Request, at: float, *, counts: bool) -> float:
        """Compute a prompt after all earlier ones, and return the time of its first token."""
        cached = self._cached(request)
        rest = len(request.prompt) - cached
        if counts:
            self.cached, self.computed = self.cached + cached, self.computed + rest
        for page in pages_of(request, PAGE):
            self.cache[page] = None
            self.cache.move_to_end(page)
        while len(self.cache) > self.pages:
            self.cache.popitem(last=False)
        self.free_at = max(at, self.free_at) + rest / SPEED
        return self.free_at

    def _cached(self, request: Request) -> int:
        cached = 0
        for page in pages_of(request, PAGE)[: (len(request.prompt) - 1) // PAGE]:
            if page not in self.cache:
                break
            cached += PAGE
        return cached


@dataclass(frozen=True, slots=True)
class Figures:
    """The outcome of a simulation: seconds to first tokens, and the cached part of the tokens."""

    first_tokens: Sequence[float]
    hit_rate: float

    def __str__(self) -> str:
        late = quantiles(self.first_tokens, n=20)[-1]
        return f"{mean(self.first_tokens):5.2f} {late:6.2f} {self.hit_rate:5.2f}"


def simulated(route: str | Choose, load: Load, requests: int) -> Figures:
    """Return the figures of a number of requests of a load with a route."""
    lanes = [Lane(load.pages) for _ in range(LANES)]
    router = Router(lanes, route, LIMITS)
    order, numbers, waits = count(), count(), list[float]()
    events: list[tuple[float, int, Arrival | tuple[int, Request, Arrival]]] = []
    for arrival in load.arrivals(requests):
        heapq.heappush(events, (arrival.at, next(order), arrival))
    queues: list[list[tuple[float, Request, Arrival]]] = [[] for _ in lanes]

    def begin(number: int, at: float) -> None:
        """Have a lane compute the first waiting prompt."""
        came, request, arrival = queues[number][0]
        counts = request.id >= requests // 3
        done = lanes[number].compute(request, at, counts=counts)
        if counts:
            waits.append(done - came)
        heapq.heappush(events, (done, next(order), (number, request, arrival)))

    while events:
        at, _, event = heapq.heappop(events)
        if isinstance(event, Arrival):
            request = Request(next(numbers), event.prompt, SamplingParams(), frozenset(), 1 << 20)
            (reply,) = router.handle(Admit(request))
            assert isinstance(reply, ToLane), "a request goes to a lane"
            queues[reply.lane].append((at, request, event))
            if len(queues[reply.lane]) == 1:
                begin(reply.lane, at)
            continue
        number, request, arrival = event
        end: Message = Outputs((Output(request, (1,), "length"),))
        list(router.handle(FromLane(number, end)))
        queues[number].pop(0)
        if queues[number]:
            begin(number, at)
        if (following := arrival.then(at)) is not None:
            heapq.heappush(events, (following.at, next(order), following))
    cached, computed = sum(lane.cached for lane in lanes), sum(lane.computed for lane in lanes)
    return Figures(waits, cached / (cached + computed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=6000, help="of each load (default: 6000)")
    args = parser.parse_args()
    routes: dict[str, str | Choose] = {**{name: name for name in ROUTES}, "as in SGLang": affine}
    print(f"{'':16}" + "".join(f"{name:>24}" for name in LOADS))
    print(f"{'':16}" + f"{'mean   p95  hits':>24}" * len(LOADS))
    for name, route in routes.items():
        results = [simulated(route, load, args.requests) for load in LOADS.values()]
        print(f"{name:16}" + "".join(f"{figures!s:>24}" for figures in results))
