"""The metrics report the session's counters, in the text format of Prometheus."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rekindle.assembly.stats import Stats
from rekindle.client.latencies import Histogram
from rekindle.core.errors import InvalidRequest
from rekindle.core.scheduler.stats import Counts, SchedulerStats
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, fake_session
from tests.waiting import until

pytestmark = pytest.mark.anyio
LABELS = {"accepted_at": "place", "undrafted": "reason"}


def samples(session: Session) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the value of each sample by the library's own parser, by name and labels."""
    families = list(text_string_to_metric_families(session.metrics_text()))
    assert all(family.documentation and family.type in ("counter", "gauge", "histogram") for family in families)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def value(readings: dict[Any, float], name: str, **labels: str) -> float:
    return readings[f"rekindle_{name}", tuple(sorted(labels.items()))]


@pytest.fixture
def drafting() -> Iterator[Session]:
    with fake_session(draft="lookup") as session:
        yield session


async def test_each_counter_of_the_session_is_there_with_its_value(drafting: Session) -> None:
    session = drafting
    for penalty in (0, 0, 1):
        await session.generate(token_ids=[[3, 1, 4], [1, 5, 9]], max_tokens=40, frequency_penalty=penalty)
    looks: list[tuple[Stats, dict[Any, float]]] = []

    def unchanged() -> bool:
        looks.append((session.stats, samples(session)))
        return looks[-1][0] == session.stats

    await until(unchanged, "no tick that was planned before the end was on its way")
    stats, readings = looks[-1]
    counters = {each.name for each in fields(Counts)} | {"device_losses"}
    for each in fields(SchedulerStats):
        name = f"{each.name}_total" if each.name in counters else each.name
        count = getattr(stats.scheduler, each.name)
        if each.name in LABELS:
            of_labels = {key: value(readings, name, **{LABELS[each.name]: str(key)}) for key in count}
            assert count == of_labels != {}, name
        else:
            assert value(readings, name) == count, name
    assert value(readings, "programs") == stats.programs
    assert value(readings, "program_loads_total") == stats.loads
    assert value(readings, "compilations_total") == stats.compilations


async def test_times_are_counted_once_for_each_request_and_each_token(
    held_session: Session, settler: FakeSettler
) -> None:
    for _ in range(100):  # and no more, or what is cancelled might end
        settler.step()
    answers = await held_session.generate(token_ids=[[3, 1, 4], [1, 5, 9]], max_tokens=7)
    handle = held_session.submit(token_ids=[3], max_tokens=4000)
    async for _ in handle:
        break
    settler.release()
    await until(lambda: handle.done, "the request that was left had ended")
    readings = samples(held_session)
    assert value(readings, "requests_total", finish_reason="cancelled") == 1
    assert value(readings, "requests_total", finish_reason="length") >= 2
    for name in ("queue_seconds", "time_to_first_token_seconds", "request_seconds"):
        assert value(readings, f"{name}_count") == value(readings, f"{name}_bucket", le="+Inf") >= 3
    generated = value(readings, "generated_tokens_total")
    assert value(readings, "inter_token_seconds_count") <= generated - value(
        readings, "time_to_first_token_seconds_count"
    )
    assert value(readings, "inter_token_seconds_count") >= 12
    assert value(readings, "request_seconds_sum") >= sum(answer.timings.first_token for answer in answers)


async def test_a_request_that_was_refused_by_the_engine_has_failed(session: Session) -> None:
    with pytest.raises(InvalidRequest):
        await session.submit("no tokenizer")
    assert value(samples(session), "requests_total", finish_reason="failed") == 1


def test_a_histogram_counts_what_is_at_most_a_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for seconds, times in ((0.5, 1), (1.0, 2), (1.5, 1), (3.0, 1)):
        histogram.add(seconds, times)
    assert list(histogram.up_to) == [(1.0, 3), (2.0, 4), (float("inf"), 5)]
    assert histogram.sum == 7.0
