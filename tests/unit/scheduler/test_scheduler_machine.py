"""Whatever is submitted, withdrawn and settled, in any order, each message leaves the scheduler's invariants intact."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rekindle.core.buckets import MAX_STEPS
from rekindle.core.errors import StepTimeout
from rekindle.core.messages import NewWeights, Overdue, Plan, Withdraw
from rekindle.core.request.activations.changes import Changes, changes_of
from rekindle.core.request.activations.steering import Steering
from rekindle.core.request.request import AdapterUse
from rekindle.core.scheduler.planner import StepCounts
from rekindle.testing import VOCAB_SIZE, ByHand, FakeGrammar, expected_tokens
from tests.unit.limits import WAYS
from tests.unit.machines import run, run_deep
from tests.unit.pictures import LAYOUTS, ROWS, Layout, place
from tests.unit.silences import Silences

ROOMY = st.fixed_dictionaries(
    WAYS
    | {
        "page_size": st.sampled_from([16, 32]),
        "num_pages": st.sampled_from([40, 9, 3, 2]),
        "max_running": st.sampled_from([5, 3, 1]),
        "data": st.sampled_from([1, 1, 2, 3]),
        "max_prefill_tokens": st.sampled_from([128, 48, 16]),
        "prefill_chunk": st.sampled_from([512, 32, 16]),
        "max_context": st.sampled_from([None, 100, 33, 20]),
        "prefix_cache": st.booleans(),
        "deterministic": st.booleans(),
        "decode_steps": st.sampled_from([1, 1, 4, 16]),
        "host_cache_bytes": st.just(0),
        "draft": st.sampled_from([None, "lookup", "mtp"]),
    }
).filter(lambda limits: limits["prefill_chunk"] in (512, 16) or limits["max_prefill_tokens"] > 16)
CROWDED = st.fixed_dictionaries(
    WAYS
    | {
        "num_pages": st.integers(5, 9),
        "max_running": st.integers(3, 5),
        "data": st.sampled_from([1, 1, 2]),
        "prefill_chunk": st.sampled_from([512, 16]),
        "prefix_cache": st.booleans(),
        "deterministic": st.booleans(),
        "decode_steps": st.sampled_from([1, 3]),
        "host_cache_bytes": st.just(0),
        "draft": st.sampled_from([None, "lookup", "mtp"]),
    }
)
"""Settings with a pool too small for all requests together."""


CHANGES = tuple(changes_of([Steering(0, [scale])], [], 1, (1, 1)) for scale in (1.0, 2.0))


@dataclass(frozen=True)
class Submission:
    """A request, and the fake model's tokens for it without interference."""

    end_ids: frozenset[int]
    tokens: tuple[int, ...]
    grammar: FakeGrammar | None

    @property
    def end(self) -> str:
        """Why it ends."""
        complete = self.grammar is not None and not self.grammar.may_follow(self.tokens)
        return "stop" if complete or (self.tokens and self.tokens[-1] in self.end_ids) else "length"


class SchedulerMachine(RuleBasedStateMachine):
    """The stories of a scheduler. `CheckedScheduler` checks pages and slots; `FakeStepper`, the bucket of each plan."""

    @initialize(limits=CROWDED | ROOMY)
    def begin(self, limits: dict[str, Any]) -> None:
        limits = limits | {"deterministic": limits["deterministic"] and limits["ticks"] != "combined"}
        self.engine = ByHand(picture_rows=ROWS, **limits)
        self.submissions: list[Submission] = []
        self.withdrawn: set[int] = set()
        self.timed_out: set[int] = set()
        self.silences = Silences()
        self.exchanges = 0
        self.adapters: dict[str, AdapterUse] = {}
        self.uses: list[AdapterUse | None] = []

    def see(self, plans: list[Plan]) -> None:
        running = self.engine.scheduler.table.running
        self.silences.see(plans, [state.request.id for state in running if state.masking.late])

    @rule(
        lengths=st.lists(st.integers(1, 15) | st.integers(1, 70), min_size=1, max_size=4),
        first=st.sampled_from([0, 5]) | st.integers(0, VOCAB_SIZE - 1),  # few prompts give drafts
        max_tokens=st.sampled_from([50, 90, 17, 3, 2, 1, 0]),
        draw=st.sampled_from([0, 0, 7]),
        end_ids=st.just(frozenset()) | st.frozensets(st.integers(0, VOCAB_SIZE - 1), max_size=4),
        prefix_length=st.sampled_from([0, 0, 0, 1, 5, 40]),
        grammar=st.none() | st.builds(FakeGrammar, st.integers(0, 999), st.sampled_from([90, 20, 3])),
        priority=st.sampled_from([0, 0, -1, 1]),
        adapter=st.sampled_from([None, "a", "b"]),
        changes=st.sampled_from([None, None, *CHANGES]),
        layouts=st.just([]) | LAYOUTS,
    )
    def submit(
        self,
        lengths: list[int],
        first: int,
        max_tokens: int,
        draw: int,
        end_ids: frozenset[int],
        prefix_length: int,
        grammar: FakeGrammar | None,
        priority: int,
        adapter: str | None,
        changes: Changes | None,
        layouts: list[Layout],
    ) -> None:
        capacity = self.engine.limits.max_context
        for length in lengths:
            length = min(length, capacity - 1)  # the intake turns longer prompts away
            prompt = [(first + length + 3 * position) % VOCAB_SIZE for position in range(length)]
            prompt, pictures = place(prompt, layouts)
            most = min(max_tokens, capacity - length)
            prefix_length = min(prefix_length, most, capacity - length - 1)
            output_prefix = [(first + 5 * place) % VOCAB_SIZE for place in range(prefix_length)]
            if grammar is not None:  # or it would be turned away
                output_prefix = list(expected_tokens(prompt, prefix_length, grammar=grammar))
            options: Any = {"draw": draw, "end_ids": end_ids, "begun": output_prefix, "grammar": grammar}
            own: Any = {"priority": priority, "changes": changes, "pictures": pictures}
            use = self.adapters.get(adapter or "")
            self.see(self.engine.admit(len(self.submissions), prompt, max_tokens, adapter=use, **own, **options))
            self.uses.append(use)
            self.submissions.append(Submission(end_ids, expected_tokens(prompt, most, **options), grammar))

    @precondition(lambda self: self.engine.in_flight)
    @rule(ticks=st.sampled_from([1, 4, 20]))
    def settle(self, ticks: int) -> None:
        while ticks and self.engine.in_flight:
            self.see(self.engine.settle())
            ticks -= 1

    @precondition(lambda self: self.engine.advancing)
    @rule(masks=st.sampled_from([1, 2, 99]))
    def advance(self, masks: int) -> None:
        self.see(self.engine.settle_advance(masks))

    @precondition(lambda self: self.engine.cutting)
    @rule()
    def cut(self) -> None:
        self.see(self.engine.settle_cut())

    @precondition(lambda self: self.submissions)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        request_id = data.draw(st.integers(0, len(self.submissions)))  # also ended requests, and one that never was
        ended = request_id in self.engine.ends
        self.see(self.engine.say(Withdraw(request_id)))
        if request_id < len(self.submissions) and not ended:
            assert self.engine.ends[request_id] == "cancelled"
            self.withdrawn.add(request_id)

    @precondition(lambda self: self.engine.in_flight)
    @rule()
    def find_overdue(self) -> None:
        """Report the oldest tick as overdue: running requests fail now, waiting ones at the second time."""
        running = {state.request.id for state in self.engine.scheduler.table.running}
        self.see(self.engine.say(Overdue(self.engine.in_flight[0].tick, StepTimeout("it hangs"))))
        assert running <= self.engine.rejected.keys()
        self.timed_out |= {number for number, error in self.engine.rejected.items() if isinstance(error, StepTimeout)}

    @rule(name=st.sampled_from(["a", "b"]), digest=st.sampled_from(["one", "two", "three"]))
    def swap_adapter(self, name: str, digest: str) -> None:
        """Put an adapter into a slot without requests; the device asserts no read of a page of another one."""
        busy = {use.slot for number, use in enumerate(self.uses) if use and number not in self.engine.ends}
        free = {0, 1, 2} - busy - {use.slot for use in self.adapters.values()}
        if free:
            self.adapters[name] = AdapterUse(name, min(free), digest)
            self.engine.put_adapter(min(free), digest)

    @rule()
    def lose_device(self) -> None:
        self.engine.lose_device()

    @precondition(lambda self: not self.engine.limits.one_shape)
    @rule()
    def keep_requests_over_new_weights(self) -> None:
        """Go on with other weights; the fake device asserts no read of a page from the former ones."""
        self.exchanges += 1
        self.see(self.engine.say(NewWeights(self.exchanges, [], "keep")))

    @invariant()
    def the_device_is_never_idle_while_somebody_could_run(self) -> None:
        if len(self.engine.ends) < len(self.submissions):
            assert self.engine.in_flight or self.engine.advancing or self.engine.cutting
        assert len(self.engine.in_flight) <= self.engine.limits.depth

    @invariant()
    def tokens_so_far_are_those_of_the_request_alone(self) -> None:
        for request_id, submission in enumerate(self.submissions):
            tokens = self.engine.tokens[request_id]
            assert tuple(tokens) == submission.tokens[: len(tokens)]

    @invariant()
    def alternate_ticks_pass_over_nobody_twice(self) -> None:
        assert self.engine.limits.ticks == "prefill-first" or self.silences.longest <= 1

    @invariant()
    def who_is_deterministic_never_loses_its_pages(self) -> None:
        stats = self.engine.scheduler.stats
        assert not self.engine.limits.one_shape or stats.device_losses or not stats.preemptions

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.drain()
        stats = self.engine.scheduler.stats
        assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)
        assert stats.ended == len(self.engine.ends) == len(self.submissions)
        assert self.engine.weights_used == list(range(1, self.exchanges + 1))
        for request_id, submission in enumerate(self.submissions):
            tokens, end = self.engine.tokens[request_id], self.engine.ends[request_id]
            refused = self.engine.limits.one_shape and request_id in self.engine.rejected
            rejected = refused or request_id in self.timed_out
            assert (end == "cancelled") == (request_id in self.withdrawn or rejected)
            if end != "cancelled":
                assert tuple(tokens) == submission.tokens
                assert end == submission.end


@pytest.fixture(autouse=True)
def _as_many_steps_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepCounts, "choose", lambda self, rows, alone: MAX_STEPS)


def test_no_order_of_messages_breaks_the_scheduler() -> None:
    run(SchedulerMachine, stories=40, steps=25)


@pytest.mark.deep
def test_no_order_of_very_many_messages_breaks_the_scheduler() -> None:
    run_deep(SchedulerMachine, stories=2000, steps=60)
