"""No fate of cached pages changes a token, and each page always has one owner.

Pages are cached, held, offloaded, archived, fetched and lost, requests are withdrawn, and the process is killed.
"""

from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rekindle.core.messages import InFlightPolicy, NewWeights, SaveCache, Withdraw
from rekindle.core.policy import Candidate
from rekindle.core.request.activations.changes import Changes, changes_of
from rekindle.core.request.activations.steering import Steering
from rekindle.core.request.request import AdapterUse
from rekindle.core.scheduler.requests import waiting
from rekindle.testing import FAKE_MODEL, FAKE_STATE_MODEL, VOCAB_SIZE, ByHand, FakeDiskTier, expected_tokens
from tests.unit.limits import PAGE, WAYS
from tests.unit.machines import run, run_deep
from tests.unit.pictures import LAYOUTS, ROWS, Layout, place


def newest_first(candidate: Candidate) -> int:
    """Order requests otherwise than by their prefixes."""
    return -candidate.request.id


SETTINGS = st.fixed_dictionaries(
    WAYS
    | {
        "policy": st.sampled_from(["fcfs", "longest-prefix", newest_first]),
        "num_pages": st.integers(6, 20),
        "max_running": st.integers(1, 4),
        "data": st.sampled_from([1, 1, 2]),
        "prefill_chunk": st.sampled_from([512, 16]),
        "host_cache_bytes": st.sampled_from([0, 1, 3, 8, 1000]).map(lambda pages: pages * 128),  # a page has 128 bytes
        "max_context": st.just(5 * PAGE),
        "draft": st.sampled_from([None, None, "lookup", "mtp"]),
    }
)
FAMILIES = [[(7 * family + 3 * place) % VOCAB_SIZE for place in range(5 * PAGE)] for family in range(3)]
"""The documents at the beginning of prompts, for shared pages."""


CHANGES = tuple(changes_of([Steering(0, [scale])], [], 1, (1, 1)) for scale in (1.0, 2.0))
ADAPTERS = (AdapterUse("a", 1, "one"), AdapterUse("b", 0, "two"))


@dataclass(frozen=True)
class Asked:
    """A request, and the fake model's tokens for it."""

    hold: bool
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


class CacheMachine(RuleBasedStateMachine):
    """The stories of a cache. `CheckedScheduler` checks every page, and `FakeStepper` reads it."""

    model = FAKE_MODEL

    @initialize(limits=SETTINGS)
    def begin(self, limits: dict[str, Any]) -> None:
        self.limits = limits
        self.begin_with(FakeDiskTier())

    def begin_with(self, disk: FakeDiskTier) -> None:
        self.engine = ByHand(disk, self.model, ROWS, **self.limits)
        for use in ADAPTERS:
            self.engine.put_adapter(use.slot, use.digest)
        self.requests: list[Asked] = []
        self.withdrawn: set[int] = set()
        self.changes = self.cache_saves = 0
        self.all_went_well = self.engine.limits.pool.host_pages >= 1000  # pages without room are not written

    @rule(
        family=st.integers(0, 2),
        shared=st.sampled_from([5, 16, 17, 32, 40, 48, 64]),
        tail=st.lists(st.integers(0, 2), max_size=12),
        max_tokens=st.sampled_from([1, 3, 20, 50]),
        namespace=st.sampled_from(["", "", "other"]),
        adapter=st.sampled_from([None, *ADAPTERS]),
        changes=st.sampled_from([None, None, *CHANGES]),
        hold=st.sampled_from([False, False, False, True]),
        times=st.sampled_from([1, 1, 3]),
        layouts=st.just([]) | LAYOUTS,
    )
    def submit(
        self,
        family: int,
        shared: int,
        tail: list[int],
        max_tokens: int,
        namespace: str,
        adapter: AdapterUse | None,
        changes: Changes | None,
        hold: bool,
        times: int,
        layouts: list[Layout],
    ) -> None:
        prompt, pictures = place([*FAMILIES[family][:shared], *tail], layouts)
        for _ in range(times):
            most = min(max_tokens, self.engine.limits.max_context - len(prompt))
            self.requests.append(Asked(hold, tuple(prompt), expected_tokens(prompt, most)))
            options: Any = {"namespace": namespace, "hold": hold, "adapter": adapter, "changes": changes}
            options["pictures"] = pictures
            self.engine.admit(len(self.requests) - 1, prompt, max_tokens, **options)

    @precondition(lambda self: self.engine.in_flight)
    @rule(ticks=st.sampled_from([1, 4, 20]))
    def settle(self, ticks: int) -> None:
        while ticks and self.engine.in_flight:
            self.engine.settle()
            ticks -= 1

    @precondition(lambda self: self.engine.cutting)
    @rule()
    def cut(self) -> None:
        self.engine.settle_cut()

    @precondition(lambda self: self.engine.offloading)
    @rule(ok=st.sampled_from([True, True, False]))
    def settle_offload(self, ok: bool) -> None:
        self.all_went_well &= ok
        self.engine.settle_offload(ok=ok)

    @precondition(lambda self: self.engine.fetching)
    @rule(ok=st.sampled_from([True, True, False]))
    def settle_fetch(self, ok: bool) -> None:
        self.engine.settle_fetch(ok=ok)

    @precondition(lambda self: self.engine.writing)
    @rule(ok=st.sampled_from([True, True, True, False]), data=st.data())
    def settle_write(self, ok: bool, data: st.DataObject) -> None:
        """Settle a write; the store may let any records go to make room for others."""
        stored = sorted(self.engine.disk_tier.contents)
        pruned = data.draw(st.lists(st.sampled_from(stored), unique=True, max_size=3)) if stored else []
        self.all_went_well &= ok
        self.engine.settle_write(ok=ok, pruned=pruned)

    @rule()
    def save_cache(self) -> None:
        self.cache_saves += 1
        self.engine.say(SaveCache(self.cache_saves))

    @precondition(lambda self: self.requests)
    @rule()
    def become_idle(self) -> None:
        """Withdraw all prefixes and settle everything, for the archiving of pages."""
        for request_id in range(len(self.requests)):
            if self.requests[request_id].hold:
                self.withdrawn.add(request_id)
                self.engine.say(Withdraw(request_id))
        self.settle_all()

    @precondition(lambda self: self.requests and not self.changes)
    @rule(idle=st.booleans())
    def be_killed_and_start_again(self, idle: bool) -> None:
        """Lose the pages in flight, and find the written ones."""
        if idle:
            self.become_idle()
        self.begin_with(self.engine.disk_tier)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        """Withdraw any request, also a held or ended one."""
        request_id = data.draw(st.integers(0, len(self.requests) - 1))
        self.withdrawn.add(request_id)
        self.engine.say(Withdraw(request_id))

    @rule(in_flight=st.sampled_from(get_args(InFlightPolicy)))
    def change_weights(self, in_flight: InFlightPolicy) -> None:
        """Use new weights; the fake device refuses to read the pages of other weights."""
        self.changes += 1
        self.all_went_well = False
        before = {request_id for request_id in range(len(self.requests)) if request_id not in self.engine.ends}
        self.engine.say(NewWeights(self.changes, [], in_flight))
        if in_flight == "fail":
            self.withdrawn |= {request_id for request_id in before if request_id in self.engine.rejected}

    @rule(in_flight=st.sampled_from(get_args(InFlightPolicy)))
    def sleep(self, in_flight: InFlightPolicy) -> None:
        """Free the device; a wake with the same weights may read their copies, as stamped pages prove."""
        self.changes += 1
        self.all_went_well = False
        before = {request_id for request_id in range(len(self.requests)) if request_id not in self.engine.ends}
        self.engine.say(NewWeights(self.changes, [], in_flight, asleep=True))
        if in_flight == "fail":
            self.withdrawn |= {request_id for request_id in before if request_id in self.engine.rejected}

    @precondition(lambda self: self.engine.asleep)
    @rule()
    def wake(self) -> None:
        self.changes += 1
        self.engine.say(NewWeights(self.changes, [], version=self.engine.scheduler.table.exchanges))

    def settle_all(self) -> None:
        """Settle everything, and wake the engine whenever it has gone to sleep."""
        self.engine.drain()
        while self.engine.asleep:
            self.wake()
            self.engine.drain()

    @rule()
    def lose_device(self) -> None:
        self.all_went_well = False
        self.engine.lose_device()

    @invariant()
    def something_goes_on_while_somebody_waits(self) -> None:
        engine = self.engine
        if len(engine.ends) < len(self.requests) and not engine.asleep:
            assert engine.in_flight or engine.fetching or engine.offloading or engine.cutting
        if len(engine.cache_saved) < self.cache_saves:
            assert engine.offloading or engine.writing

    @invariant()
    def tokens_so_far_are_those_of_no_cache(self) -> None:
        for request_id, request in enumerate(self.requests):
            tokens = tuple(self.engine.tokens[request_id])
            assert tokens == request.tokens[: len(tokens)]
            assert not (request.hold and tokens)

    @invariant()
    def every_prompt_token_is_counted_once(self) -> None:
        stats = self.engine.scheduler.stats
        assert stats.prompt_tokens == sum(
            (stats.device_hit_tokens, stats.host_hit_tokens, stats.disk_hit_tokens, stats.computed_tokens)
        )

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.settle_all()
        for request_id, request in enumerate(self.requests):
            end = self.engine.ends[request_id]
            if request_id in self.engine.rejected and request_id not in self.withdrawn:
                assert any(other.hold for other in self.requests), "turned away though nobody holds pages"
            elif request_id not in self.withdrawn:
                assert end == ("held" if request.hold else "length")
                assert request.hold or tuple(self.engine.tokens[request_id]) == request.tokens
        for request_id in range(len(self.requests)):
            self.engine.say(Withdraw(request_id))
        self.engine.drain()
        assert [saved.ticket for saved in self.engine.cache_saved] == list(range(1, self.cache_saves + 1))
        assert not self.all_went_well or all(saved.complete for saved in self.engine.cache_saved)
        assert self.engine.weights_used == list(range(1, self.changes + 1))
        stats = self.engine.scheduler.stats
        assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)
        pool = self.engine.limits.pool
        assert stats.host_pages + stats.host_states == len(self.engine.host_tier.entries)
        room = stats.host_pages + stats.host_states * pool.state_pages
        assert room <= self.engine.limits.data * pool.host_pages


class StateMachine(CacheMachine):
    """The same stories of a model with states. `FakeStepper` compares each copy with the tokens before it."""

    model = FAKE_STATE_MODEL


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let more requests wait than the scheduler considers."""
    monkeypatch.setattr(waiting, "CONSIDERED", 4)


@pytest.mark.parametrize("machine", [CacheMachine, StateMachine])
def test_no_order_of_messages_breaks_the_cache(machine: type[CacheMachine]) -> None:
    run(machine, stories=40, steps=50)


@pytest.mark.deep
@pytest.mark.parametrize("machine", [CacheMachine, StateMachine])
def test_no_order_of_very_many_messages_breaks_the_cache(machine: type[CacheMachine]) -> None:
    run_deep(machine, stories=400, steps=60)


def test_a_blocked_request_is_told_so_although_copies_for_another_come_and_go() -> None:
    """Tell a story of a past endless loop: one request's copies were staged, released for another and fetched."""
    engine = ByHand(
        ticks="alternate", overlap=False, data=2, policy=newest_first, max_context=5 * PAGE, max_running=3,
        num_pages=10, host_cache_bytes=128_000, page_size=PAGE,
    )  # fmt: skip
    stories: list[tuple[int, bool, int, str, int, list[int], int]] = [
        (0, False, 1, "", 5, [0, 0], 1),
        (1, True, 1, "", 32, [1], 3),
        (0, False, 1, "other", 64, [2, 1, 1, 0, 0, 1, 0, 1], 1),
        (0, False, 20, "", 48, [1, 2, 2, 2], 3),
        (2, True, 3, "", 64, [], 3),
        (0, False, 50, "other", 64, [2, 0, 2], 3),
    ]
    number = 0
    for family, hold, most, namespace, shared, tail, times in stories:
        prompt = [*FAMILIES[family][:shared], *tail]
        for _ in range(times):
            engine.admit(number, prompt, min(most, 5 * PAGE - len(prompt)), namespace=namespace, hold=hold)
            number += 1
    engine.drain()
    assert len(engine.ends) == number
