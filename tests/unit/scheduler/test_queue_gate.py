"""The waiting queue never holds more than its places, and callers outside enter in order."""

import threading
from queue import SimpleQueue

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rekindle.client.engine_client import EngineClient
from rekindle.client.queue_gate import LEVELS, OVERTAKING, QueueGate
from rekindle.client.submission import Submission
from rekindle.core.errors import QueueFull
from rekindle.core.messages import Message, Started, Submit
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.params import SamplingParams
from tests.unit.machines import run
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
    inside, cancelled, also, last = (
        client.submit(Submission((number,), SamplingParams()), posted.append, wait=True) for number in range(4)
    )
    cancelled.cancel()
    also.cancel()
    client.deliver(Started(0, (1,), None, CachedTokens()))
    assert [message.prompt for message in posted if isinstance(message, Submit)] == [(0,), (3,)]
    assert [*client.under_way.values()] == [inside, last]


def test_an_urgent_request_enters_a_queue_that_is_full_of_others() -> None:
    places = QueueGate(2)
    assert [places.enter(number, priority=5, wait=True) for number in range(4)] == [True, True, False, False]
    places.check_room(-5)
    assert [places.enter(number, priority=-5, wait=False) for number in (4, 5)] == [True, True]
    with pytest.raises(QueueFull):
        places.check_room(-5)
    with pytest.raises(QueueFull):
        places.enter(6, priority=-5, wait=False)
    assert places.leave(4) is None, "two others are inside, and one that is urgent"
    assert [places.leave(5), places.leave(0), places.leave(1)] == [None, 2, 3]


def test_those_outside_enter_by_priority_and_then_in_order() -> None:
    places = QueueGate(1)
    priorities = [0, 3, 1, 3, 1, 2, 1]
    for number, priority in enumerate(priorities):
        places.enter(number, priority=priority, wait=True)
    assert places.give_up(4)
    order = [0]
    while (following := places.leave(order[-1])) is not None:
        order.append(following)
    assert order == [0, 2, 6, 5, 1, 3]


def test_urgent_requests_without_end_do_not_starve_those_outside() -> None:
    """Check this with a scheduler that starts urgent requests, until the others have waited too long."""
    places = QueueGate(2)
    for number in range(5):
        places.enter(number, priority=5, wait=True)
    entered = []
    waiting = [0, 1]
    for number in range(5, 5 + 5 * OVERTAKING):
        assert places.enter(number, priority=0, wait=False)
        if number % OVERTAKING == 0:
            entered += [places.leave(waiting.pop(0))]
        entered += [places.leave(number)]
        waiting += [each for each in entered[-2:] if each is not None and each not in waiting and each < 5]
    assert [each for each in entered if each is not None] == [2, 3, 4]


def test_a_queue_has_room_for_several_priorities_and_not_for_any_number() -> None:
    places = QueueGate(2)
    for level in range(LEVELS):
        assert [places.enter(10 * level + each, priority=-level, wait=False) for each in range(2)] == [True, True]
    with pytest.raises(QueueFull):
        places.enter(1000, priority=-LEVELS, wait=False)


def test_who_gives_up_leaves_nothing_behind() -> None:
    places = QueueGate(1)
    for number in range(10 * OVERTAKING):
        places.enter(number, priority=-number, wait=True)
        places.give_up(number)
    assert len(places._outside) == 0
    assert len(places._outside._heap) <= OVERTAKING + 2


class GateMachine(RuleBasedStateMachine):
    """The stories of a gate, next to its rule in plain words."""

    @initialize(most=st.integers(1, 3))
    def begin(self, most: int) -> None:
        self.most, self.gate = most, QueueGate(most)
        self.inside: dict[int, int] = {}
        self.outside: dict[int, int] = {}
        self.number = 0

    def fits(self, priority: int) -> bool:
        ahead = sum(other <= priority for other in self.inside.values())
        return len(self.inside) < self.most or (ahead < self.most and len(self.inside) < LEVELS * self.most)

    @rule(priority=st.integers(-2, 2), wait=st.booleans())
    def enter(self, priority: int, wait: bool) -> None:
        self.number += 1
        if not self.fits(priority) and not wait:
            with pytest.raises(QueueFull):
                self.gate.enter(self.number, priority=priority, wait=False)
            return
        assert self.gate.enter(self.number, priority=priority, wait=wait) == self.fits(priority)
        (self.inside if self.fits(priority) else self.outside)[self.number] = priority

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.number))
        was_inside = self.inside.pop(number, None) is not None
        first = min(self.outside, key=lambda each: (self.outside[each], each), default=None)
        if not was_inside or first is None or not self.fits(self.outside[first]):
            first = None
        else:
            self.inside[first] = self.outside.pop(first)
        assert self.gate.leave(number) == first

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.number))
        assert self.gate.give_up(number) == (self.outside.pop(number, None) is not None)

    @invariant()
    def nobody_waits_outside_who_could_enter(self) -> None:
        if hasattr(self, "gate"):
            assert not any(map(self.fits, self.outside.values()))


def test_stories_of_a_gate() -> None:
    run(GateMachine, 60, 40)


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
    exits = []
    for _ in range(800):
        exits.append(inside.get(timeout=PATIENCE))
        with lock:
            now -= 1
        if (following := places.leave(exits[-1])) is not None:
            entered(following)
    for thread in threads:
        thread.join()
    assert sorted(exits) == list(range(800))
    assert (now, most) == (0, 3)
