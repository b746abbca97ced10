"""Scheduler and fake device, stepped by hand without an event loop. For `rekindle.testing`."""

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

import numpy as np

from rekindle.assembly.limits.resolution import resolve_limits
from rekindle.core.engine.actors.grammars import Grammars, jumps_on
from rekindle.core.messages import (
    Admit,
    Advance,
    Archive,
    CacheSaved,
    Copy,
    CutPicture,
    Dispatched,
    Drop,
    Fetch,
    Fetched,
    Gathered,
    Message,
    Offload,
    Offloaded,
    Output,
    Outputs,
    PictureCut,
    PictureRead,
    Plan,
    PutAdapter,
    ReadPicture,
    Rejected,
    Started,
    StoredPicture,
    UseWeights,
    WeightsUsed,
    Write,
    Written,
)
from rekindle.core.models.config import DraftHeadConfig, ModelConfig
from rekindle.core.request.activations.changes import Changes
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.picture import Picture
from rekindle.core.request.request import AdapterUse, Pooling, Request, namespace_of
from rekindle.core.request.tokens import EndReason, StateSum
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.scheduler import Scheduler
from rekindle.core.text.masks import SerialMasks
from rekindle.settings.engine import Settings, SettingsOptions
from rekindle.testing.device import FakeStepper, settle_tick
from rekindle.testing.grammar import FakeGrammar, constrained
from rekindle.testing.model import FAKE_MODEL
from rekindle.testing.tiers import FakeDiskTier, FakeHostTier


class CheckedScheduler(Scheduler):
    """Scheduler with a check of its invariants after every message."""

    def handle(self, message: Message) -> list[Message]:
        """Handle a message, and check the scheduler's state."""
        messages = super().handle(message)
        self.check()
        return messages


class ByHand:
    """A scheduler and the fake device without a loop: ticks and copies stay in flight until settled explicitly.

    Attributes:
        limits: the limits of the engine.
        scheduler: the scheduler.
        in_flight: dispatched ticks, oldest first.
        offloading, fetching: copies on their way to the host tier and from it, oldest first.
        writing: pages on their way to disk, oldest first.
        host_tier, disk_tier: the tiers below the device.
        advancing: messages to the grammars, oldest first.
        cutting: images to cut into patches, oldest first.
        grammars: the grammars.
        tokens: the tokens of each request so far.
        ends: the end reason of each finished request, in order.
        states: the sums of hidden states of each request, in order.
        messages: messages to callers other than tokens and ends, in order.

    Args:
        disk_tier: a tier filled by an earlier scheduler; None for an empty one.
        model: the fake model, with states or without.
        picture_rows: tokens of images in the buffer of embeddings.
        settings: as in `rekindle.open`.
    """

    def __init__(
        self,
        disk_tier: FakeDiskTier | None = None,
        model: ModelConfig = FAKE_MODEL,
        picture_rows: int = 0,
        **settings: Unpack[SettingsOptions],
    ):
        whole_images = picture_rows > 0 and model.images_both_ways
        self.limits = replace(fake_limits(model, **settings), picture_rows=picture_rows, whole_images=whole_images)
        self.scheduler = CheckedScheduler(self.limits)
        self.disk_tier = disk_tier or FakeDiskTier()
        self.scheduler.restore(self.disk_tier.stored())
        self.advancing: deque[Advance] = deque()
        self.cutting: deque[CutPicture] = deque()
        self.pictures: dict[bytes, Any] = {}  # stored embeddings
        self.grammars = Grammars(jumps_on("gpu", self.limits), SerialMasks())
        self.host_tier = FakeHostTier(
            self.limits.data * self.limits.pool.host_pages, self.disk_tier, self.limits.pool.state_pages
        )
        self.in_flight: deque[Dispatched] = deque()
        self.offloading: deque[Gathered] = deque()
        self.fetching: deque[tuple[Fetch, Fetched]] = deque()
        self.writing: deque[Write] = deque()
        self.tokens: defaultdict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, EndReason] = {}
        self.states: defaultdict[int, list[StateSum]] = defaultdict(list)
        self.messages: list[Message] = []
        self._stepper = FakeStepper(self.limits)

    @property
    def started(self) -> list[int]:
        """The requests in the order of their start."""
        return [each.request_id for each in self.messages if isinstance(each, Started)]

    @property
    def rejected(self) -> dict[int, Exception]:
        """The error of each rejected request."""
        return {each.request_id: each.error for each in self.messages if isinstance(each, Rejected)}

    @property
    def weights_used(self) -> list[int]:
        """The tickets of new weights in use."""
        return [each.ticket for each in self.messages if isinstance(each, WeightsUsed)]

    @property
    def asleep(self) -> bool:
        """True if the device has neither weights nor pages."""
        return next((each.asleep for each in reversed(self.messages) if isinstance(each, WeightsUsed)), False)

    @property
    def cache_saved(self) -> list[CacheSaved]:
        """The replies to callers of a save of the cache to disk."""
        return [each for each in self.messages if isinstance(each, CacheSaved)]

    def say(self, message: Message) -> list[Plan]:
        """Send a message to the scheduler, and dispatch and return the resulting plans."""
        replies = self.scheduler.handle(message)
        for answer in replies:
            match answer:
                case Plan() | Offload() | UseWeights():
                    self._dispatch(answer)
                case Advance():
                    self.advancing.append(answer)
                case CutPicture():
                    self.cutting.append(answer)
                case ReadPicture(digest):
                    for reply in self._stepper.handle(answer):
                        assert isinstance(reply, PictureRead)
                        self.pictures[digest] = np.concatenate(reply.pieces)[: reply.tokens]
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
                case Outputs(outputs):
                    self._take(outputs)
                case _:
                    self.messages.append(answer)
        return [answer for answer in replies if isinstance(answer, Plan)]

    def _take(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            request_id = output.request.id
            assert request_id not in self.ends, "output for a finished request"
            self.tokens[request_id] += output.token_ids
            if output.states is not None:
                self.states[request_id].append(output.states)
            if output.end is not None:
                self.ends[request_id] = output.end

    def _dispatch(self, message: Plan | Offload | UseWeights) -> None:
        for answer in self._stepper.handle(message):
            match answer:
                case Gathered():
                    self.offloading.append(answer)
                case Dispatched():
                    self.in_flight.append(answer)
                case WeightsUsed():
                    self.messages.append(answer)

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
        begun: Sequence[int] = (),
        pooling: Pooling | None = None,
        grammar: FakeGrammar | None = None,
        priority: int = 0,
        adapter: AdapterUse | None = None,
        changes: Changes | None = None,
        pictures: Sequence[Picture] = (),
    ) -> list[Plan]:
        """Add a request to the waiting queue, with `begun` as the beginning of its output."""
        params = SamplingParams(max_tokens=max_tokens, temperature=float(draw > 0), seed=draw, priority=priority)
        request = Request(request_id, tuple(prompt), params, frozenset(end_ids), self.limits.max_context)
        request = replace(request, hold=hold, output_prefix=tuple(begun), pooling=pooling)
        own = namespace_of(namespace, adapter, changes)
        request = replace(request, namespace=own, adapter=adapter, changes=changes, pictures=tuple(pictures))
        return self.say(Admit(request if grammar is None else constrained(request, grammar)))

    def put_adapter(self, slot: int, digest: str) -> None:
        """Put an adapter with this digest into a slot of the device."""
        self._stepper.handle(PutAdapter(0, slot, digest))

    def settle(self) -> list[Plan]:
        """Settle the oldest tick in flight."""
        return self.say(settle_tick(self.in_flight.popleft()))

    def settle_advance(self, most: int = 2**30) -> list[Plan]:
        """Let the grammars handle the oldest message, with at most `most` masks; no plans if it expects no answer."""
        advance = self.advancing.popleft()
        remaining = iter(range(most - 1))
        reply = self.grammars.advance(advance, lambda: next(remaining, None) is None)
        return self.say(reply) if advance.answer_ids else []

    def settle_cut(self, *, ok: bool = True) -> list[Plan]:
        """Settle the oldest image to cut, with stored embeddings if any; without `ok`, its file is damaged."""
        message = self.cutting.popleft()
        digest, outcome = message.picture.digest, message.picture.patches() if ok else ValueError("a damaged file")
        if ok and message.is_first_tower and digest in self.pictures:
            outcome = StoredPicture(self.pictures[digest])
        return self.say(PictureCut(message.request_id, digest, outcome))

    def settle_offload(self, *, ok: bool = True) -> list[Plan]:
        """Settle the oldest copy to the host tier; without `ok`, none of its pages is stored."""
        gathered = self.offloading.popleft()
        (offloaded,) = self.host_tier.handle(gathered)
        if not ok:
            self.host_tier.lose([Copy(entry, None) for entry in gathered.entries])
            offloaded = Offloaded(gathered.offload_id, is_stored=False)
        return self.say(offloaded)

    def settle_fetch(self, *, ok: bool = True) -> list[Plan]:
        """Settle the oldest fetch; without `ok`, all of its copies are bad."""
        fetch, fetched = self.fetching.popleft()
        if not ok:
            self.host_tier.lose(fetch.copies)
            fetched = Fetched(fetch.request_id, None, fetch.copies)
        return self.say(fetched)

    def settle_write(self, *, ok: bool = True, pruned: Collection[int] = ()) -> list[Plan]:
        """Settle the oldest write; without `ok`, none of its pages is written. Records in `pruned` leave the disk."""
        write = self.writing.popleft()
        (reply,) = self.disk_tier.handle(write) if ok else [Written((None,) * len(write.pages), ())]
        for record in pruned:
            self.disk_tier.contents.pop(record, None)
        return self.say(replace(reply, pruned=tuple(pruned)))

    def lose_device(self) -> None:
        """Lose all pages and slots of the device; the scheduler learns of the loss from its next plan."""
        self._stepper.lose()

    def drain(self) -> None:
        """Settle until nothing is in flight; raise AssertionError if 1,000 rounds produce no token."""
        while self._settle_all():
            before = sum(map(len, self.tokens.values()))
            busy = [self._settle_all() for _ in range(1000)]  # more than any set of running prompts needs
            assert not busy[-1] or sum(map(len, self.tokens.values())) > before, "1000 ticks gave no token"

    def _settle_all(self) -> bool:
        """Settle the oldest item of each kind; return False if nothing was in flight."""
        kinds = (
            (self.fetching, self.settle_fetch),
            (self.offloading, self.settle_offload),
            (self.writing, self.settle_write),
            (self.advancing, self.settle_advance),
            (self.cutting, self.settle_cut),
            (self.in_flight, self.settle),
        )
        busy = [settle for waiting, settle in kinds if waiting]
        for settle in busy:
            settle()
        return bool(busy)


def fake_limits(model: ModelConfig = FAKE_MODEL, **settings: Unpack[SettingsOptions]) -> EngineLimits:
    """Return the limits of the fake model with these settings; with `draft="mtp"`, the model has a draft head.

    A tick has one step unless `decode_steps` is given, so that ticks can be counted.
    """
    settings = SettingsOptions(decode_steps=1) | settings
    model = replace(model, draft_head=DraftHeadConfig(model.layers[0])) if settings.get("draft") == "mtp" else model
    return resolve_limits(Settings(**cast(dict[str, Any], settings)), model, itemsize=4)
