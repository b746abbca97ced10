"""A long batch reports its progress, its speed and the time to its end."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio import to_thread

from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress, duration_text
from rekindle.core.errors import InvalidRequest
from rekindle.mapping.pending import MapPace
from rekindle.notebook.progress import batch_progress as paces
from rekindle.notebook.progress.batch_progress import BatchPace, BatchProgress
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, fake_limits, fake_loaded_engine, fake_session

pytestmark = pytest.mark.anyio

PROMPTS = [[3, 1, 4], [1], [5, 9]]


class Bars:
    """Stand-ins for progress bars, with a feed of their reports."""

    def __init__(self) -> None:
        self.reports: Feed[Progress] = Feed()

    def __call__(self, *, enabled: bool) -> "Bars":
        assert enabled
        return self

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, *raised: object) -> None:
        self.reports.close()

    def show(self, progress: Progress) -> None:
        self.reports.put(progress)


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Bars:
    """Draw on a stand-in, and look again and again without waiting."""
    bars = Bars()
    monkeypatch.setattr(paces, "ProgressBars", bars)
    return bars


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paces, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(paces, "POLL_SECONDS", 0.001)


@pytest.fixture
def one_by_one(settler: FakeSettler) -> Iterator[Session]:
    """Open a session with one slot; a tick settles when it is told to."""
    with fake_session(fake_loaded_engine(fake_limits(max_running=1), settler=settler)) as session:
        yield session


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("ask", [{"token_ids": PROMPTS}, {"token_ids": [1], "n": 3}])
async def test_a_bar_counts_what_has_ended(
    ask: dict[str, Any], one_by_one: Session, settler: FakeSettler, bars: Bars
) -> None:
    async with anyio.create_task_group() as tasks:

        @tasks.start_soon
        async def generate() -> None:
            assert len(await one_by_one.generate(**ask, max_tokens=1, progress=True)) == 3

        for ended in range(3):
            while not bars.reports.items or bars.reports.items[-1].done < ended:
                await bars.reports.wait(len(bars.reports.items))
            settler.step()
    reports = list(bars.reports.items)
    assert {(report.stage, report.total, report.unit.partition(",")[0]) for report in reports} == {
        ("generating", 3, "answers")
    }
    assert sorted({report.done for report in reports}) == [0, 1, 2, 3]
    assert reports[-1].done == 3
    assert bars.reports.closed


async def test_a_quick_batch_prints_nothing(
    session: Session, capsys: pytest.CaptureFixture[str], bars: Bars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paces, "DELAY_SECONDS", 3600.0)  # a second may pass on a busy machine
    await session.generate(token_ids=PROMPTS, max_tokens=2, progress=True)
    await to_thread.run_sync(lambda: session.generate_sync(token_ids=PROMPTS, max_tokens=2, progress=True))
    assert not bars.reports.items
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("default", [False, True])
async def test_the_default_is_what_open_was_told(default: bool, settler: FakeSettler, bars: Bars) -> None:
    loaded_engine = fake_loaded_engine(fake_limits(), settler=settler)
    with fake_session(loaded_engine) as quiet:
        session = Session(quiet._engine, progress=default)
        prefix = await to_thread.run_sync(lambda: _prefix_of(session, settler))
        for holder in (session, prefix):
            for progress in (None, not default):
                bars.reports = Feed()
                generate = partial(holder.generate, token_ids=PROMPTS, max_tokens=5, progress=progress)
                async with anyio.create_task_group() as tasks:  # it does not end, since no tick settles
                    tasks.start_soon(generate)
                    expected = default if progress is None else progress
                    await (bars.reports.wait(0) if expected else anyio.wait_all_tasks_blocked())
                    assert bool(bars.reports.items) == expected
                    tasks.cancel_scope.cancel()
        settler.release()


def _prefix_of(session: Session, settler: FakeSettler) -> Any:
    pending = session.prefix(token_ids=[1, 2])
    settler.step()
    return pending.wait()


async def test_progress_is_of_lists(session: Session) -> None:
    generate: Any = session.generate
    with pytest.raises(InvalidRequest, match="progress=True draws the number of finished answers of a list"):
        await generate(token_ids=[1], progress=True)
    with pytest.raises(InvalidRequest, match="progress must be True or False, got 1"):
        await generate(token_ids=PROMPTS, progress=1)
    assert (await generate(token_ids=[1], max_tokens=2, progress=False)).token_ids


class Batch:
    """A batch with the numbers of tokens of its requests, some of which have ended."""

    def __init__(self) -> None:
        self.ends: Feed[int] = Feed()
        self.handles = [Request() for _ in range(4)]

    def __len__(self) -> int:
        return len(self.handles)


class Request:
    done = False
    generated = 0

    @property
    def record(self) -> "Request":
        return self


def test_time_left_and_speed_come_from_how_it_went(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(paces, "perf_counter", lambda: now)
    batch: Any = Batch()
    pace = BatchPace(batch, 40, lambda: None)
    assert pace.report() == Progress("generating", 0, 4, "answers")
    now, counts = 102.0, (10, 10, 0, 0)
    for request, count in zip(batch.handles, counts, strict=True):
        request.generated = count
    assert pace.report().unit == "answers, 10 tokens/s, at most 14 s left", "4 x 40 - 20 tokens at 10 a second"
    now = 104.0
    for request, count in zip(batch.handles, (20, 15, 5, 0), strict=True):
        request.generated = count
    batch.handles[0].done = True
    batch.ends.put(0)
    assert pace.report() == Progress("generating", 1, 4, "answers, 10 tokens/s, 10 s left"), "25 + 35 + 40 tokens"
    for place in (1, 2, 3):
        batch.handles[place].done = True
        batch.ends.put(place)
    assert pace.report().unit == "answers, 10 tokens/s"


def test_nothing_is_said_of_the_time_left_while_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(paces, "perf_counter", lambda: now)
    batch: Any = Batch()
    pace = BatchPace(batch, None, lambda: None)
    pace.report()
    now, batch.handles[0].generated = 102.0, 20
    assert pace.report().unit == "answers, 10 tokens/s"
    batch.handles[1].done = True
    batch.ends.put(1)
    assert pace.report().unit == "answers, 10 tokens/s, 6 s left"


def test_a_wait_for_a_program_is_named_instead_of_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(paces, "perf_counter", lambda: now)
    batch: Any = Batch()
    compiling = [Progress("waiting for a program (a step of up to 4 requests)", 3, 14, "programs ready")]
    pace = BatchPace(batch, 40, lambda: compiling[0] if compiling else None)
    pace.report()
    now, batch.handles[0].generated = 102.0, 20
    assert pace.report().unit == "answers, 10 tokens/s, waiting for a program (a step of up to 4 requests)"
    compiling.clear()
    assert pace.report().unit.endswith(" left")


def test_estimates_have_no_digits_that_flicker() -> None:
    assert [duration_text(seconds) for seconds in (0.3, 9.6, 119, 120, 3600, 7200)] == [
        "0 s",
        "10 s",
        "119 s",
        "2 min",
        "60 min",
        "2 h",
    ]


def test_a_few_answers_are_no_basis_for_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(paces, "perf_counter", lambda: now)
    in_flight: Any = SimpleNamespace(tokens=0)
    fresh, resumed = MapPace(in_flight, 60), MapPace(in_flight, 100)
    for _ in range(40):
        resumed.count(stored=True)
    for each in (fresh, resumed):
        now = 100.0
        assert each.report().unit == "answers", "answers of an earlier call are no basis"
        for seconds, remaining in ((110.0, ""), (120.0, ""), (130.0, "10 min left")):
            now = seconds
            each.count(stored=False)
            assert (
                each.report().unit.removeprefix("answers").removeprefix(", 0 tokens/s").removeprefix(", ") == remaining
            )


def test_a_hundred_answers_and_half_a_minute_are_a_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(paces, "perf_counter", lambda: now)
    pace = BatchProgress("mapping")
    now = 110.0
    assert pace.remaining(10_000, 100) == ""
    now = 130.0
    assert pace.remaining(10_000, 99) == ""
    assert pace.remaining(10_000, 100) == "50 min left"
    assert pace.remaining(0, 100) == ""
