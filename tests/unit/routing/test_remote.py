"""Lanes in other processes may be lost at any time: each request gets each of its tokens once, and ends once."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rekindle.assembly.routing.router import MOST_LOSSES, Router
from rekindle.core.errors import ReplicaLost, RequestCancelled
from rekindle.core.messages import (
    Admit,
    CacheSaved,
    Cancel,
    FromLane,
    LaneBack,
    Lost,
    Message,
    NewWeights,
    Outputs,
    Received,
    Rejected,
    RemoteOutput,
    RemoteOutputs,
    ReplicaFound,
    SaveCache,
    Started,
    Stopped,
    Submit,
    ToLane,
    WeightsUsed,
    Withdraw,
)
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.stats import SchedulerStats
from rekindle.replicas.remote import RemoteLane, SentPages
from rekindle.testing import fake_limits
from tests.unit.machines import run, run_deep

PAGE = 16
LIMITS = fake_limits(page_size=PAGE, max_running=3)
STATUS = SimpleNamespace(scheduler=SchedulerStats(), stuck=None)
SCORE = TokenLogprob(1, "", -1.0, 1)


def token(request_id: int, place: int) -> int:
    """Return the token of a request at a place of its output, the same in every replica."""
    return request_id * 1000 + place


def request(number: int, length: int = 20, **params: Any) -> Request:
    return Request(number, (7,) * length, SamplingParams(seed=1, **params), frozenset(), 4096)


@dataclass
class Computed:
    """A request in a replica."""

    submit: Submit
    place: int
    reported: bool
    scores: int


@dataclass
class FakeReplica:
    """A replica from the view of its lane: its messages wait in both directions."""

    inbox: deque[Message] = field(default_factory=deque)
    outbox: deque[Message] = field(default_factory=deque)
    requests: dict[int, Computed] = field(default_factory=dict)
    weights: Any = None
    up: bool = True
    open: bool = True
    life: int = 0
    exchanges: int = 0
    detached: bool = False

    def send(self, message: Message) -> None:
        if self.open:
            self.inbox.append(message)

    def resume(self, life: int) -> None:
        self.open = life == self.life

    def detach(self) -> None:
        self.detached = True

    def look(self, at: Callable[[Any], Any]) -> Any:
        return at([])

    def kill(self) -> None:
        """Lose all state, and all messages under way."""
        self.up, self.open, self.detached = False, False, False
        self.life += 1
        for each in (self.inbox, self.outbox, self.requests):
            each.clear()

    def take(self) -> None:
        """Take the oldest message."""
        match self.inbox.popleft():
            case Submit(request_id) as submit:
                first = max(1, submit.params.prompt_logprobs_from)
                scores = len(submit.prompt) - first if submit.params.prompt_logprobs is not None else 0  # type: ignore[arg-type]
                place = 0 if not submit.started else len(submit.output_prefix.token_ids)
                self.requests[request_id] = Computed(submit, place, False, scores)
            case Cancel(request_id):
                if computed := self.requests.pop(request_id, None):
                    ended = RemoteOutputs((RemoteOutput(request_id, (), "cancelled"),))
                    cancelled = Rejected(request_id, RequestCancelled("it was cancelled"))
                    self.outbox.append(ended if computed.reported else cancelled)
            case Stopped(request_id):
                if self.requests.pop(request_id, None):
                    self.outbox.append(RemoteOutputs((RemoteOutput(request_id, (), "stop"),)))
            case NewWeights(ticket, weights):
                self.weights, self.exchanges = weights, self.exchanges + 1
                self.outbox.append(WeightsUsed(ticket, self.exchanges))
            case SaveCache(ticket):
                self.outbox.append(CacheSaved(ticket, 1, True))

    def compute(self, request_id: int) -> None:
        """Compute a part of a request."""
        computed = self.requests[request_id]
        submit = computed.submit
        if not computed.reported:
            computed.reported = True
            if not submit.started:
                self.outbox.append(Started(request_id, submit.prompt, 1, CachedTokens()))  # type: ignore[arg-type]
                computed.place = len(submit.output_prefix.token_ids)
                prefix = tuple(token(request_id, place) for place in range(computed.place))  # told before all else
                self.outbox += [RemoteOutputs((RemoteOutput(request_id, prefix, None),))] if prefix else []
            return
        if computed.scores:
            some = min(20, computed.scores)
            computed.scores -= some
            self.outbox.append(RemoteOutputs((RemoteOutput(request_id, (), None, prompt_logprobs=(SCORE,) * some),)))
            return
        tokens = (token(request_id, computed.place),)
        computed.place += 1
        end = "length" if computed.place >= (submit.params.max_tokens or 0) else None
        self.outbox.append(RemoteOutputs((RemoteOutput(request_id, tokens, end),)))  # type: ignore[arg-type]
        if end:
            del self.requests[request_id]


@dataclass
class Outcome:
    """The reports about a request, in sum."""

    request: Request
    started: int = 0
    tokens: list[int] = field(default_factory=list)
    scores: int = 0
    end: str | None = None
    withdrawn: bool = False


class Lanes:
    """A router and its remote lanes, with an immediate delivery of their messages."""

    def __init__(self, number: int, limits: EngineLimits = LIMITS):
        self.replicas = [FakeReplica() for _ in range(number)]
        self.lanes = [RemoteLane(each, STATUS, SentPages(100), limits) for each in self.replicas]
        self.router = Router(self.lanes, "prefix", LIMITS)
        self.outcomes: dict[int, Outcome] = {}
        self.answers: list[Message] = []

    def say(self, message: Message) -> None:
        waiting = deque([message])
        while waiting:
            match waiting.popleft():
                case ToLane(lane, inner):
                    waiting += [FromLane(lane, each) for each in self.lanes[lane].handle(inner)]
                case FromLane() | Admit() | Withdraw() | Stopped() | NewWeights() | SaveCache() as order:
                    waiting += self.router.handle(order)
                case report:
                    self.tell(report)
        self.router.check()

    def tell(self, message: Message) -> None:
        match message:
            case Outputs(outputs):
                for output in outputs:
                    outcome = self.outcomes[output.request.id]
                    assert outcome.end is None, "something is told of a request that has ended"
                    outcome.tokens += output.token_ids
                    outcome.scores += len(output.prompt_logprobs)
                    outcome.end = output.end
            case Started(request_id):
                self.outcomes[request_id].started += 1
            case Rejected(request_id, error):
                assert self.outcomes[request_id].end is None
                self.outcomes[request_id].end = type(error).__name__
            case _:
                self.answers.append(message)

    def admit(self, new: Request) -> Outcome:
        outcome = self.outcomes[new.id] = Outcome(new)
        self.say(Admit(new))
        return outcome

    def deliver(self, number: int) -> None:
        """Deliver all messages of a replica."""
        replica = self.replicas[number]
        messages = tuple(replica.outbox)
        replica.outbox.clear()
        self.say(ToLane(number, Received(messages)))

    def lose(self, number: int, *, for_good: bool = False) -> None:
        self.replicas[number].kill()
        self.say(ToLane(number, Lost(ReplicaLost("gone"), for_good)))

    def find(self, number: int) -> None:
        replica, weights = self.replicas[number], self.lanes[number].weights
        replica.up, replica.weights = True, weights
        self.say(ToLane(number, ReplicaFound(replica.life, weights)))

    def run(self, number: int, steps: int) -> None:
        """Have a replica take all, and compute a part of each request so many times."""
        replica = self.replicas[number]
        for _ in range(steps):
            while replica.inbox:
                replica.take()
            for request_id in list(replica.requests):
                replica.compute(request_id)
        self.deliver(number)


class LossMachine(RuleBasedStateMachine):
    """The stories of lost and found replicas."""

    @initialize(number=st.integers(1, 3))
    def begin(self, number: int) -> None:
        self.all = Lanes(number)
        self.ids, self.tickets = count(), count()
        self.issued: list[int] = []

    @rule(
        max_tokens=st.integers(1, 5),
        with_scores=st.booleans(),
        length=st.integers(1, 40),
        prefix_length=st.integers(0, 3),
    )
    def admit(self, max_tokens: int, with_scores: bool, length: int, prefix_length: int) -> None:
        number, scores = next(self.ids), {"prompt_logprobs": 1} if with_scores else {}
        new = request(number, length, max_tokens=max_tokens, **scores)
        prefix = tuple(token(number, place) for place in range(min(prefix_length, max_tokens - 1)))
        self.all.admit(replace(new, output_prefix=prefix))

    @rule(data=st.data(), steps=st.integers(1, 4))
    def run(self, data: st.DataObject, steps: int) -> None:
        up = [number for number, replica in enumerate(self.all.replicas) if replica.up]
        if up:
            self.all.run(data.draw(st.sampled_from(up)), steps)

    @rule(data=st.data(), what=st.sampled_from(["take", "compute", "deliver"]))
    def go_on(self, data: st.DataObject, what: str) -> None:
        number = data.draw(st.integers(0, len(self.all.replicas) - 1))
        replica = self.all.replicas[number]
        if what == "deliver" and replica.outbox:
            self.all.deliver(number)
        elif what == "take" and replica.inbox:
            replica.take()
        elif replica.requests:
            replica.compute(data.draw(st.sampled_from(sorted(replica.requests))))

    @rule(data=st.data())
    def lose_or_find(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.all.replicas) - 1))
        (self.all.lose if self.all.replicas[number].up else self.all.find)(number)

    @precondition(lambda self: any(outcome.end is None for outcome in self.all.outcomes.values()))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        outcome = data.draw(st.sampled_from([outcome for outcome in self.all.outcomes.values() if outcome.end is None]))
        outcome.withdrawn = True
        self.all.say(Withdraw(outcome.request.id))

    @rule(save=st.booleans())
    def ask(self, save: bool) -> None:
        ticket = next(self.tickets)
        self.issued.append(ticket)
        weights = [[f"weights {ticket}"] for _ in self.all.replicas]
        self.all.say(SaveCache(ticket) if save else NewWeights(ticket, weights))

    def teardown(self) -> None:
        if not hasattr(self, "all"):
            return
        for number, replica in enumerate(self.all.replicas):
            if not replica.up:
                self.all.find(number)
        while any(replica.inbox or replica.requests or replica.outbox for replica in self.all.replicas):
            for number in range(len(self.all.replicas)):
                self.all.run(number, 1)
        for outcome in self.all.outcomes.values():
            expected = [token(outcome.request.id, place) for place in range(outcome.request.params.max_tokens or 0)]
            assert outcome.end is not None, "a request is lost"
            assert outcome.tokens == expected[: len(outcome.tokens)], "tokens are lost, or told twice"
            assert outcome.end in ("length", "ReplicaLost", "WeightsChanged") or outcome.withdrawn
            if outcome.end == "length":
                assert outcome.tokens == expected
                assert outcome.started == 1
                has_scores = outcome.request.params.prompt_logprobs is not None
                assert outcome.scores == (len(outcome.request.prompt) - 1 if has_scores else 0)
        assert Counter(answer.ticket for answer in self.all.answers) == Counter(self.issued)  # type: ignore[attr-defined]
        assert len({str(replica.weights) for replica in self.all.replicas}) == 1, "replicas have other weights"


def test_stories_of_lost_replicas() -> None:
    run(LossMachine, 150, 40)


@pytest.mark.deep
def test_many_stories_of_lost_replicas() -> None:
    run_deep(LossMachine, 3000, 60)


@pytest.fixture
def two() -> Lanes:
    return Lanes(2)


def where(lanes: Lanes) -> list[list[int]]:
    """Return the requests in each replica, sent and not ended."""
    for replica in lanes.replicas:
        while replica.inbox:
            replica.take()
    return [sorted(replica.requests) for replica in lanes.replicas]


def test_a_lost_request_goes_on_in_another_replica_after_the_tokens_that_were_told(two: Lanes) -> None:
    outcome = two.admit(request(0, max_tokens=5))
    two.run(0, 3)
    two.replicas[0].compute(0)  # a token that nobody hears of
    two.lose(0)
    (submit,) = [message for message in two.replicas[1].inbox if isinstance(message, Submit)]
    assert submit.started
    assert submit.output_prefix.token_ids == (token(0, 0), token(0, 1))
    two.run(1, 5)
    assert (outcome.end, outcome.tokens, outcome.started) == ("length", [token(0, place) for place in range(5)], 1)


@pytest.mark.parametrize("prefix", [(), (token(0, 0),)])
def test_scores_of_a_prompt_are_told_once(two: Lanes, prefix: tuple[int, ...]) -> None:
    outcome = two.admit(replace(request(0, 50, max_tokens=5, prompt_logprobs=1), output_prefix=prefix))
    two.run(0, 3)  # of the three parts of the scores, two have come
    two.lose(0)
    two.run(1, 6)
    two.find(0)
    two.lose(1)
    two.run(0, 9)
    assert (outcome.end, outcome.scores, len(outcome.tokens)) == ("length", 49, 5)


def test_requests_with_tokens_fail_where_they_cannot_go_on_as_they_were() -> None:
    lanes = Lanes(2)
    older = lanes.admit(request(0, max_tokens=5))
    lanes.run(0, 2)
    fresh = lanes.admit(request(1, max_tokens=5))
    lanes.say(NewWeights(0, [["a"], ["b"]]))
    for number in (0, 1):
        lanes.lose(number)
        lanes.find(number)
    assert older.end == "WeightsChanged"
    for _ in range(8):
        lanes.run(0, 1)
        lanes.run(1, 1)
    assert fresh.end == "length"
    lanes = Lanes(2, replace(LIMITS, one_shape=True))
    older = lanes.admit(request(0, max_tokens=5))
    lanes.run(0, 2)
    lanes.lose(0)
    assert older.end == "ReplicaLost"


def test_requests_that_new_weights_keep_go_on_elsewhere_when_their_replica_is_lost_meanwhile(two: Lanes) -> None:
    outcome = two.admit(request(0, max_tokens=5))
    two.run(0, 2)
    two.say(NewWeights(0, [["a"], ["b"]], "keep"))
    two.lose(0)
    two.run(1, 6)
    assert (outcome.end, outcome.tokens) == ("length", [token(0, place) for place in range(5)])


def test_a_request_that_loses_too_many_replicas_fails_and_says_why(two: Lanes) -> None:
    outcome = two.admit(request(0, max_tokens=5))
    for _ in range(MOST_LOSSES):
        number = next(number for number, requests in enumerate(where(two)) if requests)
        two.lose(number)
        two.find(number)
        assert outcome.end is None
    two.lose(next(number for number, requests in enumerate(where(two)) if requests))
    assert outcome.end == "ReplicaLost"


def test_requests_wait_for_a_replica_to_come_back(two: Lanes) -> None:
    before = two.admit(request(0, max_tokens=2))
    two.lose(0)
    two.lose(1)
    after, stopped = two.admit(request(1, max_tokens=2)), two.admit(request(2, max_tokens=2))
    two.say(Stopped(2, 0))
    assert stopped.end == "stop"
    two.find(1)
    two.run(1, 4)
    assert before.end == after.end == "length"


def test_requests_fail_once_no_replica_is_left(two: Lanes) -> None:
    waiting = two.admit(request(0))
    two.lose(0, for_good=True)
    assert waiting.end is None
    two.lose(1, for_good=True)
    assert waiting.end == two.admit(request(1)).end == "ReplicaLost"


def test_a_request_that_was_told_to_end_ends_with_its_replica(two: Lanes) -> None:
    withdrawn, stopped = two.admit(request(0, max_tokens=5)), two.admit(request(1, max_tokens=5))
    for number in (0, 1):
        two.run(number, 2)
    two.say(Withdraw(0))
    two.say(Stopped(1, 1))
    two.lose(0)
    two.lose(1)
    assert (withdrawn.end, stopped.end) == ("cancelled", "stop")


def test_a_prompt_goes_where_its_prefix_was_sent_and_a_found_replica_is_taken_to_have_none(two: Lanes) -> None:
    one, other = request(0, 64), replace(request(1, 64), prompt=(8,) * 64)
    assert [lane.uncached(one) for lane in two.lanes] == [64, 64]
    two.admit(one)
    two.run(0, 2)
    two.admit(replace(other, id=1))
    assert where(two) == [[0], [1]]
    again = replace(one, id=2)
    assert [lane.uncached(again) for lane in two.lanes] == [64 - 48, 64]
    two.lose(0)
    two.find(0)
    assert [lane.uncached(again) for lane in two.lanes] == [64, 64 - 48]


def test_pages_of_an_output_are_cached_too_and_the_latest_ones_stay(two: Lanes) -> None:
    outcome = two.admit(request(0, 20, max_tokens=30))
    two.run(0, 40)
    chat = Request(1, (7,) * 20 + tuple(outcome.tokens) + (9,) * 10, SamplingParams(), frozenset(), 4096)
    assert two.lanes[0].uncached(chat) == 60 - 48
    pages = SentPages(3)
    pages.add([1, 2])
    pages.add([3, 4])
    assert (pages.prefix([1, 2]), pages.prefix([3, 4])) == (1, 2)  # the last of the older prefix has left


def test_a_replica_that_comes_back_with_former_weights_is_given_up_until_it_has_the_new_ones(two: Lanes) -> None:
    two.lose(0)
    former = two.lanes[0].weights
    two.say(NewWeights(0, [["a"], ["b"]]))
    two.replicas[0].up = True
    two.say(ToLane(0, ReplicaFound(1, former)))
    assert two.replicas[0].detached
    two.admit(request(0))
    assert where(two) == [[], [0]]
    two.find(0)
    assert two.lanes[0].weights == ["a"]


def test_what_is_placed_before_a_second_loss_is_heard_of_reaches_no_later_life(two: Lanes) -> None:
    for _ in range(2):
        two.replicas[0].kill()
    two.say(ToLane(0, Lost(ReplicaLost("gone"))))
    two.say(ToLane(0, ReplicaFound(1)))
    two.admit(request(1))
    assert two.lanes[0].uncached(request(2)) < 20, "its router has placed it there"
    assert where(two) == [[], []], "and nothing was sent"
    two.say(ToLane(0, Lost(ReplicaLost("gone again"))))
    assert where(two) == [[], [1]]
    two.find(0)
    two.admit(request(2))
    assert where(two) == [[2], [1]]


def test_a_lost_replica_saves_nothing_and_says_so(two: Lanes) -> None:
    two.say(SaveCache(0))
    two.lose(0)
    assert two.answers == []
    two.run(1, 1)
    assert two.answers == [CacheSaved(0, 1, False)]


def test_a_lane_that_is_found_says_so_and_takes_no_strangers(two: Lanes) -> None:
    lane = two.lanes[0]
    list(lane.handle(Lost(ReplicaLost("gone"))))
    assert list(lane.handle(ReplicaFound(0))) == [LaneBack()]
    with pytest.raises(TypeError, match="the remote lane takes no"):
        list(lane.handle(WeightsUsed(0, 1)))


def test_a_replica_that_is_stuck_comes_last_by_its_latest_status(two: Lanes) -> None:
    stuck = SimpleNamespace(scheduler=SchedulerStats(), stuck="stuck in tick 3 for 10.00 s")
    two.say(ToLane(0, Received((), stuck)))
    for number in range(3):
        two.admit(request(number))
    assert where(two) == [[], [0, 1, 2]]
    two.say(ToLane(0, Received((), STATUS)))
    two.admit(request(3))
    assert where(two) == [[3], [0, 1, 2]]
