"""Measure offloading a prefix to the host tier and onloading it, next to computing it.

Real actors of the bench's model get the messages of a scheduler. The numbers are medians in milliseconds.
"""

import argparse
from collections.abc import Awaitable
from dataclasses import dataclass
from itertools import count
from statistics import median
from time import perf_counter

import anyio

from rekindle.assembly.building import build
from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.core.engine.actor import Actor
from rekindle.core.messages import Chunk, Copy, Drop, Fetch, Fetched, Message, Offload, Offloaded, Onload, Plan
from rekindle.settings.engine import Settings
from tests.bench import limits
from tests.bench.workload import MODEL

TOKENS, REST, ROUNDS = 1024, 16, 9
SETTINGS = Settings(
    dtype="float32",
    precompile="lazy",
    restore="off",
    max_running=1,
    prefill_buckets=(64, 512),
    max_context=2 * TOKENS,
    num_pages=65,
)


@dataclass
class Costs:
    """The seconds of one round."""

    compute: float
    offload: float
    fetch: float
    onload: float


class Tiers:
    """A loaded engine with a prefix in its first pages."""

    def __init__(self, machine: LoadedEngine):
        self._actors = machine.lanes[0].actors
        self._ids = count()
        size = machine.limits.pool.page_size
        self._table = tuple(range(1, 1 + -(-(TOKENS + REST) // size)))
        self.pages = self._table[: TOKENS // size]

    async def round(self) -> Costs:
        """Compute the prefix, offload it, fetch it, and onload it below a chunk that goes on from it."""
        started = perf_counter()
        for first in range(0, TOKENS, SETTINGS.prefill_chunk):
            await self._compute(first, SETTINGS.prefill_chunk)
        computed = perf_counter()
        entries = tuple(next(self._ids) for _ in self.pages)
        saved = await _only(self._actors.host_tier, await _only(self._actors.stepper, Offload(0, self.pages, entries)))
        assert saved == Offloaded(0, is_stored=True)
        offloaded = perf_counter()
        await self._compute(TOKENS, REST)
        rest = perf_counter()
        fetched = await _only(self._actors.host_tier, Fetch(0, tuple(Copy(entry, None) for entry in entries)))
        assert isinstance(fetched, Fetched)
        assert fetched.staged is not None
        staged = perf_counter()
        await self._compute(TOKENS, REST, (Onload(fetched.staged, self.pages),))
        ended = perf_counter()
        await _answers(self._actors.host_tier, Drop(entries))
        return Costs(computed - started, offloaded - computed, staged - rest, (ended - staged) - (rest - offloaded))

    async def _compute(self, start: int, tokens: int, onloads: tuple[Onload, ...] = ()) -> None:
        size = SETTINGS.page_size
        pages = tuple(self._table[at // size] for at in range(start, start + tokens, 16))
        chunk = Chunk(0, 0, start, (7,) * tokens, pages, self._table, None)
        plan = Plan(next(self._ids), (chunk,), (), onloads)
        await _only(self._actors.settler, await _only(self._actors.stepper, plan))


async def measure() -> None:
    """Print the costs, their ratios to computing, and the bandwidth reached next to the machine's."""
    machine = build(MODEL, SETTINGS, lambda progress: None)
    tiers = Tiers(machine)
    rounds = [await tiers.round() for _ in range(2 + ROUNDS)][2:]
    costs = Costs(*(median(getattr(each, name) for each in rounds) for name in Costs.__annotations__))
    model = machine.model
    moved = model.numbers_per_token * 4 * TOKENS
    print(f"{TOKENS:,} tokens, {moved / 1e6:.0f} MB, {len(tiers.pages)} pages:")
    print(f"  compute  {1e3 * costs.compute:8.1f} ms")
    for name, seconds in (("offload", costs.offload), ("fetch", costs.fetch), ("onload", costs.onload)):
        rate = f"{moved / seconds / 1e9:6.1f} GB/s" if seconds > 0 else ""
        print(f"  {name:8} {1e3 * seconds:8.1f} ms, {seconds / costs.compute:6.3f} of computing  {rate}")
    machine.free()
    print(f"the machine reads {limits.measure()['bandwidth'] / 1e9:.1f} GB/s; a copy reads and writes")


async def _only(actor: Actor, message: Message) -> Message:
    (answer,) = await _answers(actor, message)
    return answer


async def _answers(actor: Actor, message: Message) -> list[Message]:
    answers = actor.handle(message)
    return list(await answers if isinstance(answers, Awaitable) else answers)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    anyio.run(measure)
