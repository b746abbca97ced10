"""Measure the speed of several lanes as a ratio to one, on a fake device with a fixed time for each tick.

One thread plans, dispatches, reads back and answers for all lanes, so its work for a tick bounds the number of lanes:
about the time of a tick divided by the work. A third of the work is the fake model's.
"""

import argparse
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import anyio

from rekindle.assembly.loaded_engine import Lane
from rekindle.core.engine.actor import answers
from rekindle.core.messages import Dispatched, Message
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.scheduler import Scheduler
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from rekindle.testing.device import FakeStepper, settle_tick
from tests.bench.machine import describe


class Device:
    """A device that computes one tick after the other, each for so many seconds; stepper and settler at once."""

    def __init__(self, limits: EngineLimits, seconds: float):
        self._stepper, self._seconds = FakeStepper(limits), seconds
        self._ends: deque[float] = deque()
        self._free_at = 0.0

    async def dispatch(self, message: Message) -> Iterable[Message]:
        """Let a tick begin after the end of all earlier ones."""
        messages = tuple(await answers(self._stepper, message))
        for _ in filter(lambda each: isinstance(each, Dispatched), messages):
            self._free_at = max(self._free_at, perf_counter()) + self._seconds
            self._ends.append(self._free_at)
        return messages

    async def settle(self, message: Message) -> Iterable[Message]:
        """Wait until a tick has ended, and read its tokens back."""
        assert isinstance(message, Dispatched), f"the settler takes Dispatched, got {message!r}"
        await anyio.sleep(max(0.0, self._ends.popleft() - perf_counter()))
        return [settle_tick(message)]


@dataclass(frozen=True)
class Part:
    """One of the two actors of a device."""

    handle: Callable[[Message], Awaitable[Iterable[Message]]]


def open_session(lanes: int, running: int, seconds: float) -> Session:
    """Open a session of some lanes, with schedulers without checks of themselves."""
    limits = fake_limits(replicas=lanes, max_running=running, page_size=64)
    loaded_engine = fake_loaded_engine(limits)

    def timed(lane: Lane) -> Lane:
        scheduler, device = Scheduler(limits), Device(limits, seconds)
        parts = {"stepper": Part(device.dispatch), "settler": Part(device.settle)}
        return replace(lane, scheduler=scheduler, actors=replace(lane.actors, scheduler=scheduler, **parts))

    return fake_session(replace(loaded_engine, lanes=tuple(map(timed, loaded_engine.lanes))), max_waiting=4096)


def tokens_per_second(session: Session, requests: int, new_tokens: int) -> float:
    """Return the speed of one batch over all lanes."""
    prompts = [[number % 200, number // 200] * 8 for number in range(requests)]
    began = perf_counter()
    session.generate_sync(token_ids=prompts, max_tokens=new_tokens, ignore_eos=True)
    return requests * new_tokens / (perf_counter() - began)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured, in turns (default: 5)")
    parser.add_argument("--lanes", type=int, default=4, metavar="N", help="how many lanes (default: 4)")
    parser.add_argument("--running", type=int, default=32, metavar="N", help="requests of each lane (default: 32)")
    parser.add_argument("--tick", type=float, default=15.0, metavar="MS", help="what a tick takes (default: 15)")
    parser.add_argument("--new-tokens", type=int, default=256, metavar="N", help="of each request (default: 256)")
    args = parser.parse_args()
    print(describe())
    results: dict[int, list[float]] = {1: [], args.lanes: []}
    for _ in range(args.rounds):
        for lanes, speeds in results.items():
            with open_session(lanes, args.running, args.tick / 1000) as session:
                tokens_per_second(session, lanes * args.running, 8)
                speeds.append(tokens_per_second(session, lanes * args.running, args.new_tokens))
    ratios = sorted(many / one for one, many in zip(results[1], results[args.lanes], strict=True))
    for lanes, speeds in results.items():
        share = median(speeds) / lanes / args.running * args.tick / 1000
        print(f"{lanes} lanes of {args.running}: {median(speeds):,.0f} tokens/s, {share:.2f} of what the ticks allow")
    print(f"ratio: {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
