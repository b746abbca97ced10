"""The router gives each request to one lane and passes each answer on once, whatever comes in whatever order."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rekindle.assembly.routing.router import Router
from rekindle.core.messages import (
    Admit,
    CacheSaved,
    CacheSaving,
    FromLane,
    KeepWeights,
    Message,
    NewWeights,
    Output,
    Outputs,
    Rejected,
    SaveCache,
    Started,
    Stopped,
    ToLane,
    WeightsKept,
    WeightsUsed,
    Withdraw,
)
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.settings.route import ROUTES, Choose, LaneLoad
from rekindle.testing import fake_limits
from tests.bench.routing import LOADS, simulated
from tests.unit.machines import run, run_deep

PAGE = 16
SLOTS = 3
LIMITS = fake_limits(page_size=PAGE, max_running=SLOTS)


def request(number: int, prompt: Sequence[int], *, hold: bool = False, namespace: str = "") -> Request:
    return Request(number, tuple(prompt), SamplingParams(), frozenset(), 4096, namespace=namespace, hold=hold)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens in the common whole pages of two prompts."""
    pages = 0
    while (end := (pages + 1) * PAGE) <= min(len(one), len(other)) and one[:end] == other[:end]:
        pages += 1
    return pages * PAGE


@dataclass
class Lane:
    """A lane as the router sees it: it caches its computed prompts, and computes prompts bit by bit."""

    cached: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    uncomputed: dict[int, int] = field(default_factory=dict)
    overdue: bool = False

    def uncached(self, request: Request) -> int:
        lengths = [common(prompt, request.prompt[:-1]) for name, prompt in self.cached if name == request.namespace]
        return len(request.prompt) - max(lengths, default=0)

    def remaining(self, request_id: int) -> int | None:
        return self.uncomputed.get(request_id)


@dataclass
class Entry:
    """A request as the machine knows it."""

    request: Request
    lane: int
    reckoned: int
    computed: bool = False
    ended: bool = False
    started: bool = False
    withdrawn: bool = False


class RouterMachine(RuleBasedStateMachine):
    """The stories of a router, next to its rules in plain words: tokens are compared, not hashes."""

    @initialize(lanes=st.integers(2, 4))
    def begin(self, lanes: int) -> None:
        self.lanes = [Lane() for _ in range(lanes)]
        self.router = Router(self.lanes, "prefix", LIMITS)
        self.entries: dict[int, Entry] = {}
        self.held_prefixes: dict[int, Entry] = {}

    def say(self, message: Message) -> list[Message]:
        messages = list(self.router.handle(message))
        self.router.check()
        return messages

    def load(self, number: int, of: Request) -> tuple[bool, int, int, int, int]:
        lane = self.lanes[number]
        own = [entry for entry in self.entries.values() if entry.lane == number and not entry.ended]
        waiting = [entry for entry in own if not entry.computed]
        coming = [
            common(entry.request.prompt, of.prompt[:-1]) for entry in waiting if entry.request.namespace == of.namespace
        ]
        uncached = min(lane.uncached(of), len(of.prompt) - max(coming, default=0))
        pending = sum(min(entry.reckoned, lane.uncomputed.get(entry.request.id, entry.reckoned)) for entry in waiting)
        total = sum(entry.lane == number for entry in self.entries.values())
        full = len(own) >= SLOTS
        return full, pending + uncached, len(own), total, number

    def holders(self, of: Request) -> set[int]:
        """Return the lanes that hold the longest held prefix of a request."""
        whole = {number: len(entry.request.prompt) // PAGE * PAGE for number, entry in self.held_prefixes.items()}
        matching = {
            number: size
            for number, size in whole.items()
            if size
            and self.held_prefixes[number].request.namespace == of.namespace
            and of.prompt[:size] == self.held_prefixes[number].request.prompt[:size]
        }
        return {self.held_prefixes[number].lane for number, size in matching.items() if size == max(matching.values())}

    @rule(
        parts=st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=5),
        rest=st.integers(0, PAGE - 1),
        hold=st.booleans(),
        namespace=st.sampled_from(["", "", "a"]),
    )
    def admit(self, parts: list[int], rest: int, hold: bool, namespace: str) -> None:
        prompt = [part for part in parts for _ in range(PAGE)] + [9] * rest
        new = request(len(self.entries), prompt, hold=hold, namespace=namespace)
        loads = {number: self.load(number, new) for number in range(len(self.lanes))}
        if able := {number: load for number, load in loads.items() if not self.lanes[number].overdue}:
            loads = able
        pinned = [number for number in self.holders(new) if number in loads and not loads[number][0]]
        (to,) = self.say(Admit(new))
        assert isinstance(to, ToLane)
        assert to.message == Admit(new)
        assert to.lane == min(pinned or loads, key=loads.__getitem__)
        self.entries[new.id] = Entry(new, to.lane, max(1, loads[to.lane][1] - self.pending(to.lane)))

    @rule(data=st.data(), overdue=st.booleans())
    def hang_or_go_on(self, data: st.DataObject, overdue: bool) -> None:
        data.draw(st.sampled_from(self.lanes)).overdue = overdue

    def pending(self, number: int) -> int:
        lane = self.lanes[number]
        waiting = [
            entry for entry in self.entries.values() if entry.lane == number and not entry.ended and not entry.computed
        ]
        return sum(min(entry.reckoned, lane.uncomputed.get(entry.request.id, entry.reckoned)) for entry in waiting)

    def of(self, data: st.DataObject, *, computed: bool | None = None) -> Entry:
        able = [each for each in self.entries.values() if not each.ended and computed in (None, each.computed)]
        return data.draw(st.sampled_from(able))

    @property
    def under_way(self) -> bool:
        return any(not entry.ended for entry in self.entries.values())

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def compute_a_part(self, data: st.DataObject) -> None:
        entry = self.of(data)
        if not entry.computed:
            uncomputed = self.lanes[entry.lane].uncomputed
            uncomputed[entry.request.id] = data.draw(st.integers(0, uncomputed.get(entry.request.id, entry.reckoned)))

    def up(self, entry: Entry, message: Message) -> None:
        """Send a message from the lane of a request; the router passes it on as it is."""
        assert self.say(FromLane(entry.lane, message)) == [message]

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def give_a_token(self, data: st.DataObject) -> None:
        entry = self.of(data)
        if not entry.started:
            self.up(entry, Started(entry.request.id, entry.request.prompt, 0, CachedTokens()))
            entry.started = True
        self.computed(entry)
        self.up(entry, Outputs((Output(entry.request, (5,), None),)))

    def computed(self, entry: Entry) -> None:
        entry.computed = True
        self.lanes[entry.lane].uncomputed.pop(entry.request.id, None)
        self.lanes[entry.lane].cached.append((entry.request.namespace, entry.request.prompt))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), how=st.sampled_from(["stop", "length", "cancelled", "rejected"]))
    def end(self, data: st.DataObject, how: str) -> None:
        entry = self.of(data)
        if how == "rejected":
            self.up(entry, Rejected(entry.request.id, ValueError("no")))
        elif entry.request.hold and how != "cancelled":
            self.computed(entry)
            self.up(entry, Outputs((Output(entry.request, (), "held"),)))
            if not entry.withdrawn:
                self.held_prefixes[entry.request.id] = entry
        else:
            self.up(entry, Outputs((Output(entry.request, (5,), how),)))  # type: ignore[arg-type]
        entry.ended = True
        self.lanes[entry.lane].uncomputed.pop(entry.request.id, None)

    @rule(number=st.integers(0, 30), stop=st.booleans())
    def withdraw(self, number: int, stop: bool) -> None:
        entry = self.entries.get(number)
        message = Stopped(number, 1) if stop else Withdraw(number)
        alive = entry is not None and (not entry.ended or (number in self.held_prefixes and not stop))
        assert self.say(message) == ([ToLane(entry.lane, message)] if alive and entry else [])
        if not stop:
            self.held_prefixes.pop(number, None)
            if entry is not None:
                entry.withdrawn = True

    @invariant()
    def the_router_keeps_nothing_of_what_has_ended(self) -> None:
        if hasattr(self, "router"):
            expected = {number for number, each in self.entries.items() if not each.ended}
            assert set(self.router._entries) == expected
            assert set(self.router._held_prefixes) == set(self.held_prefixes)


def test_stories_of_a_router() -> None:
    run(RouterMachine, 40, 30)


@pytest.mark.deep
def test_stories_of_a_router_deep() -> None:
    run_deep(RouterMachine, 2000, 60)


class TicketMachine(RuleBasedStateMachine):
    """The stories of questions to all lanes: each caller is answered once, and lanes end with the same weights."""

    @initialize(lanes=st.integers(2, 4))
    def begin(self, lanes: int) -> None:
        self.router = Router([Lane() for _ in range(lanes)], "prefix", LIMITS)
        self.inbox: list[list[Message]] = [[] for _ in range(lanes)]
        self.waiting: list[list[NewWeights]] = [[] for _ in range(lanes)]
        self.weights = ["old"] * lanes
        self.used: list[list[int]] = [[] for _ in range(lanes)]
        self.open: dict[int, str] = {}
        self.answers: dict[int, Message] = {}
        self.tickets = 0

    def say(self, message: Message) -> None:
        for reply in self.router.handle(message):
            match reply:
                case ToLane(lane, inner):
                    self.inbox[lane].append(inner)
                case WeightsUsed(ticket) | WeightsKept(ticket) | CacheSaved(ticket):
                    assert ticket not in self.answers, "a caller is answered twice"
                    self.answers[ticket] = reply
                case CacheSaving():
                    assert reply.pages <= reply.total
                case _:
                    raise AssertionError(reply)

    @rule()
    def ask_for_weights(self) -> None:
        self.tickets += 1
        self.open[self.tickets] = "weights"
        names = [[f"{self.tickets}"] for _ in self.inbox]
        self.say(NewWeights(self.tickets, names))

    @precondition(lambda self: any(what == "weights" for what in self.open.values()))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from([each for each, what in self.open.items() if what == "weights"]))
        self.open[ticket] = "given up"
        if ticket not in self.answers:
            self.say(KeepWeights(ticket))

    @rule()
    def ask_to_save(self) -> None:
        self.tickets += 1
        self.open[self.tickets] = "save"
        self.say(SaveCache(self.tickets))

    @precondition(lambda self: any(self.inbox))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        self.take_from(data.draw(st.sampled_from([lane for lane, waits in enumerate(self.inbox) if waits])))

    def take_from(self, lane: int) -> None:
        match message := self.inbox[lane].pop(0):
            case NewWeights():
                self.waiting[lane].append(message)
            case KeepWeights(ticket):
                pending = [new for new in self.waiting[lane] if new.ticket == ticket]
                self.waiting[lane] = [new for new in self.waiting[lane] if new.ticket != ticket]
                for _ in pending:
                    self.say(FromLane(lane, WeightsKept(ticket)))
            case SaveCache(ticket):
                self.say(FromLane(lane, CacheSaving(ticket, 1, 3)))
                self.say(FromLane(lane, CacheSaved(ticket, 3, lane != 1)))

    @precondition(lambda self: any(self.waiting))
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        self.use_in(data.draw(st.sampled_from([lane for lane, waits in enumerate(self.waiting) if waits])))

    def use_in(self, lane: int) -> None:
        new = self.waiting[lane].pop(0)
        self.weights[lane] = new.weights[0]
        self.used[lane].append(new.ticket)
        self.say(FromLane(lane, WeightsUsed(new.ticket, len(self.used[lane]))))

    def teardown(self) -> None:
        if not hasattr(self, "router"):
            return
        while any(self.inbox) or any(self.waiting):
            for lane in range(len(self.inbox)):
                if self.inbox[lane]:
                    self.take_from(lane)
                elif self.waiting[lane]:
                    self.use_in(lane)
        assert set(self.answers) == set(self.open), "a caller waits for ever"
        assert len({frozenset(used) for used in self.used}) == 1, "lanes have had other weights"
        assert len(set(self.weights)) == 1, "lanes end with other weights"
        for ticket, answer in self.answers.items():
            if isinstance(answer, CacheSaved):
                assert (answer.pages, answer.complete) == (3 * len(self.inbox), False)
            elif self.open[ticket] == "weights":
                assert isinstance(answer, WeightsUsed)
        tickets = vars(self.router._tickets)
        assert not tickets["_exchanges"], "weights are held that nobody waits for"
        assert not tickets["_saving"]


def test_stories_of_questions_to_all_lanes() -> None:
    run(TicketMachine, 60, 30)


@pytest.mark.deep
def test_stories_of_questions_to_all_lanes_deep() -> None:
    run_deep(TicketMachine, 2000, 60)


# Routes


def given_to(route: str | Choose, prompts: Sequence[Sequence[int]], lanes: int = 3) -> list[int]:
    """Return the lane of each request; no lane computes anything."""
    router = Router([Lane() for _ in range(lanes)], route, LIMITS)
    messages = [next(iter(router.handle(Admit(request(number, prompt))))) for number, prompt in enumerate(prompts)]
    return [each.lane for each in messages if isinstance(each, ToLane)]


def test_named_routes() -> None:
    alone = [[number] * 5 for number in range(7)]
    assert given_to("round-robin", alone) == [0, 1, 2, 0, 1, 2, 0]
    assert given_to("shortest-queue", [[1] * 500, [2], [3], [4], [5]]) == [0, 1, 2, 0, 1]
    assert given_to("prefix", [[1] * 500, [2], [3], [4], [5], [6], [7], [8]]) == [0, 1, 2, 1, 2, 1, 2, 0]


def test_a_burst_of_one_prefix_is_computed_once_in_a_lane_until_another_is_as_soon() -> None:
    prefix = [1] * 10 * PAGE
    assert given_to("prefix", [[*prefix, number] for number in range(4)], lanes=2) == [0, 1, 0, 1]
    assert given_to("prefix", [prefix, [7] * 9 * PAGE, [*prefix, 1], [*prefix, 2]], lanes=2) == [0, 1, 0, 0]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_a_function_sees_every_lane_and_chooses(choices: list[int]) -> None:
    loads: list[Sequence[LaneLoad]] = []

    def choose(request: Request, lanes: Sequence[LaneLoad]) -> int:
        loads.append(lanes)
        return choices[request.id]

    prompts = [[number] * 20 for number in range(len(choices))]
    assert given_to(choose, prompts, lanes=4) == choices
    assert [sum(load.in_flight for load in lanes) for lanes in loads] == list(range(len(choices)))
    assert [sum(load.pending for load in lanes) for lanes in loads] == [20 * count for count in range(len(choices))]
    assert all(load.uncached == 20 for lanes in loads for load in lanes)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda request, lanes: 3, r"it must return one of the numbers \[0, 1, 2\], and returned 3"),
        (lambda request, lanes: True, "returned True"),
        (lambda request, lanes: lanes[7], "IndexError"),
        (lambda request, lanes: sys.exit(3), "SystemExit: 3"),
    ],
)
def test_a_route_that_fails_is_told_once_and_requests_go_on(wrong: Choose, message: str) -> None:
    with pytest.warns(RuntimeWarning, match="(?s)the route .*failed: .*" + message) as warned:
        assert given_to(wrong, [[1] * 500, [2], [3], [4]]) == [0, 1, 2, 1]
    assert len(warned) == 1


def lane_of(router: Router, number: int, prompt: Sequence[int]) -> int:
    """Admit a request, and return its lane."""
    (to,) = router.handle(Admit(request(number, prompt)))
    assert isinstance(to, ToLane)
    return to.lane


@pytest.mark.parametrize("route", [*ROUTES, lambda request, lanes: lanes[0].lane, lambda request, lanes: 0])
def test_a_stuck_lane_comes_last_under_every_route_until_its_tick_ends(route: str | Choose) -> None:
    lanes = [Lane(overdue=True), Lane()]
    router = Router(lanes, route, LIMITS)
    assert [lane_of(router, number, [number] * 400) for number in range(4)] == [1] * 4, "its own queue is empty"
    lanes[1].overdue = True
    assert lane_of(router, 4, [4] * 400) == 0, "both are stuck, so the route chooses"
    lanes[0].overdue = False
    assert lane_of(router, 5, [5] * 400) == 0


def test_a_held_prefix_in_a_stuck_lane_is_computed_in_another() -> None:
    lanes = [Lane(), Lane()]
    router = Router(lanes, "prefix", LIMITS)
    prefix = request(0, [1] * 3 * PAGE, hold=True)
    router.handle(Admit(prefix))
    list(router.handle(FromLane(0, Outputs((Output(prefix, (), "held"),)))))
    lanes[0].overdue = True
    assert lane_of(router, 1, [*prefix.prompt, 5]) == 1
    lanes[0].overdue = False
    assert lane_of(router, 2, [*prefix.prompt, 6]) == 0


@pytest.mark.wide
@pytest.mark.parametrize(("load", "least"), [("system prompts", 0.86), ("growing chats", 0.76)])
def test_the_default_finds_prefixes_where_others_do_not_and_nobody_waits_longer(load: str, least: float) -> None:
    results = {route: simulated(route, LOADS[load], 3000) for route in ROUTES}
    hits = {route: round(figures.hit_rate, 2) for route, figures in results.items()}
    assert hits["prefix"] >= max(least, hits["round-robin"], hits["shortest-queue"])
    waits = {route: mean(figures.first_tokens) for route, figures in results.items()}
    assert waits["prefix"] == min(waits.values())


def test_a_held_prefix_pins_those_who_begin_with_it_while_its_lane_has_a_slot() -> None:
    lanes = [Lane(), Lane()]
    router = Router(lanes, "prefix", LIMITS)
    prefix = request(0, [1] * 3 * PAGE, hold=True)
    router.handle(Admit(prefix))
    list(router.handle(FromLane(0, Outputs((Output(prefix, (), "held"),)))))
    lanes[0].cached.append(("", prefix.prompt))
    messages = [
        list(router.handle(Admit(request(number, [*prefix.prompt, *[number] * 500])))) for number in range(1, SLOTS + 2)
    ]
    assert [each.lane for (each,) in messages if isinstance(each, ToLane)] == [0] * SLOTS + [1]


def test_a_function_is_not_asked_where_a_held_prefix_pins() -> None:
    calls: list[int] = []

    def choose(request: Request, lanes: Sequence[LaneLoad]) -> int:
        calls.append(len(lanes))
        return 0

    lanes = [Lane(), Lane()]
    router = Router(lanes, choose, LIMITS)
    prefix = request(0, [1] * 3 * PAGE, hold=True)
    router.handle(Admit(prefix))
    list(router.handle(FromLane(0, Outputs((Output(prefix, (), "held"),)))))
    assert router.handle(Admit(request(1, [*prefix.prompt, 5]))) == [ToLane(0, Admit(request(1, [*prefix.prompt, 5])))]
    router.handle(Admit(request(2, [9] * 20)))
    assert calls == [2, 2]


def test_a_prefix_that_was_let_go_before_it_was_held_pins_nobody() -> None:
    router = Router([Lane(), Lane()], "prefix", LIMITS)
    prefix = request(0, [1] * 3 * PAGE, hold=True)
    router.handle(Admit(prefix))
    router.handle(Withdraw(0))
    list(router.handle(FromLane(0, Outputs((Output(prefix, (), "held"),)))))
    assert not router._held_prefixes


def test_what_is_given_of_an_output_is_told_before_the_prompt_is_computed() -> None:
    lanes = [Lane(), Lane()]
    router = Router(lanes, "prefix", LIMITS)
    continuation = replace(request(0, [1] * 400), output_prefix=(7,))
    router.handle(Admit(continuation))
    lanes[0].uncomputed[0] = 401
    list(router.handle(FromLane(0, Outputs((Output(continuation, (7,), None),)))))
    (to,) = router.handle(Admit(request(1, [2] * 300)))
    assert isinstance(to, ToLane)
    assert to.lane == 1
