"""Where one lane computes prompts and another generates, every request gets the tokens of one engine, once."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from rekindle.assembly.routing.relay import DECODE, PREFILL, Relay
from rekindle.core.errors import ConfigError, StepTimeout
from rekindle.core.messages import (
    Admit,
    Collected,
    FromLane,
    InFlightPolicy,
    KeepWeights,
    Message,
    NewWeights,
    Output,
    Outputs,
    PagesStaged,
    Rejected,
    SendPages,
    StagePages,
    Started,
    Stopped,
    TakePages,
    ToLane,
    WeightsKept,
    WeightsUsed,
    Withdraw,
)
from rekindle.core.request.constraint import Allowed, Constrained
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.settings.engine import Settings, SettingsOptions
from rekindle.testing import FakeGrammar, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.unit.asks import ASK, Asks, check
from tests.unit.machines import run, run_deep

APART: SettingsOptions = {"prefill": "cpu:0", "decode": "cpu:0", "prefill_from": 16, "page_size": 16}
PROMPTS = [[number] * size for number, size in enumerate((5, 16, 17, 40, 64, 150))]
pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def apart() -> Iterator[Session]:
    with fake_session(**APART | {"max_running": 4}) as session:
        yield session


@pytest.fixture(scope="module")
def crowded() -> Iterator[Session]:
    small: SettingsOptions = {"max_running": 3, "num_pages": 12, "prefill_chunk": 16, "max_context": 150}
    with fake_session(**APART | small) as session:
        yield session


@pytest.fixture(scope="module")
def alone() -> Iterator[Session]:
    with fake_session(page_size=16) as session:
        yield session


async def test_tokens_are_those_of_one_lane_and_pages_that_move_are_counted() -> None:
    with fake_session(**APART) as session:
        answers = await session.generate(token_ids=PROMPTS, max_tokens=9, ignore_eos=True)
        assert [each.token_ids for each in answers] == [expected_tokens(prompt, 9) for prompt in PROMPTS]
        prefill, decode = session.stats.lanes
        assert decode.moved_pages == sum(len(prompt) // 16 for prompt in PROMPTS[1:])
        assert prefill.moved_pages == 0
        assert prefill.generated_tokens == len(PROMPTS) - 1, "first tokens are drawn where prompts are computed"
        assert decode.computed_tokens <= 16 * len(PROMPTS)
        again = await session.generate(token_ids=PROMPTS, max_tokens=9, ignore_eos=True)
        assert [each.token_ids for each in again] == [each.token_ids for each in answers]
        assert session.stats.lanes[1].moved_pages == decode.moved_pages, "what is there does not move again"


def check_all(alone: Session, others: list[Session], asks: Asks) -> None:
    for session in others:
        check(alone, session, asks)
        assert session.stats.scheduler.free_pages == session.stats.scheduler.pages


@settings(max_examples=10)
@given(st.lists(ASK, min_size=1, max_size=5))
def test_any_mix_is_the_same(alone: Session, apart: Session, crowded: Session, asks: Asks) -> None:
    check_all(alone, [apart, crowded], asks)


@pytest.mark.deep
@settings(max_examples=200)
@given(st.lists(ASK, min_size=1, max_size=8))
def test_any_of_many_mixes_is_the_same(alone: Session, apart: Session, crowded: Session, asks: Asks) -> None:
    check_all(alone, [apart, crowded], asks)


async def test_texts_constraints_prefixes_and_branches(byte_tokenizer: Tokenizer) -> None:
    with fake_session(fake_loaded_engine(fake_limits(page_size=16), tokenizer=byte_tokenizer)) as alone:
        limits = fake_limits(**APART)
        loaded_engine = fake_loaded_engine(limits, tokenizer=byte_tokenizer)
        loaded_engine = replace(
            loaded_engine,
            deployment=replace(loaded_engine.deployment, apart=True),
            settings=replace(loaded_engine.settings, prefill_from=16),
        )
        with fake_session(loaded_engine) as apart:
            for prompt in ("a" * 20, "abcd" * 30):
                for options in (
                    {"stop": ["a"], "max_tokens": 40},
                    {"regex": "[ab]{3,30}c", "max_tokens": 40},
                    {"choice": ["yes", "no"]},
                    {"n": 3, "temperature": 1.0, "seed": 2, "max_tokens": 10},
                ):
                    mine, theirs = await apart.generate(prompt, **options), await alone.generate(prompt, **options)
                    same = (mine, theirs) if options.get("n") else ([mine], [theirs])
                    for one, other in zip(*same, strict=True):
                        assert (one.text, one.token_ids, one.stopped_by) == (
                            other.text,
                            other.token_ids,
                            other.stopped_by,
                        )
                branched = []
                for session in (apart, alone):
                    first = await session.generate(prompt, max_tokens=20, ignore_eos=True, logprobs=2)
                    assert first.logprobs
                    branched.append((await first.branch(7, first.logprobs[7].top[1].token_id)).token_ids)
                    async with await session.prefix(prompt) as prefix:
                        branched.append((await prefix.generate("more", max_tokens=7)).token_ids)
                assert branched[:2] == branched[2:]
            assert apart.stats.lanes[1].moved_pages > 0


async def test_weights_are_exchanged_between_requests_and_saves_are_joined() -> None:
    with fake_session(**APART) as session:
        before = await session.generate(token_ids=PROMPTS, max_tokens=3)
        await session.save()
        await session.update_weights({})
        assert session.stats.scheduler.cached_pages == 0
        assert [each.token_ids for each in await session.generate(token_ids=PROMPTS, max_tokens=3)] == [
            each.token_ids for each in before
        ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefill": "cpu:0"}, "prefill and decode go together: give decode its devices too, or neither"),
        ({"prefill": "cpu:0", "decode": "cpu:0", "replicas": 2}, "leave out replicas"),
        ({"prefill": "cpu:0", "decode": "cpu:0", "tensor": 1}, "leave out tensor"),
        ({"prefill": "cpu:0", "decode": "cpu:0", "prefix_cache": False}, "leave out prefix_cache=False"),
    ],
)
def test_what_does_not_go_together_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(**options)


# The relay alone

KINDS = ("free", "free", "hold", "held to a grammar")
CONSTRAINED = Constrained(FakeGrammar(0, 100), Allowed())


@dataclass
class Lane:
    """A lane of the machine: its inbox, its requests, and its weights."""

    inbox: list[Message] = field(default_factory=list)
    serves: dict[int, Request] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    waiting: list[NewWeights] = field(default_factory=list)
    staging: list[StagePages] = field(default_factory=list)
    weights: str = "old"
    exchanges: int = 0
    asleep: bool = False
    used: list[WeightsUsed] = field(default_factory=list)
    overdue: bool = False

    def uncached(self, request: Request) -> int:
        return len(request.initial_tokens)

    def remaining(self, request_id: int) -> int | None:
        return None

    def pages_on_device(self, request: Request) -> int:
        return 0


class RelayMachine(RuleBasedStateMachine):
    """The stories of a relay between two lanes with any order of acts."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes = (Lane(), Lane())
        self.relay = Relay(self.lanes[DECODE], 32, 16)
        self.requests: dict[int, Request] = {}
        self.weights: dict[int, str] = {}
        self.got: dict[int, list[int]] = {}
        self.starts: dict[int, int] = {}
        self.ends: dict[int, str] = {}
        self.tickets: dict[int, Message | None] = {}
        self.ways: dict[int, InFlightPolicy] = {}
        self.recalled: set[int] = set()
        self.up: list[FromLane] = []  # what lanes have said, and the relay has not heard
        self.places: dict[int, int] = {}

    @precondition(lambda self: self.up)
    @rule()
    def hear(self) -> None:
        self.say(self.up.pop(0))

    def say(self, message: Message) -> None:
        for reply in self.relay.handle(message):
            match reply:
                case ToLane(lane, inner):
                    self.lanes[lane].inbox.append(inner)
                case Outputs(outputs):
                    for output in outputs:
                        assert output.request.id not in self.ends, "it is told more after its end"
                        self.got[output.request.id] += output.token_ids
                        if output.end is not None:
                            self.ends[output.request.id] = output.end
                case Rejected(request_id):
                    assert request_id not in self.ends
                    self.ends[request_id] = "rejected"
                case Started(request_id):
                    self.starts[request_id] += 1
                case WeightsUsed(ticket) | WeightsKept(ticket):
                    assert self.tickets[ticket] is None, "a caller is answered twice"
                    self.tickets[ticket] = reply
                case _:
                    raise AssertionError(reply)

    @rule(
        size=st.sampled_from([5, 40, 70]), tokens=st.integers(1, 6), kind=st.sampled_from(["", "", "hold", "held to"])
    )
    def admit(self, size: int, tokens: int, kind: str) -> None:
        number = len(self.requests)
        request = Request(
            number,
            (1,) * size,
            SamplingParams(max_tokens=tokens),
            frozenset(),
            4096,
            hold=kind == "hold" and size > 16,
            constrained=CONSTRAINED if kind == "held to a grammar" else None,
        )
        self.requests[number], self.got[number], self.starts[number] = request, [], 0
        self.say(Admit(request))

    @precondition(lambda self: any(lane.inbox for lane in self.lanes))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        self.handle(data.draw(st.sampled_from([number for number, lane in enumerate(self.lanes) if lane.inbox])))

    def handle(self, number: int) -> None:
        lane = self.lanes[number]
        match message := lane.inbox.pop(0):
            case Admit(request, started):
                lane.serves[request.id] = request
                if started:
                    lane.started.add(request.id)
            case Withdraw(request_id) | Stopped(request_id):
                if request_id in lane.serves:
                    self.end(number, request_id, "cancelled" if isinstance(message, Withdraw) else "stop")
            case NewWeights():
                lane.waiting.append(message)
                if message.in_flight == "fail":
                    for request_id in [each for each in lane.serves if each in lane.started]:
                        del lane.serves[request_id]
                        lane.started.remove(request_id)
                        self.up.append(FromLane(number, Rejected(request_id, ValueError("weights"))))
                self.use(number)
            case KeepWeights(ticket):
                matches = [new for new in lane.waiting if new.ticket == ticket]
                lane.waiting = [new for new in lane.waiting if new.ticket != ticket]
                for _ in matches:
                    self.up.append(FromLane(number, WeightsKept(ticket)))
            case SendPages(request, first, exchanges):
                has_pages = exchanges == lane.exchanges and not lane.asleep
                there = len(request.initial_tokens) // 16 - first if has_pages else 0
                pages = (lane.weights,) * there
                self.up.append(FromLane(number, Collected(request.id, pages)))
            case StagePages():
                lane.staging.append(message)
            case TakePages(contents=contents):
                assert {*contents} == {lane.weights}, "pages of other weights are cached"

    @precondition(lambda self: any(lane.staging for lane in self.lanes))
    @rule()
    def stage(self) -> None:
        """Let the host tier copy pages, beside all else."""
        lane = self.lanes[DECODE]
        staged = lane.staging.pop(0)
        lane.inbox.append(TakePages(staged.request, staged.first, staged.contents))
        self.up.append(FromLane(DECODE, PagesStaged(staged.request.id)))

    def use(self, number: int) -> None:
        lane = self.lanes[number]
        while lane.waiting and (
            lane.asleep or lane.waiting[0].in_flight == "keep" or not any(each in lane.started for each in lane.serves)
        ):
            new = lane.waiting.pop(0)
            if lane.asleep:  # requests that were kept over the sleep go on with any weights
                self.ways[new.ticket] = "keep"
            lane.asleep = new.asleep
            if not new.asleep:
                lane.weights, lane.exchanges = new.weights[0], lane.exchanges + 1
            lane.used.append(WeightsUsed(new.ticket, lane.exchanges, new.asleep))

    @rule(number=st.integers(0, 1))
    def tell(self, number: int) -> None:
        """Have a stepper report the use of its weights, before any computation with them."""
        while self.lanes[number].used:
            self.up.append(FromLane(number, self.lanes[number].used.pop(0)))

    def end(self, number: int, request_id: int, end: Any, tokens: tuple[int, ...] = ()) -> None:
        lane = self.lanes[number]
        request = lane.serves.pop(request_id)
        lane.started.discard(request_id)
        self.up.append(FromLane(number, Outputs((Output(request, tokens, end),))))
        self.use(number)

    @property
    def running(self) -> list[tuple[int, int]]:
        return [(number, each) for number, lane in enumerate(self.lanes) for each in lane.serves]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        self.computed(*data.draw(st.sampled_from(self.running)))

    def computed(self, number: int, request_id: int) -> None:
        """Give a request its next token; it starts first, unless its lane waits for new weights."""
        lane, request = self.lanes[number], self.lanes[number].serves[request_id]
        if lane.asleep:
            return
        if request_id not in lane.started:
            if lane.waiting:
                return
            lane.started.add(request_id)
            self.up.append(FromLane(number, Started(request_id, request.prompt, 0, CachedTokens(), lane.exchanges)))
            if request.initial_output:
                self.up.append(FromLane(number, Outputs((Output(request, request.initial_output, None),))))
        self.tell(number)
        if request.hold:
            self.end(number, request_id, "held")
            return
        place = self.places.get(request_id, 0)
        if request.params.max_tokens == place:  # its prompt was to be computed, and nothing more
            self.end(number, request_id, "length")
            return
        before = self.weights.get(request_id, lane.weights)
        self.weights[request_id] = lane.weights
        assert before == lane.weights or self.leads(before, lane.weights), "it goes on with other weights"
        self.places[request_id] = place + 1
        last = place + 1 == request.params.max_tokens
        if last:
            self.end(number, request_id, "length", (place,))
        else:
            self.up.append(FromLane(number, Outputs((Output(request, (place,), None),))))

    def leads(self, before: str, now: str) -> bool:
        """Return True if every exchange between two weights keeps the requests in flight."""
        first, last = (-1 if name == "old" else int(name) for name in (before, now))
        between = [ticket for ticket in self.ways if first < ticket <= last and ticket not in self.withdrawn]
        return first < last and all(self.ways[ticket] == "keep" for ticket in between)

    @property
    def withdrawn(self) -> set[int]:
        return {ticket for ticket, answer in self.tickets.items() if isinstance(answer, WeightsKept)}

    @rule(number=st.integers(0, 20), stop=st.booleans())
    def leave(self, number: int, stop: bool) -> None:
        self.say(Stopped(number, 1) if stop else Withdraw(number))

    @rule(in_flight=st.sampled_from(get_args(InFlightPolicy)))
    def exchange(self, in_flight: InFlightPolicy) -> None:
        ticket = 1000 + len(self.tickets)
        self.tickets[ticket] = None
        self.ways[ticket] = in_flight
        self.say(NewWeights(ticket, [[f"{ticket}"], [f"{ticket}"]], in_flight))

    @rule(in_flight=st.sampled_from(get_args(InFlightPolicy)))
    def sleep(self, in_flight: InFlightPolicy) -> None:
        ticket = 1000 + len(self.tickets)
        self.tickets[ticket] = None
        self.say(NewWeights(ticket, [[], []], in_flight, asleep=True))

    @precondition(lambda self: any(answer is None for answer in self.tickets.values()))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from([each for each, answer in self.tickets.items() if answer is None]))
        self.recalled.add(ticket)
        self.say(KeepWeights(ticket))

    def teardown(self) -> None:
        for _ in range(10_000):
            for number, lane in enumerate(self.lanes):
                if lane.inbox:
                    self.handle(number)
            for number in (PREFILL, DECODE):
                self.tell(number)
            while self.up:
                self.hear()
            if self.lanes[DECODE].staging:
                self.stage()
            for number, request_id in self.running:
                if request_id in self.lanes[number].serves:
                    self.computed(number, request_id)
            if any(lane.inbox or lane.staging or lane.used for lane in self.lanes) or self.up:
                continue
            if all(lane.asleep for lane in self.lanes):
                self.exchange("keep")
            elif not self.running:
                break
        assert set(self.ends) == set(self.requests), "a request never ends"
        assert all(self.tickets.values()), "a caller waits for ever"
        assert self.lanes[PREFILL].weights == self.lanes[DECODE].weights
        for number, request in self.requests.items():
            assert self.got[number] == list(range(len(self.got[number]))), "a token is lost, or comes twice"
            assert self.starts[number] <= 1
            if self.ends[number] == "length":
                assert len(self.got[number]) == request.params.max_tokens
        for ticket, answer in self.tickets.items():
            assert isinstance(answer, WeightsUsed) or ticket in self.recalled
        state = vars(self.relay)
        assert not state["_transfers"]
        assert not state["_exchanges"]
        assert not state["_staging"]


def test_stories_of_a_relay() -> None:
    run(RelayMachine, 60, 40)


@pytest.mark.deep
def test_stories_of_a_relay_deep() -> None:
    run_deep(RelayMachine, 1000, 80)


@pytest.mark.parametrize(("message", "end"), [(Withdraw(0), "cancelled"), (Stopped(0, 1), "stop")])
def test_an_end_that_crosses_the_first_token_ends_the_request(message: Message, end: str) -> None:
    relay = Relay(Lane(), 32, 16)
    request = Request(0, (1,) * 40, SamplingParams(max_tokens=9), frozenset(), 4096)
    (to,) = relay.handle(Admit(request))
    assert isinstance(to, ToLane)
    assert isinstance(to.message, Admit)
    list(relay.handle(message))
    (outputs,) = relay.handle(FromLane(PREFILL, Outputs((Output(to.message.request, (5,), "length"),))))
    assert isinstance(outputs, Outputs)
    assert [(output.token_ids, output.end) for output in outputs.outputs] == [((5,), end)]


def test_what_waits_for_a_stuck_tick_fails_with_it() -> None:
    relay = Relay(Lane(), 32, 16)
    request = Request(0, (1,) * 40, SamplingParams(max_tokens=9), frozenset(), 4096)
    (to,) = relay.handle(Admit(request))
    assert isinstance(to, ToLane)
    assert isinstance(to.message, Admit)
    list(relay.handle(FromLane(PREFILL, Outputs((Output(to.message.request, (5,), "length"),)))))
    stuck = StepTimeout("stuck", tick=1, prompt_tokens=1, rows=0, requests=(), seconds=1.0, stacks="")
    replies = list(relay.handle(FromLane(PREFILL, Rejected(7, stuck))))
    assert replies == [Rejected(7, stuck), Rejected(0, stuck)]


def test_the_decode_lane_sleeps_after_the_requests_that_the_prefill_lane_had_begun() -> None:
    relay = Relay(Lane(), 32, 16)
    request = Request(0, (1,) * 40, SamplingParams(max_tokens=9), frozenset(), 4096)
    (to,) = relay.handle(Admit(request))
    assert isinstance(to, ToLane)
    assert isinstance(to.message, Admit)
    list(relay.handle(NewWeights(5, [[], []], "finish", asleep=True)))
    list(relay.handle(FromLane(PREFILL, Outputs((Output(to.message.request, (5,), "length"),)))))
    assert list(relay.handle(FromLane(PREFILL, WeightsUsed(5, 0, asleep=True)))) == []
    admit, sleep = relay.handle(FromLane(PREFILL, Collected(0, ())))
    assert isinstance(admit, ToLane)
    assert isinstance(admit.message, Admit)
    assert sleep == ToLane(DECODE, NewWeights(5, [], "finish", asleep=True))
