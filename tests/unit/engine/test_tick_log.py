"""The work of prefills and the rate of tokens are logged on demand alone."""

import logging
import re
from collections.abc import Iterator

import pytest
from _pytest.logging import LogCaptureFixture

from rekindle.core.messages import Message, Started
from rekindle.core.messages.record import MessageRecord
from rekindle.core.request.figures import CachedTokens
from rekindle.core.scheduler.stats import SchedulerStats
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from rekindle.views import tick_log

pytestmark = pytest.mark.anyio

HELD = r"(\d+) running, (\d+) waiting, [\d,]+ of [\d,]+ pages? in use"
PREFILL = re.compile(rf"prefill: (\d+) new requests?, ([\d,]+) tokens? computed, ([\d,]+) cached; {HELD}")
DECODE = re.compile(rf"decode: ([\d,]+) tokens? generated, [\d,]+\.\d tokens/s; {HELD}")


@pytest.fixture
def logged(caplog: LogCaptureFixture) -> Iterator[LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "rekindle"):
        yield caplog


def numbers(log: LogCaptureFixture, kind: re.Pattern[str]) -> list[tuple[int, ...]]:
    """Return the numbers in the lines of one kind, after a check of all lines against the known kinds."""
    lines = [record.getMessage() for record in log.records if record.name == tick_log.LOG.name]
    assert all(PREFILL.fullmatch(line) or DECODE.fullmatch(line) for line in lines), lines
    matches = (kind.fullmatch(line) for line in lines)
    return [tuple(int(number.replace(",", "")) for number in each.groups()) for each in matches if each]


async def test_prefills_tell_what_is_new_computed_and_cached(logged: LogCaptureFixture) -> None:
    prompt = list(range(1, 44))  # its two whole pages are found again
    with fake_session(fake_loaded_engine(fake_limits(page_size=16))) as session:
        for _ in range(2):
            await session.generate(token_ids=prompt, max_tokens=1)
    counts = [(new, computed, cached) for new, computed, cached, *_ in numbers(logged, PREFILL)]
    assert counts == [(1, 43, 0), (1, 11, 32)]


async def test_all_lines_together_account_for_every_token(logged: LogCaptureFixture) -> None:
    with fake_session(
        fake_loaded_engine(fake_limits(max_running=3, num_pages=14, page_size=16, prefill_chunk=32))
    ) as session:
        await session.generate(token_ids=[[n] * 40 for n in range(1, 9)], max_tokens=80)
        await session.generate(token_ids=[[n] * 40 for n in range(7, 9)], max_tokens=7)
        stats = session.stats.scheduler
    prefills = numbers(logged, PREFILL)
    assert sum(new for new, *_ in prefills) == stats.ended == 10
    assert stats.preemptions
    assert sum(computed for _, computed, *_ in prefills) == stats.computed_tokens + stats.recomputed_tokens
    assert sum(cached for _, _, cached, *_ in prefills) == stats.prompt_tokens - stats.computed_tokens > 0
    assert sum(tokens for tokens, *_ in numbers(logged, DECODE)) == stats.generated_tokens


async def test_a_long_answer_is_told_of_now_and_then_and_at_its_end(
    session: Session, logged: LogCaptureFixture
) -> None:
    await session.generate(token_ids=[1], max_tokens=2 * tick_log.EVERY + 5)
    *meanwhile, last = numbers(logged, DECODE)
    assert len(meanwhile) == 2
    assert all(running == 1 for _, running, _ in meanwhile)
    assert last[1:] == (0, 0)


async def test_who_does_not_ask_is_told_nothing(session: Session, caplog: LogCaptureFixture) -> None:
    await session.generate(token_ids=[1], max_tokens=3 * tick_log.EVERY)
    assert numbers(caplog, DECODE) == numbers(caplog, PREFILL) == []


def test_one_that_is_asked_for_in_the_middle_counts_from_there(logged: LogCaptureFixture) -> None:
    """Check the first rate, before any tick, for a division by zero."""
    log = tick_log.TickLog(lambda: SchedulerStats(pages=4, free_pages=4, generated_tokens=9))
    messages: tuple[Message, ...] = (Started(1, (1, 2, 3), None, CachedTokens()),)
    log(MessageRecord("scheduler", messages[0], messages, 0.0, 0.0))
    assert logged.records == []
