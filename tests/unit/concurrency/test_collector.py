"""Lasting objects are made without the garbage collector, and its state afterwards is the state before."""

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from rekindle.core.concurrency.collector import OLD_OBJECTS, OldObjects, collector_paused
from rekindle.testing import fake_session
from tests.waiting import PATIENCE

IMPORT = """
import contextlib, gc, pathlib, threading, typing  # those of the modules that begin the pause
collections = []
gc.callbacks.append(lambda phase, info: collections.append(phase))
{before}
import rekindle
print(gc.isenabled(), gc.get_freeze_count(), len(collections))
"""


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    """Have the collector enabled before and after."""
    gc.enable()
    yield
    gc.unfreeze()
    gc.enable()


def imported(before: str = "") -> tuple[bool, int, int]:
    """Import rekindle in a process of its own.

    Returns:
        Whether the collector is enabled afterwards, how many objects are frozen, and the beginnings and ends of
        collections.
    """
    code = IMPORT.format(before=before)
    enabled, frozen, collections = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    return enabled == "True", int(frozen), int(collections)


@pytest.mark.wide
def test_importing_rekindle_collects_nothing_and_leaves_the_collector_enabled() -> None:
    enabled, frozen, collections = imported()
    assert enabled
    assert not frozen
    assert collections < 10  # those of the two modules that begin the pause


@pytest.mark.wide
def test_importing_rekindle_leaves_the_collector_as_a_user_paused_it() -> None:
    assert imported("gc.disable()") == (False, 0, 0)


def test_what_a_user_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with collector_paused():
        lists = [[] for _ in range(10_000)]  # type: list[list[int]]
    assert 0 < gc.get_freeze_count() <= frozen  # what other tests left may end meanwhile
    assert gc.isenabled()
    assert lists


def test_what_was_made_meanwhile_counts_as_old() -> None:
    with collector_paused():
        lists = [[] for _ in range(10_000)]  # type: list[list[int]]
    assert gc.get_count()[0] < 1_000
    assert not gc.get_freeze_count()
    oldest = set(map(id, gc.get_objects(generation=2)))
    assert all(id(each) in oldest for each in lists)


def test_few_new_objects_cost_no_walk_through_those_that_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: pytest.fail("a walk"))
    with collector_paused():
        lists = [[] for _ in range(100)]  # type: list[list[int]]
    assert lists


def test_it_is_enabled_when_the_last_of_several_threads_is_done() -> None:
    entered, leave = threading.Barrier(3), threading.Event()

    def pause() -> None:
        with collector_paused():
            entered.wait(PATIENCE)
            leave.wait(PATIENCE)

    threads = [threading.Thread(target=pause) for _ in range(2)]
    for thread in threads:
        thread.start()
    entered.wait(PATIENCE)
    with collector_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()
    leave.set()
    for thread in threads:
        thread.join()
    assert gc.isenabled()


def test_it_is_enabled_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), collector_paused():
        1 / 0  # noqa: B018
    assert gc.isenabled()


class Cycle:
    """An object that only a collection ends."""

    def __init__(self) -> None:
        self.itself = self


def dropped_cycle() -> weakref.ref[Cycle]:
    """Return a reference to an object that is garbage."""
    return weakref.ref(Cycle())


def test_a_full_collection_walks_old_objects_only_while_no_engine_is_busy() -> None:
    busy = False
    gc.disable()  # only the collections below
    cycle = dropped_cycle()
    with OldObjects().left_out(lambda: busy):
        busy = True
        young = dropped_cycle()
        gc.collect()
        assert cycle() is not None  # left out
        assert young() is None
        busy = False
        gc.collect()
        assert cycle() is None
    assert not gc.get_freeze_count()


def test_what_survived_a_collection_is_in_none_that_follows_while_an_engine_is_busy() -> None:
    gc.disable()
    with OldObjects().left_out(lambda: True):
        survivor = Cycle()
        gc.collect()
        assert all(each is not survivor for each in gc.get_objects())


def test_all_objects_are_walked_once_memory_has_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.disable()
    cycle, blocks = dropped_cycle(), 1000
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: blocks)
    with OldObjects().left_out(lambda: True):
        blocks = 2000
        gc.collect()
        assert cycle() is not None
        blocks = 2001
        gc.collect()
        assert cycle() is None


def test_the_last_of_several_engines_ends_it() -> None:
    gc.disable()
    objects = OldObjects()
    with objects.left_out(lambda: True):
        with objects.left_out(lambda: False):
            pass
        assert gc.get_freeze_count()
        cycle = dropped_cycle()
        gc.freeze()
        gc.collect()
        assert cycle() is not None  # the first is busy still
    assert not gc.get_freeze_count()
    assert not [each for each in gc.callbacks if getattr(each, "__self__", None) is objects]


def test_engines_leave_what_a_user_froze() -> None:
    gc.disable()
    gc.freeze()
    with OldObjects().left_out(lambda: False):
        gc.collect()
        assert gc.get_freeze_count()
    assert gc.get_freeze_count()


def test_a_session_leaves_old_objects_out_until_it_is_closed() -> None:
    before = len(OLD_OBJECTS.engines)
    with fake_session() as session:
        assert len(OLD_OBJECTS.engines) == before + 1
        is_busy = OLD_OBJECTS.engines[-1]
        session.pause_sync()
        session.submit(token_ids=[1, 2, 3], max_tokens=1)
        assert is_busy()
        session.resume()
        session.generate_sync(token_ids=[1, 2, 3], max_tokens=1)
    assert len(OLD_OBJECTS.engines) == before
