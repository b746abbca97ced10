"""The waiting queue never holds more than its places, and callers outside enter in order."""

import threading
from queue import SimpleQueue

import pytest

from rekindle.client.engine_client import EngineClient
from rekindle.client.queue_gate import QueueGate
from rekindle.client.submission import Submission
from rekindle.core.errors import QueueFull
from rekindle.core.messages import Message, Started, Submit
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.params import SamplingParams
from tests.waiting import PATIENCE


def test_a_request_enters_at_once_while_there_is_room() -> None:
    places = QueueGate(2)
    assert places.enter(0, wait=False)
    assert places.enter(1, wait=True)
    assert not places.enter(2, wait=True)


def test_who_does_not_wait_is_turned_away_and_never_enters() -> None:
    places = QueueGate(1)
    places.enter(0, wait=False)
    with pytest.raises(QueueFull, match="max_waiting is 1"):
        places.enter(1, wait=False)
    assert places.leave(0) is None


def test_who_waits_enters_in_order_one_for_each_place_given_back() -> None:
    places = QueueGate(1)
    assert [places.enter(number, wait=True) for number in range(4)] == [True, False, False, False]
    assert [places.leave(number) for number in range(4)] == [1, 2, 3, None]
    assert places.enter(4, wait=False), "the last place is free again"


def test_nobody_overtakes_those_outside() -> None:
    places = QueueGate(1)
    places.enter(0, wait=True)
    places.enter(1, wait=True)
    assert places.leave(0) == 1
    with pytest.raises(QueueFull):
        places.enter(2, wait=False)


def test_who_gives_up_is_passed_over_and_only_who_waits_can() -> None:
    places = QueueGate(1)
    for number in range(4):
        places.enter(number, wait=True)
    assert [places.give_up(number) for number in (0, 1, 1, 2, 7)] == [False, True, False, True, False]
    assert places.leave(0) == 3
    assert places.leave(3) is None


def test_who_has_no_place_gives_none_back() -> None:
    places = QueueGate(1)
    places.enter(0, wait=True)
    places.enter(1, wait=True)
    assert places.leave(1) is None
    assert places.leave(0) == 1
    assert places.leave(0) is None


def test_a_request_that_is_no_longer_wanted_takes_no_place() -> None:
    client, posted = EngineClient(max_waiting=1), list[Message]()
    inside, cancelled, also, wanted = (
        client.submit(Submission((number,), SamplingParams()), posted.append, wait=True) for number in range(4)
    )
    cancelled.cancel()
    also.cancel()
    client.deliver(Started(0, (1,), None, CachedTokens()))
    assert [said.prompt for said in posted if isinstance(said, Submit)] == [(0,), (3,)]
    assert [*client.under_way.values()] == [inside, wanted]


def test_places_are_never_exceeded_by_many_threads() -> None:
    places, inside, lock = QueueGate(3), SimpleQueue[int](), threading.Lock()
    now, most = 0, 0

    def entered(number: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        inside.put(number)

    def caller(first: int) -> None:
        for number in range(first, first + 200):
            if places.enter(number, wait=True):
                entered(number)

    threads = [threading.Thread(target=caller, args=(200 * each,)) for each in range(4)]
    for thread in threads:
        thread.start()
    left = []
    for _ in range(800):
        left.append(inside.get(timeout=PATIENCE))
        with lock:
            now -= 1
        if (following := places.leave(left[-1])) is not None:
            entered(following)
    for thread in threads:
        thread.join()
    assert sorted(left) == list(range(800))
    assert (now, most) == (0, 3)
