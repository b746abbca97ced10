"""Saving reports its progress: never backwards, never more than there is, and all of it at the end."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest
from anyio import to_thread

from rekindle.client.engine_client import EngineClient
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress
from rekindle.core.errors import EngineFailed, SessionClosed, StorageError
from rekindle.core.messages import CacheSaved, CacheSaving, Message, SaveCache, Write, Written
from rekindle.core.messages.record import MessageRecord
from rekindle.notebook.progress.bars import ProgressBars
from rekindle.session.operations import engine as operations
from rekindle.session.session import Session
from rekindle.testing import FakeDiskTier, fake_limits, fake_loaded_engine, fake_session
from tests.waiting import until

pytestmark = pytest.mark.anyio

PAGE = 16
PAGES = 40
PROMPT = [place % 7 for place in range(PAGES * PAGE)]
SAVES: list[Callable[..., Any]] = [
    Session.save,
    lambda session, **options: to_thread.run_sync(partial(session.save_sync, **options)),
]


class Recorder(ProgressBars):
    """Progress bars with a record of all reports."""

    reports: list[Progress]

    def __init__(self, enabled: bool):
        super().__init__(False)
        self.enabled = enabled

    def show(self, progress: Progress) -> None:
        if self.enabled:
            self.reports.append(progress)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Progress]:
    """Return the list of all drawn progress."""
    reports: list[Progress] = []
    monkeypatch.setattr(Recorder, "reports", reports, raising=False)
    monkeypatch.setattr(operations, "ProgressBars", Recorder)
    return reports


@pytest.fixture
def paged() -> Iterator[Session]:
    """Open a session with small pages, none of them on disk yet."""
    with fake_session(page_size=PAGE, max_context=100 * PAGE) as session:
        yield session


async def paused_with_pages(session: Session) -> None:
    """Let pages be cached, but none written to disk."""
    await session.pause()
    handle = session.submit(token_ids=PROMPT, max_tokens=1)
    while not handle.done:
        await session.step()


def answers_of(records: list[MessageRecord]) -> dict[int, list[CacheSaving | CacheSaved]]:
    """Return the answers to each ticket, in order."""
    answers: dict[int, list[CacheSaving | CacheSaved]] = {}
    for record in records:
        for answer in record.answers:
            if isinstance(answer, CacheSaving | CacheSaved):
                answers.setdefault(answer.ticket, []).append(answer)
    return answers


@pytest.mark.parametrize("save", SAVES, ids=["awaited", "blocking"])
async def test_a_bar_goes_from_nothing_to_all_that_is_written(
    paged: Session, reports: list[Progress], save: Callable[..., Any]
) -> None:
    await paused_with_pages(paged)
    saved: list[int] = []

    async def run() -> None:
        saved.append(await save(paged))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until(
            lambda: any(isinstance(each, SaveCache) for each in paged.pending["scheduler"]),
            "the scheduler was to hear that it saves",
        )
        await anyio.wait_all_tasks_blocked()
        paged.resume()
    done = [progress.done for progress in reports]
    assert len({*done}) > 2, "it is told of batches on the way"
    assert done == sorted(done)
    assert all(progress.total is not None and progress.done <= progress.total for progress in reports)
    assert reports[0].done < saved[0] <= PAGES
    assert (reports[-1].done, reports[-1].total) == (saved[0], saved[0]), "the bar comes to its end"
    assert {(progress.stage, progress.unit) for progress in reports} == {("saving cached pages", "pages")}


async def test_nothing_is_drawn_that_nobody_wants_to_see(paged: Session, reports: list[Progress]) -> None:
    await paused_with_pages(paged)
    paged.resume()
    await paged.save(progress=False)
    assert reports == []


async def test_each_who_asks_is_told_of_what_was_written_since(paged: Session) -> None:
    records: list[MessageRecord] = []
    with paged.watch(records.append):
        await paused_with_pages(paged)
        feeds = []
        for _ in range(3):
            feeds.append(paged._engine.ask(SaveCache)[1])
            for _ in range(12):
                await paged.step()
        while await paged.step() is not None:
            pass
    groups = [*answers_of(records).values()]
    assert [list(feed.items) for feed in feeds] == groups, "each is told what is for it, and nothing else"
    for answers in groups:
        assert [type(answer) for answer in answers] == [CacheSaving] * (len(answers) - 1) + [CacheSaved]
        assert all(earlier.pages <= later.pages for earlier, later in pairwise(answers))
        assert all(answer.pages <= answer.total for answer in answers if isinstance(answer, CacheSaving))
    assert groups[0][-1].pages >= groups[1][-1].pages >= groups[2][-1].pages
    assert paged.stats.scheduler.disk_pages == groups[0][-1].pages == PAGES


class NoRoom(FakeDiskTier):
    """A disk tier with room for the first batch alone."""

    def handle(self, message: Message) -> list[Written]:
        if self.contents and isinstance(message, Write):
            return [Written((None,) * len(message.pages), ())]
        return super().handle(message)


async def test_what_could_not_be_written_is_an_error_and_the_bar_does_not_come_to_its_end(
    reports: list[Progress],
) -> None:
    loaded_engine = fake_loaded_engine(fake_limits(page_size=PAGE, max_context=100 * PAGE))
    with fake_session(loaded_engine.composed(lambda actors: replace(actors, disk_tier=NoRoom()))) as session:
        await paused_with_pages(session)
        session.resume()
        with pytest.raises(StorageError, match="others could not be"):
            await session.save()
    assert all(progress.total is None or progress.done < progress.total for progress in reports)


class Full(FakeDiskTier):
    """A disk tier without room for a page."""

    def handle(self, message: Message) -> list[Written]:
        assert isinstance(message, Write)
        return [Written((None,) * len(message.pages), (), full=True)]


async def test_what_the_limit_has_no_room_for_is_no_error_and_the_setting_is_named() -> None:
    loaded_engine = fake_loaded_engine(fake_limits(page_size=PAGE, max_context=100 * PAGE))
    with fake_session(loaded_engine.composed(lambda actors: replace(actors, disk_tier=Full()))) as session:
        await paused_with_pages(session)
        pages: list[int] = []

        async def save() -> None:
            pages.append(await session.save())

        async def resume_once_it_is_awaited() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(save)
                await anyio.wait_all_tasks_blocked()
                session.resume()  # earlier, the engine would perhaps write the pages of itself

        with pytest.warns(
            RuntimeWarning, match="0 pages were written, and not all of .* stay on disk: disk_cache_bytes"
        ):
            await resume_once_it_is_awaited()
    assert pages == [0]


@pytest.mark.parametrize("save", SAVES, ids=["awaited", "blocking"])
@pytest.mark.parametrize("fails", [True, False])
async def test_a_session_that_closes_or_fails_meanwhile_ends_a_save_with_its_error(
    save: Callable[..., Any], fails: bool
) -> None:
    class Failing(FakeDiskTier):
        def handle(self, message: Message) -> list[Written]:
            raise OSError("no disk")

    loaded_engine = fake_loaded_engine(fake_limits(page_size=PAGE, max_context=100 * PAGE))
    if fails:
        loaded_engine = loaded_engine.composed(lambda actors: replace(actors, disk_tier=Failing()))
    with fake_session(loaded_engine) as session:
        await paused_with_pages(session)
        got: list[Exception] = []

        async def run() -> None:
            try:
                await save(session, progress=False)
            except Exception as error:
                got.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until(lambda: session.pending["scheduler"], "the scheduler was to hear that it saves")
            await anyio.wait_all_tasks_blocked()
            if fails:
                session.resume()
            else:
                await session.close()
        assert [type(error) for error in got] == [EngineFailed if fails else SessionClosed]
        assert got[0] is session._engine.thread.error


async def test_leaving_a_save_early_leaves_the_session_usable(paged: Session) -> None:
    await paused_with_pages(paged)
    with anyio.move_on_after(0) as scope:
        await paged.save(progress=False)
    assert scope.cancelled_caught
    paged.resume()
    assert await paged.save(progress=False) <= PAGES
    assert paged.stats.scheduler.disk_pages == PAGES
    assert not paged._engine.client._answers, "nobody is kept who was answered"


def test_one_who_asks_while_the_engine_ends_does_not_disturb_its_end() -> None:
    """Ask from another thread while the engine's thread tells one caller after the other."""
    client = EngineClient(max_waiting=1)
    closed = SessionClosed("closed")
    late: list[Feed[Any]] = []

    def ask() -> Feed[Any]:
        return client.ask(SaveCache, lambda message: None)[1]

    early = [ask(), ask()]
    for feed in early:
        feed._waiting.append((lambda: late.append(ask()), 1))
    client.fail_all(closed)
    assert len(late) == 2
    assert all(feed.closed for feed in (*early, *late))
