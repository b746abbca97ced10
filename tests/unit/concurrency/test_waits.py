"""An operation has the same results, errors and ways to leave it, awaited or blocking."""

import asyncio
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar

import anyio
import pytest
from anyio import to_thread

from rekindle.core.concurrency import waits
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Wait, Waits, awaited, blocked, unless
from rekindle.notebook.progress.bars import ProgressBars, draw_reports
from tests.waiting import PATIENCE

T = TypeVar("T")


def awaited_by(backend: str) -> Callable[[Waits[Any]], Any]:
    async def guarded(waits: Waits[Any]) -> Any:
        with anyio.fail_after(PATIENCE):
            return await awaited(waits)

    return lambda waits: anyio.run(guarded, waits, backend=backend)


RUNS = pytest.mark.parametrize(
    "run", [awaited_by("asyncio"), awaited_by("trio"), blocked], ids=["asyncio", "trio", "blocking"]
)
Run = Callable[[Waits[Any]], Any]


def closed_with(*items: T) -> Feed[T]:
    feed: Feed[T] = Feed()
    for item in items:
        feed.put(item)
    feed.close()
    return feed


def in_a_thread(work: Callable[[], object]) -> None:
    threading.Thread(target=work, daemon=True).start()


@RUNS
def test_it_returns_what_the_operation_returns_also_one_that_waits_for_nothing(run: Run) -> None:
    def nothing() -> Waits[str]:
        return "at once"
        yield

    def something() -> Waits[list[int]]:
        feed: Feed[int] = Feed()
        numbers = []
        for number in range(3):
            in_a_thread(partial(feed.put, number))
            yield Wait(feed, number)
            numbers.append(feed.items[number])
        in_a_thread(feed.close)
        yield Wait(feed)
        assert feed.closed
        return numbers

    assert run(nothing()) == "at once"
    assert run(something()) == [0, 1, 2]


@RUNS
def test_a_wait_without_more_said_is_until_the_feed_is_closed(run: Run) -> None:
    feed: Feed[int] = Feed()
    feed.put(1)

    def end() -> None:
        feed.put(2)
        feed.close()

    def operation() -> Waits[bool]:
        in_a_thread(end)
        yield Wait(feed)
        return feed.closed

    assert run(operation())


@RUNS
def test_an_error_of_the_operation_comes_out(run: Run) -> None:
    def early() -> Waits[None]:
        raise ZeroDivisionError("early")
        yield

    def late() -> Waits[None]:
        yield Wait(closed_with())
        raise ZeroDivisionError("late")

    for operation in (early, late):
        with pytest.raises(ZeroDivisionError, match=operation.__name__):
            run(operation())


@RUNS
def test_a_wait_that_takes_too_long_goes_on_and_one_that_does_not_too(run: Run) -> None:
    def operation() -> Waits[list[bool]]:
        never: Feed[int] = Feed()
        went_on = []
        for feed in (never, closed_with(), never):
            yield Wait(feed, timeout=0.001)
            went_on.append(feed.closed)
        assert not never._waiting, "nobody is left there"
        return went_on

    assert run(operation()) == [False, True, False]


@RUNS
def test_operations_can_be_made_of_others(run: Run) -> None:
    def inner(number: int) -> Waits[int]:
        yield Wait(closed_with())
        if number == 2:
            raise KeyError(number)
        return number

    def outer() -> Waits[int]:
        total = 0
        for number in range(5):
            with suppress(KeyError):
                total += yield from inner(number)
        return total

    assert run(outer()) == 0 + 1 + 3 + 4


def left_by(how: type[BaseException], events: list[str], feed: Feed[int]) -> Waits[None]:
    try:
        yield Wait(feed)
    except BaseException as error:
        events.append(f"{isinstance(error, how)}")
        raise
    finally:
        events.append("cleaned up")


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_leaving_an_awaited_one_early_is_thrown_into_it() -> None:
    events: list[str] = []
    feed: Feed[int] = Feed()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(awaited, left_by(anyio.get_cancelled_exc_class(), events, feed))
        await anyio.wait_all_tasks_blocked()
        assert events == []
        tasks.cancel_scope.cancel()
    assert events == ["True", "cleaned up"]
    assert not feed._waiting


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_a_timeout_from_outside_is_not_taken_for_that_of_a_wait() -> None:
    events: list[str] = []
    with anyio.move_on_after(0) as scope:
        await awaited(left_by(anyio.get_cancelled_exc_class(), events, Feed()))
    assert scope.cancelled_caught
    assert events == ["True", "cleaned up"]

    def patient() -> Waits[None]:
        yield Wait(Feed(), timeout=1000)
        events.append("went on")

    with anyio.move_on_after(0.001) as scope:
        await awaited(patient())
    assert scope.cancelled_caught
    assert "went on" not in events


def test_asyncios_own_ways_to_leave_are_thrown_into_it_as_they_are() -> None:
    """Check this because 'Interrupt kernel' cancels the task of a cell, and must not be taken for a timeout."""
    events: list[str] = []

    async def cell() -> None:
        task = asyncio.ensure_future(awaited(left_by(asyncio.CancelledError, events, Feed())))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(awaited(left_by(asyncio.CancelledError, events, Feed())), 0.001)

    asyncio.run(cell())
    assert events == ["True", "cleaned up"] * 2


def test_leaving_a_blocking_one_early_is_thrown_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    feed: Feed[int] = Feed()

    def interrupted(number: int, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(feed, "wait_blocking", interrupted)
    with pytest.raises(KeyboardInterrupt):
        blocked(left_by(KeyboardInterrupt, events, feed))
    assert events == ["True", "cleaned up"]


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_between_two_waits_is_heard_though_a_loop_runs() -> None:
    """Check this because the handler of `asyncio.run` would only tell the blocked loop."""
    events: list[str] = []

    def drawing() -> Waits[None]:
        try:
            yield Wait(closed_with())
            signal.raise_signal(signal.SIGINT)
            events.append("went on")
        finally:
            events.append("cleaned up")

    async def cell() -> None:
        before = signal.getsignal(signal.SIGINT)
        assert before is not signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            blocked(drawing())
        assert signal.getsignal(signal.SIGINT) is before

    asyncio.run(cell())
    assert events == ["cleaned up"]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("count", "error"), [(1, KeyboardInterrupt), (2, asyncio.CancelledError)])
def test_an_interrupt_under_ipython_ends_what_waits(
    count: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the loop as IPython does in a terminal, where an interrupt would leave the tasks pending."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    events: list[str] = []
    feed: Feed[int] = Feed()

    async def cell() -> None:
        asyncio.get_running_loop().call_later(0.01, signal.raise_signal, signal.SIGINT)
        waits = [awaited(left_by(BaseException, events, feed)) for _ in range(count)]
        await (waits[0] if count == 1 else asyncio.gather(*waits))

    loop = asyncio.new_event_loop()
    with pytest.raises(error):
        loop.run_until_complete(cell())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert sorted(events) == ["True"] * count + ["cleaned up"] * count
    assert not feed._waiting
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_wherever_an_interrupt_comes_what_has_begun_is_cleaned_up() -> None:
    """Interrupt also between two waits, outside of the operation, maybe with a request in flight."""
    feeds: list[Feed[int]] = []
    events: list[str] = []
    interrupts: list[int] = []

    def operation() -> Waits[None]:
        feed = closed_with(1)
        feeds.append(feed)
        try:
            for _ in range(3):
                yield Wait(feed)
        finally:
            events.append("cleaned up")

    def interrupted(line: int) -> weakref.ref[Feed[int]] | None:
        """Interrupt at this line of the operation's runner; return the operation's feed, if it had begun."""
        feeds.clear()
        events.clear()
        lines = count()

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            if frame.f_code.co_filename == waits.__file__ and event == "line" and next(lines) == line:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            blocked(operation())
        except KeyboardInterrupt:
            interrupts.append(line)
            cleaned = list(events)  # read this before the frames go, which would clean up too
        else:
            cleaned = ["cleaned up"]
        finally:
            sys.settrace(before)
        assert cleaned == ["cleaned up"] * len(feeds)
        return weakref.ref(feeds.pop()) if feeds else None

    gc.collect()
    gc.disable()  # feeds that go without the collector are in no cycle
    try:
        references = [interrupted(line) for line in range(20)]
    finally:
        gc.enable()
    assert interrupts == [*range(len(interrupts))]
    assert len(interrupts) > 10
    assert not any(feed() for feed in references if feed is not None), "the interrupt holds itself"


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_one_that_is_left_may_replace_the_error_or_end_well() -> None:
    def replacing() -> Waits[None]:
        try:
            yield Wait(Feed())
        except BaseException as error:
            raise ZeroDivisionError("instead") from error

    def ending() -> Waits[str]:
        try:
            yield Wait(Feed())
        except BaseException:
            return "well"
        return "never"

    with pytest.raises(ZeroDivisionError, match="instead"), anyio.move_on_after(0):
        await awaited(replacing())
    got: list[str] = []
    with anyio.move_on_after(0):
        got.append(await awaited(ending()))
    assert got == ["well"]


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_the_loop_keeps_turning_while_one_is_awaited() -> None:
    feed: Feed[int] = Feed()

    def operation() -> Waits[int]:
        yield Wait(feed, 0)
        return feed.items[0]

    got: list[int] = []

    async def run() -> None:
        got.append(await awaited(operation()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        assert got == []
        await to_thread.run_sync(feed.put, 5)
    assert got == [5]


# Drawing


class Recorder(ProgressBars):
    """Progress bars with a record of all reports, and a function to call after each."""

    def __init__(self, then: Callable[[Progress], None] = lambda progress: None):
        super().__init__(False)
        self.reports: list[Progress] = []
        self._then = then

    def show(self, progress: Progress) -> None:
        self.reports.append(progress)
        self._then(progress)


def reports(count: int) -> Iterator[Progress]:
    return (Progress("reading", done, count - 1, "files") for done in range(count))


@RUNS
def test_all_that_a_feed_reports_is_drawn_once_and_in_order(run: Run) -> None:
    feed: Feed[Progress] = Feed()
    there: list[Feed[Progress]] = [feed, closed_with(*reports(5))]

    def put_all() -> None:
        for report in reports(5):
            feed.put(report)
        feed.close()

    in_a_thread(put_all)
    for each in there:
        recorder = Recorder()
        run(draw_reports(each, recorder))
        assert recorder.reports == [*reports(5)]


@RUNS
def test_what_is_reported_just_before_the_end_is_drawn_too(run: Run) -> None:
    """Check this because a bar would otherwise stay short of its end."""
    feed: Feed[Progress] = Feed()
    first, *others = reports(3)

    def end(progress: Progress) -> None:
        if progress is first:
            for other in others:
                feed.put(other)
            feed.close()

    feed.put(first)
    recorder = Recorder(end)
    run(draw_reports(feed, recorder))
    assert recorder.reports == [first, *others]


@RUNS
def test_a_reason_ends_a_wait_within_its_operation_which_may_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "REASON_SECONDS", 0.01)
    raised: list[BaseException] = []

    def patient() -> Waits[str]:
        try:
            yield Wait(Feed())
        except ZeroDivisionError as error:
            raised.append(error)
        yield Wait(closed_with(1))
        yield Wait(Feed(), timeout=0.01)
        try:
            yield Wait(Feed(), timeout=1000.0)
        except ZeroDivisionError as error:
            raised.append(error)
        return "went on"

    reasons = iter([None, None, ZeroDivisionError("a reason"), None, None, ZeroDivisionError("another")])
    assert run(unless(patient(), lambda: next(reasons))) == "went on"
    assert [str(error) for error in raised] == ["a reason", "another"]


@RUNS
def test_without_a_reason_an_operation_runs_as_ever(run: Run) -> None:
    def operation() -> Waits[int]:
        (item,) = (feed := closed_with(3)).items
        yield Wait(feed)
        if item == 3:
            raise KeyError(item)
        return item

    with pytest.raises(KeyError):
        run(unless(operation(), lambda: None))
