"""The waiting queue never holds more than its places, and who waits outside enters in order."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from rekindle.session.callers import Places


@pytest.fixture
def entered() -> list[int]:
    return []


@pytest.fixture
def enters(entered: list[int]) -> Callable[[int], Callable[[], bool]]:
    """Makes the `send` of a numbered request that is still wanted."""

    def enter(number: int) -> bool:
        entered.append(number)
        return True

    return lambda number: partial(enter, number)


Enters = Callable[[int], Callable[[], bool]]


def test_a_request_enters_at_once_while_there_is_room(enters: Enters, entered: list[int]) -> None:
    room = Places(2)
    assert room.enter(enters(0), wait=False)
    assert room.enter(enters(1), wait=True)
    assert entered == [0, 1]


def test_who_does_not_wait_is_turned_away_and_never_sent(enters: Enters, entered: list[int]) -> None:
    room = Places(1)
    room.enter(enters(0), wait=False)
    assert not room.enter(enters(1), wait=False)
    room.leave()
    assert entered == [0]


def test_who_waits_enters_in_order_one_for_each_place_given_back(enters: Enters, entered: list[int]) -> None:
    room = Places(1)
    for number in range(4):
        assert room.enter(enters(number), wait=True)
    assert entered == [0]
    for number in range(1, 4):
        room.leave()
        assert entered == list(range(number + 1))
    room.leave()
    assert room.enter(enters(4), wait=False), "the last place is free again"


def test_nobody_overtakes_those_outside(enters: Enters, entered: list[int]) -> None:
    room = Places(1)
    room.enter(enters(0), wait=True)
    room.enter(enters(1), wait=True)
    room.leave()
    assert not room.enter(enters(2), wait=False)
    assert entered == [0, 1]


def test_one_that_is_no_longer_wanted_takes_no_place(enters: Enters, entered: list[int]) -> None:
    room = Places(1)
    assert room.enter(lambda: False, wait=False)
    assert room.enter(enters(0), wait=False), "the unwanted one gave its place back"
    room.enter(lambda: False, wait=True)
    room.enter(enters(1), wait=True)
    room.leave()
    assert entered == [0, 1]


def test_places_are_never_exceeded_by_many_threads() -> None:
    room, lock, arrived = Places(3), threading.Lock(), threading.Semaphore(0)
    inside, most, total = 0, 0, 0

    def send() -> bool:
        nonlocal inside, most, total
        with lock:
            inside += 1
            total += 1
            most = max(most, inside)
        arrived.release()
        return True

    def leave() -> None:
        nonlocal inside
        with lock:
            inside -= 1
        room.leave()

    def caller() -> None:
        for _ in range(200):
            room.enter(send, wait=True)

    threads = [threading.Thread(target=caller) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(800):
        arrived.acquire()
        leave()
    for thread in threads:
        thread.join()
    assert (total, inside, most) == (800, 0, 3)
