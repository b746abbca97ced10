"""The real stepper and the real host tier keep pages right; a test sends them a scheduler's messages by hand."""

from collections.abc import Awaitable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from rekindle.assembly.building import build
from rekindle.core.engine.actor import Actor
from rekindle.core.messages import (
    Chunk,
    Copy,
    Dispatched,
    Fetch,
    Fetched,
    Gathered,
    Message,
    Offload,
    Offloaded,
    Onload,
    Plan,
    Row,
    Settled,
)
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import TokenLogprob
from rekindle.settings.engine import Settings
from tests.engine.small import SMALL

pytestmark = pytest.mark.anyio

PAGE = 16
PROMPT = tuple(int(token) for token in np.random.default_rng(0).integers(0, 512, 40))
OTHER = tuple(int(token) for token in np.random.default_rng(1).integers(0, 512, 40))
MORE = 12
PARAMS = SamplingParams(max_tokens=1 + MORE, temperature=0.7, seed=3, logprobs=0)


@dataclass
class Device:
    """The stepper, the settler and the host tier of a loaded engine."""

    stepper: Actor
    settler: Actor
    host_tier: Actor

    def __post_init__(self) -> None:
        self._ticks = count()

    async def plan(self, chunk: Chunk, onloads: tuple[Onload, ...] = ()) -> Dispatched:
        """Dispatch one chunk."""
        dispatched = await only(self.stepper, Plan(next(self._ticks), (chunk,), (), onloads))
        assert isinstance(dispatched, Dispatched)
        return dispatched

    async def decode(self, dispatched: Dispatched, table: tuple[int, ...]) -> list[TokenLogprob]:
        """Return the new tokens of a request after the dispatched tick completed its prompt."""
        logprobs = [await self._settle(dispatched)]
        for position in range(len(PROMPT), len(PROMPT) + MORE):
            row = Row(1, 0, table[position // PAGE], PARAMS.logprobs)
            logprobs.append(await self._settle(await only(self.stepper, Plan(next(self._ticks), (), (row,)))))
        return logprobs

    async def _settle(self, dispatched: Message) -> TokenLogprob:
        reply = await only(self.settler, dispatched)
        assert isinstance(reply, Settled)
        return reply.logprobs[1][0]


async def only(actor: Actor, message: Message) -> Message:
    """Return an actor's only reply to a message."""
    reply = actor.handle(message)
    (answer,) = await reply if isinstance(reply, Awaitable) else reply
    return answer


def chunk(start: int, table: tuple[int, ...], prompt: tuple[int, ...] = PROMPT) -> Chunk:
    """Make the chunk of a prompt from `start` to its end."""
    request = Request(1, prompt, PARAMS, frozenset(), 256)
    pages = tuple(table[position // PAGE] for position in range(start, len(prompt), PAGE))
    return Chunk(1, 0, start, prompt[start:], pages, table, request)


@pytest.fixture(scope="module", params=[("float32", None), ("bfloat16", None), ("float32", "int8")])
def device(request: pytest.FixtureRequest, families: Path) -> Device:
    dtype, kv_dtype = request.param
    settings = Settings(dtype=dtype, kv_dtype=kv_dtype, precompile="lazy", **SMALL)
    actors = build(families / "llama-tied", settings, lambda progress: None).lanes[0].actors
    return Device(actors.stepper, actors.settler, actors.host_tier)


@pytest.mark.wide
async def test_a_prefix_that_was_saved_and_onloaded_elsewhere_decodes_as_if_it_had_stayed(device: Device) -> None:
    here, there = (1, 2, 3, 4), (9, 7, 8, 5)
    await device.plan(chunk(0, here))
    stayed = await device.decode(await device.plan(chunk(2 * PAGE, here)), here)

    gathered = await only(device.stepper, Offload(0, here[:2], (0, 1)))
    overwritten = await device.plan(chunk(0, here, OTHER))  # nobody has waited for the gathered pages yet
    assert await device.decode(overwritten, here) != stayed
    assert isinstance(gathered, Gathered)
    assert await only(device.host_tier, gathered) == Offloaded(0, is_stored=True)
    for _ in range(2):
        fetched = await only(device.host_tier, Fetch(1, (Copy(0, None), Copy(1, None))))
        assert isinstance(fetched, Fetched)
        assert fetched.staged is not None
        onload = Onload(fetched.staged, there[:2])
        assert await device.decode(await device.plan(chunk(2 * PAGE, there), (onload,)), there) == stayed
        await device.plan(chunk(0, there, OTHER))  # the host entries do not depend on the pages
