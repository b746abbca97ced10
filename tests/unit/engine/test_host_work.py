"""The work of the host for a decode row is a few calls: a tick does once what is the same for all rows."""

import sys
from collections import Counter
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from rekindle.core.messages.record import MessageRecord
from rekindle.core.scheduler.scheduler import Scheduler
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session

PROMPT, NEW_TOKENS, FIRST, TICKS = 16, 80, 30, 32
PAGE = 16
"""Tokens of a page. Each row needs two new pages in the counted ticks."""


class Calls:
    """Counts the calls of the package's functions on the engine's thread during some ticks, by function."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self._settled = 0

    def observe(self, record: MessageRecord) -> None:
        """Begin and end at the records of two ticks. Called on the engine's thread."""
        self._settled += record.actor == "settler"
        if record.actor == "settler" and self._settled in (FIRST, FIRST + TICKS):
            sys.setprofile(self._count if self._settled == FIRST else None)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and "/rekindle/" in code.co_filename and "/testing/" not in code.co_filename:
            self.counts[code.co_qualname] += 1


def calls_of(running: int) -> Counter[str]:
    """Return the calls of some ticks in which a number of requests decode, without the checks of the fake engine."""
    limits = fake_limits(
        max_running=running, num_pages=1 + 8 * running, page_size=PAGE, max_context=128, prefill_chunk=64
    )
    engine, scheduler, calls = fake_loaded_engine(limits), Scheduler(limits), Calls()
    (lane,) = engine.lanes
    lane = replace(lane, scheduler=scheduler, actors=replace(lane.actors, scheduler=scheduler))
    with fake_session(replace(engine, lanes=(lane,))) as session:
        session._engine.thread.watch(calls.observe)
        prompts = [[1 + i] * PROMPT for i in range(running)]
        session.generate_sync(token_ids=prompts, max_tokens=NEW_TOKENS, ignore_eos=True)
    return calls.counts


@pytest.mark.wide
def test_a_decode_row_costs_few_calls() -> None:
    few, many = calls_of(8), calls_of(72)
    per_row = Counter({name: (many[name] - few[name]) / (64 * TICKS) for name in many})
    # settled, planned, a text, its time, its output and its feed; a new page, once in 16 tokens, is twice as much
    assert 6 < sum(per_row.values()) < 12, per_row.most_common(30)
