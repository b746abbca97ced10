"""A map answers any number of items with a window of requests, in order or as they come, and keeps each failure."""

import json
import sys
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
from anyio import to_thread

from rekindle.core.concurrency.progress import Progress
from rekindle.core.errors import BatchFailed, InvalidRequest, PromptTooLong, RequestCancelled, SessionClosed
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.mapping.generating import GenerationWork
from rekindle.mapping.pending import PendingMap
from rekindle.mapping.results import MapResults
from rekindle.notebook.progress import batch_progress as bars
from rekindle.notebook.progress.bars import ProgressBars
from rekindle.results.generation import Generation
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.unit.sessions import assert_all_is_free
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

ENDLESS = 4000


class Counted:
    """Prompts of token ids from a generator, with a count of its reads."""

    def __init__(self, total: int):
        self.total, self.reads = total, 0

    def __iter__(self) -> Iterator[list[int]]:
        for place in range(self.total):
            self.reads += 1
            yield [place % 100 + 1, 2]


@pytest.fixture
def one_by_one(settler: FakeSettler) -> Iterator[Session]:
    """Open a session with one slot; a tick settles when it is told to."""
    with fake_session(fake_loaded_engine(fake_limits(max_running=1), settler=settler)) as session:
        yield session


@pytest.fixture
def short(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    with fake_session(fake_loaded_engine(fake_limits(max_context=64), tokenizer=byte_tokenizer)) as session:
        yield session


async def test_if_every_item_fails_it_warns(short: Session) -> None:
    with pytest.warns(RuntimeWarning, match="each of 2 items failed; the first: PromptTooLong: "):
        failed = await short.map(["x" * 100, "y" * 100], max_tokens=2)
    assert [type(outcome) for outcome in failed] == [PromptTooLong] * 2
    assert len(await short.map(["x" * 100, "y"], max_tokens=2)) == 2


async def assert_free(session: Session) -> None:
    """Check a session for leftovers of an abandoned map, after one more request."""
    await session.generate(token_ids=[[1]], max_tokens=1)
    assert not session.requests
    assert_all_is_free(session)


# What comes


async def test_the_answers_come_in_order_whatever_the_window(session: Session) -> None:
    expected = [expected_tokens(ids, 3) for ids in Counted(30)]
    for window in (None, 1, 7, 100):
        answers = await session.map(token_ids=iter(Counted(30)), max_tokens=3, window=window)
        assert isinstance(answers, MapResults)
        assert [answer.token_ids for answer in answers if isinstance(answer, Generation)] == expected
    assert answers.items == tuple(Counted(30))
    assert await session.map([]) == []
    assert_all_is_free(session)


async def test_no_more_than_a_window_is_in_the_engine_and_items_are_read_as_they_are_needed(
    one_by_one: Session, settler: FakeSettler
) -> None:
    items = Counted(50)
    pending = one_by_one.map(token_ids=iter(items), max_tokens=1, window=3)
    assert (items.reads, repr(pending)) == (0, "<rekindle.PendingMap, not begun: await it, or loop over it with "
                                              "'async for' or 'for'>")  # fmt: skip
    for done in range(10):
        settler.step()
        place, _ = await anext(pending)
        assert place == done
        assert len(one_by_one.requests) <= 3
        assert done < items.reads <= done + 4
    pending.close()
    settler.release()
    assert [each async for each in pending] == []
    assert items.reads <= 13
    await assert_free(one_by_one)


async def test_only_the_request_that_ended_is_looked_at(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count looks at requests: a walk over the window at each end would take n times the window."""
    asked: list[GenerationWork] = []

    def settle(work: GenerationWork) -> bool:
        asked.append(work)
        return work.handle.done

    monkeypatch.setattr(GenerationWork, "settle", settle)
    await session.map(token_ids=Counted(100), window=50, max_tokens=2)
    assert len(asked) == 100


async def test_each_answer_comes_as_it_ends(one_by_one: Session, settler: FakeSettler, session: Session) -> None:
    settler.release()
    came = [(place, answer) async for place, answer in session.map(token_ids=Counted(20), max_tokens=2)]
    assert sorted(place for place, _ in came) == list(range(20))
    answers = {place: answer.token_ids for place, answer in came if isinstance(answer, Generation)}
    assert answers == {place: expected_tokens(ids, 2) for place, ids in enumerate(Counted(20))}


async def test_callers_that_block_get_the_same(session: Session) -> None:
    answers = await session.map(token_ids=Counted(9), max_tokens=2)
    assert await to_thread.run_sync(lambda: session.map_sync(token_ids=Counted(9), max_tokens=2)) == answers
    looped = await to_thread.run_sync(lambda: dict(session.map(token_ids=Counted(9), max_tokens=2)))
    assert [looped[place] for place in range(9)] == answers


async def test_a_template_that_fits_none_of_the_first_items_raises_before_anything_is_computed(texts: Session) -> None:
    rows = [{"a": str(number)} for number in range(20)]
    with pytest.raises(InvalidRequest, match=r"none of the first 8 items fits the template: .* needs the field 'b'"):
        await texts.map(rows, template="{b}", max_tokens=1)
    with pytest.raises(InvalidRequest, match="none of the first 1 items fits"):
        await texts.map(rows[:1], template="{b}", max_tokens=1)
    assert texts.stats.scheduler.ended == 0
    outcomes = await texts.map([*rows[:7], {"b": "c"}, rows[0]], template="{b}", max_tokens=1)
    assert [isinstance(each, InvalidRequest) for each in outcomes] == [True] * 7 + [False, True]


async def test_items_are_texts_conversations_or_what_a_template_is_filled_with(texts: Session) -> None:
    chat = [{"role": "user", "content": "ab"}]
    expected = await texts.generate("ab", max_tokens=1)
    for items, template in (
        (["ab", chat], None),
        (["b", {"text": "b", "other": 1}], "a{text}"),
        ([{"one": "a", "two": ["b"]}], [{"role": "user", "content": "{one}{two[0]}"}]),
        ([{"one": "a"}], [{"role": "user", "content": [{"type": "text", "text": "{one}b"}]}]),
    ):
        answers = await texts.map(items, template=template, max_tokens=2)
        prompts = {answer.prompt_token_ids for answer in answers if isinstance(answer, Generation)}
        assert prompts == {expected.prompt_token_ids}
        assert answers.prompts == ["ab"] * len(items)
    braces = await texts.map([{"n": 3.14159}], template="{{{n:.2f}}}", max_tokens=1)
    assert braces.prompts == ["{3.14}"]


async def test_a_forgotten_await_says_so(session: Session) -> None:
    pending: Any = session.map(token_ids=[[1]])
    with pytest.raises(AttributeError, match=r"no attribute 'to_frame': nothing has come yet; answers = await session"):
        pending.to_frame()
    with pytest.raises(AttributeError, match=r"no attribute 'to_fram'$"):
        pending.to_fram()


# What fails


async def test_each_failure_stands_in_the_place_of_its_item(short: Session) -> None:
    items: Any = ["a", "", 7, "b" * 64, {"name": "a"}, None, "c"]
    answers = await short.map(items, max_tokens=3)
    kinds = [type(answer) for answer in answers]
    assert kinds == [
        Generation, InvalidRequest, InvalidRequest, PromptTooLong, InvalidRequest, InvalidRequest, Generation
    ]  # fmt: skip
    assert "which needs a template" in str(answers[4])
    filled = await short.map([{"name": "a"}, {"nam": "a"}, "a", 3], template="{name}", max_tokens=1)
    assert [str(each) for each in filled[1:]] == [
        "the template needs the field 'name', and the item has nam",
        "the template needs the field 'name', and the item has text",
        "a template needs a mapping of its fields, or a str for {text}; got 3",
    ]


async def test_the_first_failure_may_end_it(short: Session) -> None:
    with pytest.raises(BatchFailed, match="item 1 failed: the prompt is empty") as caught:
        await short.map(["a", "", "c"], max_tokens=3, errors="raise", window=2)
    assert isinstance(caught.value.__cause__, InvalidRequest)
    results = caught.value.results
    assert isinstance(results[1], InvalidRequest)
    with pytest.raises(BatchFailed):
        async for _ in short.map(["", "c"], max_tokens=3, errors="raise"):
            pass
    await assert_free(short)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({"items": "one"}, "takes an iterable of texts, conversations or mappings, got 'one'"),
        ({"items": {"a": 1}}, "takes an iterable"),
        ({"items": 7}, "takes an iterable"),
        ({}, "either items or token_ids"),
        ({"items": ["a"], "token_ids": [[1]]}, "either items or token_ids"),
        ({"items": ["a"], "errors": "ignore"}, 'errors must be "raise" or "return"'),
        ({"items": ["a"], "window": 0}, "window must be"),
        ({"items": ["a"], "path": 3}, "path must be a str or a path, got 3"),
        ({"items": ["a"], "progress": 1}, "progress must be True or False"),
        ({"items": ["a"], "temperature": -1}, "temperature"),
        ({"items": ["a"], "n": 2}, "n is for generate"),
        ({"items": ["a"], "tools": 3}, "tools"),
        ({"items": ["a"], "chat_template_kwargs": 3}, "chat_template_kwargs"),
        ({"items": ["a"], "template": "plain"}, "template has no field"),
        ({"items": ["a"], "template": "{}"}, "needs a name"),
        ({"items": ["a"], "template": "{0}"}, "needs a name"),
        ({"items": ["a"], "template": '{"a": {text}}'}, "Double all other braces, such as those of JSON"),
        ({"items": ["a"], "template": "{\n  {text}}"}, "Double all other braces"),
        ({"items": ["a"], "template": "{text"}, "not a valid format string"),
        ({"items": ["a"], "template": 3}, "template must be a str or a list of messages, got 3"),
        ({"token_ids": [[1]], "template": "{text}"}, "leave it out for token_ids"),
    ],
)
async def test_a_call_that_cannot_be_served_is_told_at_once(texts: Session, ask: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        texts.map(**ask)


async def test_what_holds_for_every_item_is_told_once(session: Session) -> None:
    with pytest.raises(InvalidRequest, match="no tokenizer, so stop strings"):
        await session.map(token_ids=Counted(3), stop="a")


async def test_a_generator_that_fails_ends_it(session: Session) -> None:
    def items() -> Iterator[list[int]]:
        yield [1]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        await session.map(token_ids=items(), max_tokens=ENDLESS)
    await assert_free(session)


# Leaving


async def test_leaving_cancels_what_runs(session: Session) -> None:
    endless: Any = {"token_ids": Counted(20), "max_tokens": ENDLESS}
    with anyio.move_on_after(0.05):
        await session.map(**endless)
    await assert_free(session)
    async with aclosing(session.map(**endless)) as pending:
        with anyio.move_on_after(0.05):
            await anext(pending)
    await assert_free(session)


async def test_an_interrupt_says_what_had_ended(one_by_one: Session, settler: FakeSettler) -> None:
    steps = 0

    def items() -> Iterator[list[int]]:
        for place in range(10):
            nonlocal steps
            if place > 3:
                raise KeyboardInterrupt
            settler.step()
            yield [place + 1]

    with pytest.raises(KeyboardInterrupt, match=r"interrupted after \d answer") as caught:
        await one_by_one.map(token_ids=items(), max_tokens=1, window=2)
    finished = vars(caught.value)["finished"]
    assert finished[0].token_ids == expected_tokens([1], 1)
    assert finished[-1] is None or len(finished) <= 4
    settler.release()
    await assert_free(one_by_one)


async def test_a_map_that_is_closed_meanwhile_is_no_success(session: Session) -> None:
    pending: PendingMap[Any]

    def items() -> Iterator[list[int]]:
        yield [1]
        pending.close()
        yield [2]

    pending = session.map(token_ids=items(), max_tokens=2)
    with pytest.raises(RequestCancelled, match="the map was closed after"):
        await pending
    with pytest.raises(InvalidRequest, match="is closed already"):
        await pending


async def test_a_session_that_is_closed_ends_it(settler: FakeSettler) -> None:
    items = Counted(10**6)
    with fake_session(fake_loaded_engine(fake_limits(), settler=settler)) as session:
        pending = session.map(token_ids=items, max_tokens=1)
        settler.step()
        await anext(pending)
        session._engine.thread.stop()
        settler.release()
        with pytest.raises(SessionClosed):
            async for _ in pending:
                pass
        with pytest.raises(SessionClosed):
            session.map(token_ids=[[1]])
    assert items.reads < 1000


# What is drawn, and what a frame has


async def _mapped(session: Session, items: Any) -> None:
    await session.map(token_ids=items, max_tokens=1, progress=True)


@pytest.mark.parametrize(("items", "total", "suffix"), [(list, 20, " left"), (iter, None, "")])
async def test_a_bar_says_how_far_it_is(
    items: Any,
    total: int | None,
    suffix: str,
    one_by_one: Session,
    settler: FakeSettler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports: list[Any] = []
    half = anyio.Event()
    monkeypatch.setattr(bars, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(bars, "POLL_SECONDS", 0.001)

    def show(_: ProgressBars, report: Progress) -> None:
        reports.append((report.done, report.total, report.unit))
        if report.done == 10 and report.unit.endswith(suffix):
            half.set()

    monkeypatch.setattr(ProgressBars, "show", show)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_mapped, one_by_one, items(Counted(20)))
        for _ in range(10):
            settler.step()
        with anyio.fail_after(PATIENCE):
            await half.wait()
        settler.release()
    done = [each[0] for each in reports]
    assert done == sorted(done)
    assert {each[1] for each in reports[:-1]} == {total}
    assert reports[-1] == (20, 20, "answers"), "in the end it is known how many there were"


async def test_no_bar_is_drawn_unless_it_is_asked_for(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Progress] = []
    monkeypatch.setattr(bars, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(bars, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(ProgressBars, "show", lambda _, report: reports.append(report))
    await session.map(token_ids=Counted(20), max_tokens=2)
    assert reports == []


async def test_in_marimo_all_rows_are_a_table_and_a_list_that_was_modified_is_a_card(
    texts: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    marimo = Mock()
    monkeypatch.setitem(sys.modules, "marimo", marimo)
    answers = await texts.map([{"name": f"{place}"} for place in range(60)], template="{name}", max_tokens=1)
    answers._display_()
    (rows,), options = marimo.ui.table.call_args
    assert [row["name"] for row in rows] == [f"{place}" for place in range(60)]
    assert list(rows[0]) == ["name", "text", "finish_reason", "tokens"]
    assert options["wrapped_columns"] == ["name", "text"]
    answers.reverse()
    answers._display_()
    assert marimo.Html.call_args.args == (answers._repr_mimebundle_()["text/html"],)


async def test_a_frame_has_the_fields_and_what_came_of_them(texts: Session) -> None:
    items: Any = [{"name": "a", "text": "x"}, {"nam": "b"}]
    answers = await texts.map(items, template="{name}{text}", max_tokens=3)
    first, second = answers._records()
    assert isinstance(answers[0], Generation)
    assert first == {
        "name": "a", "item.text": "x", "text": answers[0].text, "parsed": None, "finish_reason": "length", "tokens": 3,
        "error": None,
    }  # fmt: skip
    assert (second["nam"], second["text"], second["tokens"]) == ("b", None, None)
    assert second["error"].startswith("InvalidRequest: the template needs")
    plain = await texts.map(["a"], max_tokens=1)
    assert plain._records()[0]["prompt"] == "a"
    answers.reverse()
    with pytest.raises(ValueError, match="the list was modified"):
        answers._records()
    try:
        import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="pip install pandas"):
            plain.to_frame()
    else:
        assert json.loads(plain.to_frame().to_json(orient="records"))[0]["prompt"] == "a"
