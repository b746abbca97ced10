"""Random interleavings of submit, cancel, interrupt and close leave the real stepper right and empty.

Many more of them run on the fake stepper.
"""

from contextlib import suppress
from pathlib import Path

import anyio
import numpy as np
import pytest

import rekindle
from tests.engine.small import SMALL

pytestmark = pytest.mark.wide

TOKENS = 30


@pytest.mark.anyio
async def test_every_caller_is_answered_and_nothing_is_left_held(families: Path) -> None:
    rng = np.random.default_rng(5)
    session = await rekindle.open(
        families / "llama-tied",
        progress=False,
        precompile="lazy",
        max_waiting=64,
        **SMALL,
    )
    prompts: list[list[int]] = [rng.integers(0, 512, length).tolist() for length in (1, 20, 40, 90)]
    expected = [await session.generate(token_ids=p, max_tokens=TOKENS, ignore_eos=True) for p in prompts]

    async def ask(place: int, interrupted_after: float) -> None:
        with anyio.move_on_after(interrupted_after):
            answer = await session.generate(token_ids=prompts[place], max_tokens=TOKENS, ignore_eos=True)
            assert answer == expected[place]

    for _ in range(10):
        handles = []
        async with anyio.create_task_group() as tasks:
            for place in rng.integers(0, 4, 8):
                tasks.start_soon(ask, place, float(rng.choice([0.005, 0.02, 60.0])))
                handle = session.submit(token_ids=prompts[place], max_tokens=TOKENS, ignore_eos=True)
                handles.append((place, handle, bool(rng.integers(2))))
                if handles[-1][2]:
                    handle.cancel()
        for place, handle, cancelled in handles:
            with suppress(rekindle.RequestCancelled):
                assert await handle == expected[place]
                continue
            assert cancelled, "only who asked for it is cancelled"
        await session.generate(token_ids=[1], max_tokens=1)  # this is handled after every cancel that is on its way
        stats = session.stats.scheduler
        assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)

    await session.pause()  # or some might end before the session does
    under_way = [session.submit(token_ids=prompts[3], max_tokens=100, ignore_eos=True) for _ in range(6)]
    while session.stats.scheduler.running < 4:
        await session.step()
    await session.close()
    for handle in under_way:
        with pytest.raises(rekindle.SessionClosed):
            await handle
