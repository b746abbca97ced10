"""A shown batch is a table whose rows fill side by side, drawn at bounded times, and always as it has ended."""

import re
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import anyio
import pytest
from anyio import to_thread

from rekindle import markup
from rekindle.client.batches.run import BatchRun, Shape
from rekindle.client.handle import Handle
from rekindle.core.concurrency.feed import TO_THE_END
from rekindle.core.errors import BatchFailed, InvalidBatch, InvalidRequest, SessionClosed
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.notebook import front_end, live_table
from rekindle.notebook.front_end import VIEW
from rekindle.notebook.live_table import REDRAW_SECONDS, TAIL, HtmlTable, LiveRow, WidgetTable
from rekindle.results.answer_table import MOST_ROWS
from rekindle.results.answers import Answers
from rekindle.results.generation import Generation
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, fake_limits, fake_loaded_engine, fake_session
from tests.unit.notebook.test_show import Kernel, Page
from tests.unit.sessions import assert_all_is_free
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

PROMPTS = [[3, 1, 4], [1], [5, 9]]
ENDLESS = 4000


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    """Make the page of the newest kind of kernel."""
    page = Page()
    monkeypatch.setattr("IPython.display.display", page.display)
    monkeypatch.setattr(front_end, "kernel", lambda: Kernel(shell_channel_thread=object()))
    return page


@pytest.fixture
def held_session(settler: FakeSettler, byte_tokenizer: Tokenizer) -> Iterator[Session]:
    """Open a session with text; it says nothing before the settler is released."""
    with fake_session(fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer, settler=settler)) as session:
        yield session


def requested(session: Session, number: int, **ask: Any) -> BatchRun:
    handles = [session.submit(token_ids=[1 + place % 200], **ask) for place in range(number)]
    prompts = [(1 + place % 200,) for place in range(number)]
    return BatchRun(prompts, Shape(True, None), handles, "return", keeps_cancelled=True)


def rows(batch: BatchRun) -> list[LiveRow]:
    return [LiveRow(batch, place) for place in range(min(MOST_ROWS, len(batch)))]


# In a notebook


async def test_rows_fill_side_by_side_and_the_answers_stay(
    page: Page, held_session: Session, settler: FakeSettler, monkeypatch: pytest.MonkeyPatch, anyio_backend_name: str
) -> None:
    monkeypatch.setattr(markup, "cell", lambda: 7)
    clicks = anyio_backend_name == "asyncio"
    answers: list[Answers[Generation]] = []

    async def ask() -> None:
        answers.append(await held_session.show(token_ids=PROMPTS, max_tokens=3, logprobs=1))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await page.drawings.wait(0)
        await page.shows("0 of 3 answers")
        assert (VIEW in page.card) == clicks
        assert str(page.card["text/plain"]).startswith("Answers: 0 of 3 answers")
        assert str(page.card["text/html"]).count("<tr") == 4
        settler.release()
    (result,) = answers
    assert result == await held_session.generate(token_ids=PROMPTS, max_tokens=3, logprobs=1)
    assert result.prompts == [tuple(prompt) for prompt in PROMPTS]
    assert dict(page.card) == result._repr_mimebundle_()
    assert [dict(output) for output in page.outputs.values()][:-1] == ([] if clicks else [front_end.EMPTY])
    assert str(page.card["text/html"]).count("less likely") == 3
    result._ipython_display_()  # shows nothing, because this cell has drawn it
    monkeypatch.setattr(markup, "cell", lambda: 8)
    with pytest.raises(NotImplementedError):
        result._ipython_display_()


async def test_the_button_of_a_row_cancels_its_request_alone(page: Page, held_session: Session) -> None:
    batch = requested(held_session, 3, max_tokens=ENDLESS)
    table = WidgetTable(batch, rows(batch))
    table.draw("0 of 3 answers")
    table._buttons[1].click()
    await batch.handles[1].record.pieces.wait(TO_THE_END)
    table.draw("1 of 3 answers")
    assert [box.children[0] in table._buttons for box in table._boxes] == [True, False, True]
    assert "cancelled" in table._lines[1].value
    assert [handle.done for handle in batch.handles] == [False, True, False]
    batch.cancel()
    for handle in batch.handles:
        await handle.record.pieces.wait(TO_THE_END)
    table.close()
    assert [outcome.finish_reason for outcome in batch.answers()] == ["cancelled"] * 3
    assert [VIEW in output for output in page.outputs.values()] == [False]
    assert all(part.comm is None for part in table._parts), "a widget stays open"
    assert {type(widget).__name__ for widget in table._parts} == {
        "Button",
        "ButtonStyle",
        "HBox",
        "HTML",
        "HTMLStyle",
        "Layout",
        "VBox",
    }


async def test_only_rows_that_have_changed_are_sent(page: Page, held_session: Session, settler: FakeSettler) -> None:
    batch = requested(held_session, 3, max_tokens=2)
    table, updates = WidgetTable(batch, rows(batch)), list[str]()
    table.draw("0 of 3 answers")
    for line in table._lines:
        line.observe(lambda change: updates.append(change["new"]), "value")
    settler.release()
    for handle in batch.handles:
        await handle.record.pieces.wait(TO_THE_END)
    table.draw("3 of 3 answers")
    assert len(updates) == 3
    table.draw("3 of 3 answers")
    assert len(updates) == 3
    table.close()


async def test_a_growing_row_and_the_number_of_rows_are_bounded(
    page: Page, session: Session, held_session: Session, settler: FakeSettler
) -> None:
    batch = requested(session, 2 * MOST_ROWS, max_tokens=60)
    await batch.ends.wait(TO_THE_END)
    live_rows = rows(batch)
    table = HtmlTable(batch, live_rows)
    table.draw("100 of 100 answers")
    assert str(page.card["text/html"]).count("<tr") == MOST_ROWS + 1
    assert f"and {MOST_ROWS} more, {MOST_ROWS} of them ended" in str(page.card["text/html"])
    table.close()
    long = requested(held_session, 1, max_tokens=ENDLESS)
    (row,) = rows(long)
    pieces = long.handles[0].record.pieces
    for _ in range(10 * TAIL):  # and no more, or it might end
        settler.step()
    await until(lambda: len(pieces.items) >= 10 * TAIL, "as many pieces have come")
    assert len(row.html(shade=True)) < 4000
    assert not row.has_ended
    long.cancel()
    settler.release()


async def test_it_is_drawn_four_times_a_second_at_most(page: Page, held_session: Session, settler: FakeSettler) -> None:
    batch, numbers = requested(held_session, 2, max_tokens=2), count()
    showing: Any = live_table.show(batch, "blocks", lambda: f"drawing {next(numbers)}")
    for wait in (next(showing), next(showing), next(showing)):
        assert (wait.feed, wait.count, wait.timeout) == (batch.ends, TO_THE_END, REDRAW_SECONDS)
    settler.release()
    await batch.ends.wait(TO_THE_END)
    with pytest.raises(StopIteration):
        next(showing)
    lines = [str(bundle["text/plain"]).splitlines()[0] for bundle in page.drawings.items if bundle["text/plain"]]
    assert lines == [
        "To stop it, interrupt the kernel.",
        *(f"Answers: drawing {number}" for number in range(3)),
        "Answers: 2, 4 tokens",
    ]


@pytest.mark.parametrize("without", ["widgets", "clicks"])
async def test_where_no_click_is_heard_it_is_drawn_again_instead(
    without: str, page: Page, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without == "widgets":
        monkeypatch.setitem(sys.modules, "ipywidgets", None)
        answers = await session.show(token_ids=PROMPTS, max_tokens=3)
    else:
        answers = await to_thread.run_sync(lambda: session.show_sync(token_ids=PROMPTS, max_tokens=3))
    stop, table = page.outputs.values()
    assert "interrupt the kernel" in str(page.drawings.items[0]["text/plain"])
    assert dict(stop) == front_end.EMPTY
    assert dict(table) == answers._repr_mimebundle_()
    assert not any(VIEW in bundle for bundle in page.drawings.items)


async def leave_once_all_have_begun(held_session: Session, settler: FakeSettler) -> None:
    """Show endless answers, and leave when something of each has come; no tick settles meanwhile."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(held_session.show, token_ids=PROMPTS, max_tokens=ENDLESS))
        await anyio.wait_all_tasks_blocked()
        for handle in tuple(held_session.requests.values()):
            settler.step()
            pieces = handle.record.pieces  # it may have joined after that tick
            await until(partial(pieces.wait_blocking, 0, 0.02), "something has come", step=settler.step)
        tasks.cancel_scope.cancel()
        settler.release()


async def test_leaving_cancels_all_and_what_had_come_stays(
    page: Page, held_session: Session, settler: FakeSettler
) -> None:
    await leave_once_all_have_begun(held_session, settler)
    assert str(page.card["text/plain"]).count("cancelled") == 3
    assert VIEW not in page.card
    await held_session.generate(token_ids=PROMPTS, max_tokens=1)
    assert_all_is_free(held_session)


async def test_bad_prompts_are_raised_before_anything_is_drawn_or_returned_in_their_rows(
    page: Page, held_session: Session, settler: FakeSettler
) -> None:
    with pytest.raises(InvalidBatch, match="1 of 2 prompts"):
        await held_session.show(["a", ""])
    assert not page.outputs
    settler.release()
    good, bad = await held_session.show(["a", ""], max_tokens=2, errors="return")
    assert isinstance(good, Generation)
    assert "InvalidRequest: the prompt is empty" in str(page.card["text/plain"])
    assert isinstance(bad, Exception)


async def test_a_failure_is_raised_after_it_was_drawn(page: Page, held_session: Session) -> None:
    caught: list[BatchFailed] = []

    async def ask() -> None:
        try:
            await held_session.show(token_ids=PROMPTS, max_tokens=3)
        except BatchFailed as error:
            caught.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await page.drawings.wait(0)
        await page.shows("0 of 3 answers")
        await held_session.close()
    assert isinstance(caught[0].__cause__, SessionClosed)
    assert "SessionClosed" in str(page.card["text/plain"])
    assert VIEW not in page.card


# Elsewhere


async def test_in_a_terminal_each_answer_is_printed_as_it_ends(
    settler: FakeSettler, byte_tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    settler.release()
    with fake_session(
        fake_loaded_engine(fake_limits(max_running=1), tokenizer=byte_tokenizer, settler=settler)
    ) as session:
        answers = await session.show(["ab", "", "c\nd"], max_tokens=3, errors="return")
        blocking = await to_thread.run_sync(lambda: session.show_sync(["ab"], max_tokens=3))
    first, _, last = answers
    assert isinstance(first, Generation)
    assert isinstance(last, Generation)
    printed = [
        "[1] \nInvalidRequest: the prompt is empty; it needs at least one character\n\n",
        f"[0] ab\n{first._repr_mimebundle_()['text/plain']}\n\n",
        f"[2] c↵d\n{last._repr_mimebundle_()['text/plain']}\n\n",
        f"[0] ab\n{blocking[0]._repr_mimebundle_()['text/plain']}\n\n",
    ]
    assert capsys.readouterr().out == "".join(printed)


def test_what_has_ended_before_the_first_look_is_printed_in_the_order_of_the_ends(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    handles = [session.submit(token_ids=[3, 1, 4], max_tokens=2), session.submit(token_ids=[5], max_tokens=2)]
    entries: list[Handle | Exception] = [handles[0], InvalidRequest("no prompt"), handles[1]]
    batch = BatchRun([(3, 1, 4), "", (5,)], Shape(True, None), entries, "return")
    assert batch.ends.wait_blocking(TO_THE_END, PATIENCE)
    live_table.PrintedTable(batch).close()
    places = re.findall(r"^\[(\d)\]", capsys.readouterr().out, flags=re.MULTILINE)
    assert list(map(int, places)) == list(batch.ends.items)
    assert places[0] == "1"


async def test_what_had_come_of_cancelled_requests_is_printed_too(
    held_session: Session, settler: FakeSettler, capsys: pytest.CaptureFixture[str]
) -> None:
    await leave_once_all_have_begun(held_session, settler)
    out = capsys.readouterr().out
    assert [out.count(f"[{place}] token ids") for place in range(3)] == [1, 1, 1]
    assert out.count("ended: cancelled") == 3
