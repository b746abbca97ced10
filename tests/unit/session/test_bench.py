"""A session measures its machine: with prompts in no cache, and with its own programs and weights."""

import pytest

from rekindle import Bench, InvalidRequest
from rekindle.session import bench
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.cards import as_read, page_of
from tests.unit.sessions import ended_blocking

MEASURED = Bench("a-model", "cpu:0, float32", 128, 0.25, {1: 50.0, 8: 200.0}, 10**8, 10**10, 3, 2.0, 1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the memory bandwidth with a small array, once."""
    monkeypatch.setattr(bench, "COPIED", 1 << 10)
    monkeypatch.setattr(bench, "COPY_SECONDS", 0.0)


@pytest.mark.usefixtures("quick")
def test_it_is_measured_with_as_many_as_run_at_once_and_leaves_nothing_in_caches_and_statistics() -> None:
    limits = fake_limits(page_size=16, num_pages=64, max_context=512, max_running=3)
    with fake_session(fake_loaded_engine(limits)) as session:
        session.generate_sync(token_ids=[1, 2], max_tokens=2)
        before = session.stats.scheduler, session.metrics_text()
        results = [session.bench_sync() for _ in range(2)]
        ended_blocking(session)
        stats, metrics = session.stats.scheduler, session.metrics_text()
        (first_token,) = session._engine.client.first_tokens
    assert [list(each.speeds) for each in results] == [[1, 3]] * 2
    for each in results:
        assert each.first_token > 0
        assert min(each.speeds.values()) > 0
        assert each.prompt_tokens == bench.PROMPT
        assert each.bandwidth is not None
        assert each.others == 0
    assert (stats.prompt_tokens, stats.computed_tokens) == (before[0].prompt_tokens, before[0].computed_tokens)
    assert (stats.cached_pages, stats.free_pages, stats.host_pages) == (0, stats.pages, 0)
    assert first_token, "the dashboard has the time of the user's request alone"
    assert _latencies(metrics) == _latencies(before[1])
    assert (stats.running, stats.waiting) == (0, 0)


def _latencies(metrics: str) -> list[str]:
    """Return the lines of the histograms and of the ended requests."""
    lines = [line for line in metrics.splitlines() if "seconds" in line or "finish" in line]
    assert len(lines) > 20
    return lines


@pytest.mark.usefixtures("quick")
def test_what_runs_beside_it_is_said(session: Session) -> None:
    other = session.submit(token_ids=[1, 2], max_tokens=100_000, ignore_eos=True)
    measured = session.bench_sync()
    other.cancel()
    assert measured.others == 1
    assert "1 other request" in page_of(measured).text


def test_its_card_has_each_number_beside_its_limit() -> None:
    text = as_read(page_of(MEASURED))
    assert "Bench · a-model · cpu:0, float32" in text
    for words in ("250 ms", "50 tokens/s", "50% of the memory bandwidth", "25% of the memory bandwidth", "100 steps/s"):
        assert words in text, words
    assert "compiled for it 3 programs · waited for programs 2.00 s" in text
    assert "8 in flight  200 tokens/s, 25 each, 25% of" in MEASURED._repr_mimebundle_()["text/plain"]


def test_a_session_asleep_is_not_measured(monkeypatch: pytest.MonkeyPatch, session: Session) -> None:
    monkeypatch.setattr(Session, "asleep", property(lambda _: True))
    with pytest.raises(InvalidRequest, match=r"session\.wake"):
        session.bench_sync()
