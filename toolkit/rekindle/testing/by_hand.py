"""A scheduler and the fake device, stepped by hand, without an event loop."""

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Unpack

from rekindle.config import Settings, SettingsOptions
from rekindle.messages import (
    Admit,
    Archive,
    CacheSaved,
    Copy,
    Dispatched,
    Drop,
    Fetch,
    Fetched,
    Gathered,
    Message,
    Offload,
    Offloaded,
    Output,
    Plan,
    Rejected,
    Started,
    UseWeights,
    WeightsUsed,
    Write,
    Written,
)
from rekindle.request import Request, SamplingParams
from rekindle.results import EndReason
from rekindle.scheduler.limits import Limits
from rekindle.scheduler.scheduler import Scheduler
from rekindle.testing.device import FakeDiskTier, FakeHostTier, FakeStepper, settled
from rekindle.testing.model import FAKE_MODEL


class CheckedScheduler(Scheduler):
    """A scheduler that checks its invariants after every message."""

    def handle(self, message: Message) -> list[Message]:
        """As the scheduler's own."""
        said = super().handle(message)
        self.check()
        return said


class ByHand:
    """A scheduler and the fake device without a loop: ticks, saves and fetches stay in flight until they are settled.

    Attributes:
        in_flight: ticks that are dispatched and not settled, oldest first.
        offloading, fetching: what is on its way to the host tier and from it, oldest first.
        writing: what is on its way to disk, oldest first.
        host_tier, disk_tier: what arrived there.
        started: requests in the order in which they left the waiting queue.
        tokens: what each request got so far.
        ends: why those that ended did, in order.
        rejected: what those that were turned away were told.
        weights_used: the tickets of new weights that came into use.
        cache_saved: what callers were told who asked for everything to be on disk.

    Args:
        disk_tier: what an earlier one left on disk; None for an empty one.
        settings: as of `rekindle.open`.
    """

    def __init__(self, disk_tier: FakeDiskTier | None = None, **settings: Unpack[SettingsOptions]):
        self.limits = fake_limits(**settings)
        self.scheduler = CheckedScheduler(self.limits)
        self.disk_tier = disk_tier or FakeDiskTier()
        self.scheduler.restore(self.disk_tier.stored())
        self.host_tier = FakeHostTier(self.limits.host_pages, self.disk_tier)
        self.writing: deque[Write] = deque()
        self.cache_saved: list[CacheSaved] = []
        self.in_flight: deque[Dispatched] = deque()
        self.offloading: deque[Gathered] = deque()
        self.fetching: deque[tuple[Fetch, Fetched]] = deque()
        self.started: list[int] = []
        self.tokens: defaultdict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, EndReason] = {}
        self.rejected: dict[int, Exception] = {}
        self.weights_used: list[int] = []
        self._stepper = FakeStepper(self.limits)

    def say(self, message: Message) -> list[Plan]:
        """Tell the scheduler something; what it plans in answer is dispatched and returned."""
        plans = []
        for answer in self.scheduler.handle(message):
            match answer:
                case Plan() | Offload() | UseWeights():
                    self._dispatch(answer)
                    plans += [answer] if isinstance(answer, Plan) else []
                case Fetch():
                    (fetched,) = self.host_tier.handle(answer)
                    assert isinstance(fetched, Fetched)
                    self.fetching.append((answer, fetched))
                case Archive():
                    (write,) = self.host_tier.handle(answer)
                    assert isinstance(write, Write)
                    self.writing.append(write)
                case Drop():
                    self.host_tier.handle(answer)
                case CacheSaved():
                    self.cache_saved.append(answer)
                case Rejected(request_id, error):
                    self.rejected[request_id] = error
                case Started(request_id):
                    self.started.append(request_id)
                case Output(request, token_ids, end):
                    request_id = request.id
                    assert request_id not in self.ends, "something is said of a request that ended"
                    self.tokens[request_id] += token_ids
                    if end is not None:
                        self.ends[request_id] = end
        return plans

    def _dispatch(self, message: Plan | Offload | UseWeights) -> None:
        for answer in self._stepper.handle(message):
            match answer:
                case Gathered():
                    self.offloading.append(answer)
                case Dispatched():
                    self.in_flight.append(answer)
                case WeightsUsed(ticket):
                    self.weights_used.append(ticket)

    def admit(
        self,
        request_id: int,
        prompt: Sequence[int],
        max_tokens: int = 4,
        *,
        draw: int = 0,
        end_ids: Collection[int] = (),
        namespace: str = "",
        hold: bool = False,
    ) -> list[Plan]:
        """Let a request join the waiting queue."""
        params = SamplingParams(max_tokens=max_tokens, temperature=float(draw > 0), seed=draw)
        request = Request(
            request_id,
            tuple(prompt),
            params,
            frozenset(end_ids),
            self.limits.max_context,
            namespace=namespace,
            hold=hold,
        )
        return self.say(Admit(request))

    def settle(self) -> list[Plan]:
        """Settle the oldest tick in flight."""
        return self.say(settled(self.in_flight.popleft()))

    def settle_offload(self, *, ok: bool = True) -> list[Plan]:
        """Settle the oldest save; if it is not ok, nothing of it was kept."""
        gathered = self.offloading.popleft()
        (saved,) = self.host_tier.handle(gathered)
        if not ok:
            self.host_tier.lose([Copy(entry, None) for entry in gathered.entries])
            saved = Offloaded(gathered.offload_id, kept=False)
        return self.say(saved)

    def settle_fetch(self, *, ok: bool = True) -> list[Plan]:
        """Settle the oldest fetch; if it is not ok, all of its copies are bad."""
        fetch, fetched = self.fetching.popleft()
        if not ok:
            self.host_tier.lose(fetch.copies)
            fetched = Fetched(fetch.request_id, None, fetch.copies)
        return self.say(fetched)

    def settle_write(self, *, ok: bool = True, pruned: Collection[int] = ()) -> list[Plan]:
        """Settle the oldest write; if it is not ok, nothing of it was written. These records leave the disk with it."""
        write = self.writing.popleft()
        (written,) = self.disk_tier.handle(write) if ok else [Written((None,) * len(write.pages), ())]
        for record in pruned:
            self.disk_tier.contents.pop(record, None)
        return self.say(replace(written, pruned=tuple(pruned)))

    def drain(self) -> None:
        """Settle until nothing is in flight, and see that it does not go round in circles."""
        while self._settle_all():
            before = sum(map(len, self.tokens.values()))
            busy = [self._settle_all() for _ in range(1000)]  # more than the prompts of any running set take
            assert not busy[-1] or sum(map(len, self.tokens.values())) > before, "1000 ticks gave no token"

    def _settle_all(self) -> bool:
        """Settle the oldest of each kind; False if there is none."""
        kinds = (
            (self.fetching, self.settle_fetch),
            (self.offloading, self.settle_offload),
            (self.writing, self.settle_write),
            (self.in_flight, self.settle),
        )
        busy = [settle for waiting, settle in kinds if waiting]
        for settle in busy:
            settle()
        return bool(busy)


def fake_limits(**settings: Unpack[SettingsOptions]) -> Limits:
    """Limits of the fake model."""
    return Limits.of(Settings(**settings), FAKE_MODEL, itemsize=4)
