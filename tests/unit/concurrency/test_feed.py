"""A feed is read in full by any number of tasks, loops and threads, and a reader that leaves harms no other."""

import signal
import threading
from collections.abc import Callable
from functools import partial

import anyio
import pytest
from anyio import to_thread

from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.mailbox import Waiter
from tests.waiting import PATIENCE, until_blocking

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


async def test_every_reader_sees_all_items_whenever_it_comes() -> None:
    feed: Feed[int] = Feed()
    results: dict[str, list[int]] = {}

    async def read(name: str) -> None:
        at = 0
        while not feed.closed:
            await feed.wait(at)
            at = len(feed.items)
        results[name] = list(feed.items)

    def read_blocking(name: str) -> None:
        at = 0
        while not feed.closed:
            feed.wait_blocking(at)
            at = len(feed.items)
        results[name] = list(feed.items)

    def write() -> None:
        for number in range(200):
            feed.put(number)
        feed.close()

    async with anyio.create_task_group() as tasks:
        for name in "ab":
            tasks.start_soon(read, name)
            tasks.start_soon(to_thread.run_sync, read_blocking, "thread " + name)
        await anyio.wait_all_tasks_blocked()
        await to_thread.run_sync(write)
        tasks.start_soon(read, "late")
    assert set(results) == {"a", "b", "late", "thread a", "thread b"}
    assert all(items == list(range(200)) for items in results.values())
    assert not feed._waiting, "nobody is left in the list of those who wait"


async def test_a_reader_that_is_cancelled_leaves_nothing_behind() -> None:
    feed: Feed[int] = Feed()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(feed.wait, 0)
        await anyio.wait_all_tasks_blocked()
        assert len(feed._waiting) == 1
        tasks.cancel_scope.cancel()
    assert not feed._waiting


def test_a_blocking_reader_is_told_when_its_time_is_over() -> None:
    feed: Feed[int] = Feed()
    assert not feed.wait_blocking(0, timeout=0)
    feed.put(1)
    assert feed.wait_blocking(0, timeout=0)
    assert not feed.wait_blocking(1, timeout=0)
    feed.close()
    assert feed.wait_blocking(1, timeout=0)


async def test_a_reader_whose_loop_was_closed_harms_neither_the_writer_nor_other_readers() -> None:
    feed: Feed[int] = Feed()
    waiters: list[Waiter] = []

    async def leave_a_waiter() -> None:
        waiters.append(Waiter())

    def another_loop(backend: str) -> None:
        anyio.run(leave_a_waiter, backend=backend)

    for backend in ("asyncio", "trio"):
        await to_thread.run_sync(another_loop, backend)
    feed._waiting.extend((waiter.wake, 0) for waiter in waiters)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(feed.wait, 0)
        await anyio.wait_all_tasks_blocked()
        feed.put(1)
    assert list(feed.items) == [1]


def test_several_loops_read_one_feed_at_once() -> None:
    feed: Feed[int] = Feed()
    ready = threading.Barrier(4)
    results: list[tuple[int, ...]] = []

    async def read() -> None:
        ready.wait()
        while not feed.closed:
            await feed.wait(len(feed.items))
        results.append(tuple(feed.items))

    targets: list[Callable[[], object]] = [
        partial(anyio.run, read, backend=name) for name in ("asyncio", "trio", "trio")
    ]
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    ready.wait()
    for number in range(100):
        feed.put(number)
    feed.close()
    for thread in threads:
        thread.join()
    assert results == [tuple(range(100))] * 3


def test_who_asked_to_be_told_of_the_end_is_told_once_whenever_that_was() -> None:
    feed, calls = Feed[int](), list[str]()
    feed.when_closed(lambda: calls.append("before"))
    feed.put(1)
    assert not calls
    feed.close()
    feed.close()
    assert calls == ["before"]
    feed.when_closed(lambda: calls.append("after"))
    assert calls == ["before", "after"]
    assert not feed._at_close, "what was called is kept no longer: it may refer to who holds the feed"


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_the_system_gave_to_another_thread_ends_a_blocking_wait() -> None:
    feed: Feed[int] = Feed()
    rescued = threading.Event()

    def rescue() -> None:
        rescued.set()
        feed.close()

    def take_the_interrupt() -> None:
        until_blocking(lambda: feed._waiting, "somebody waited for the feed")
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    timer = threading.Timer(PATIENCE, rescue)
    timer.start()
    taker = threading.Thread(target=take_the_interrupt)
    taker.start()
    with pytest.raises(KeyboardInterrupt):
        feed.wait_blocking(0)
    timer.cancel()
    taker.join()
    assert not rescued.is_set()
