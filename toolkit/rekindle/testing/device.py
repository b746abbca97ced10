"""Fake device: pages and slots as in the real step, filled with token ids. For `rekindle.testing`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from time import sleep
from typing import Any
from zlib import crc32

import numpy as np

from rekindle.core.buckets import QUERY_BLOCK, Bucket, smallest
from rekindle.core.concurrency.mailbox import Mailbox
from rekindle.core.messages import (
    AdapterPut,
    Chunk,
    Collect,
    Collected,
    Dispatched,
    Gathered,
    Message,
    Offload,
    Onload,
    PictureRead,
    Plan,
    PutAdapter,
    PutPages,
    ReadPicture,
    Row,
    SampleRow,
    ScoreRow,
    SegmentEmbedding,
    Settled,
    StateLost,
    StoredPicture,
    Summing,
    SumRow,
    UseWeights,
    WeightsUsed,
)
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.page import NULL_PAGE
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import StateSum, TokenLogprob
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.testing.grammar import VOCAB_SIZE
from rekindle.testing.model import banned_tokens, draw_of, next_token, score_of, state_of
from rekindle.testing.pictures import picture_stamp
from rekindle.testing.tiers import FakeState

TICK_SECONDS = 0.00005
"""The wait for the fake device in each tick, in seconds.

Without a wait, the engine's thread can reacquire the GIL before another thread wakes up, and callers starve for
seconds.
"""


MOST_STAMPS = 1 << 20
"""Numbers for the pairs of an adapter and changes."""


WRONG_GUESSES = 3
"""One guess of the fake draft head in so many is wrong."""


@dataclass(frozen=True, slots=True)
class FakeOutputs:
    """Outputs of a tick.

    Attributes:
        values: the new tokens, then the sums of hidden states.
        proposals: the guess of the draft head for each request with new tokens.
        among: the possible alternatives by request, where they are the allowed tokens alone.
    """

    values: Sequence[Any]
    proposals: Mapping[int, int]
    among: Mapping[int, Collection[int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Slot:
    token: int = 0
    length: int = 0
    request: Request | None = None
    allowed: Any = None
    state: list[int | None] = field(default_factory=list)
    stamp: int = 0
    page_table: dict[int, int] = field(default_factory=dict)
    following: tuple[int, int, int] | None = None  # after a chunk: the request, the position and the announced token


class FakeStepper:
    """Stand-in for the real stepper, with assertions on the bucket, the pages and the slots of each plan.

    The content of a page is its token ids, and so is that of a state: all tokens of the request so far.
    """

    def __init__(self, limits: EngineLimits):
        self._limits = limits
        self._pages: dict[int, list[int | None]] = {}
        self._slots = _slots(limits)
        self._weights = 0
        self._losses = 0
        self._asleep = False
        self._adapters: dict[int, str] = {}
        self._embedded: dict[int, int] = {}  # the stamp of the image in each row of the buffer

    def lose(self) -> None:
        """Lose the pages and the slots, as after a failed program; the reply to the next plan reports the loss."""
        self._losses += 1
        self._pages = {}
        self._slots = _slots(self._limits)

    def handle(self, message: Message) -> list[Message]:
        """Answer Plan with Dispatched, Offload with Gathered, Collect with Collected, UseWeights with WeightsUsed.

        Answer PutAdapter with AdapterPut; its content is the digest of the adapter. Answer ReadPicture with
        PictureRead.
        """
        match message:
            case Plan():
                return [self._dispatch(message)]
            case ReadPicture(digest, rows, losses):
                if losses < self._losses:
                    return []
                return [PictureRead(digest, (np.array([[self._embedded[row]] for row in rows.tolist()]),), len(rows))]
            case Offload():
                if message.losses < self._losses:
                    return [Gathered(message.offload_id, message.entries, ())]
                copies = (*map(self._gather, message.pages), *map(self._gather_state, message.slots))
                return [Gathered(message.offload_id, message.entries, copies)]
            case Collect(request_id, pages, losses):
                pages = pages if losses == self._losses else ()
                return [Collected(request_id, tuple(map(self._gather, pages)))]
            case PutPages(pages, contents, losses):
                if losses == self._losses:
                    self._scatter(Onload(contents, pages))
                return []
            case UseWeights(ticket, _, version, asleep):
                self._weights = version  # pages are stamped with this number
                self._asleep = asleep
                if asleep:
                    self.lose()
                return [WeightsUsed(ticket, version, asleep)]
            case StateLost(losses):
                if losses == self._losses:
                    self.lose()
                return []
            case PutAdapter(ticket, slot, content):
                assert 0 <= slot < self._limits.adapter_slots, "there is no such slot for an adapter"
                self._adapters[slot] = content
                return [AdapterPut(ticket)]
        raise wrong_receiver("stepper", message)

    def _dispatch(self, plan: Plan) -> Dispatched:
        """Write all pages of a tick before reading any, as the device does."""
        assert not self._asleep, "a plan for a device without weights"
        self._check(plan)
        if plan.losses < self._losses:
            return Dispatched(plan.tick, (), (), None, self._losses)
        for onload in plan.onloads:
            self._scatter(onload)
        for embedding in plan.embeddings:
            self._embed(embedding)
        slots: list[_Slot] = []
        for chunk in plan.chunks:
            slot = self._write_chunk(chunk)
            if chunk.completes is not None:
                slot.length, slot.request = chunk.start + len(chunk.tokens), chunk.completes
                context = self._context(slot)
                slot.allowed = chunk.allowed
                assert (*chunk.completes.prompt, *chunk.generated) == tuple(context), "the tokens are not the request's"
                slots.append(slot)
        tokens = [self._sample(slot) for slot in slots]
        for of_slot in _by_slot(plan.rows):
            draws = self._verify(of_slot)
            tokens += draws
            slots += [self._slots[of_slot[0].slot]] * len(draws)
        for step in range(1, plan.steps):
            rows = [row for row in plan.rows if step < row.steps]
            again = [self._write_row(row, step) for row in rows]
            tokens += [self._sample(slot) for slot in again]
            slots += again
        places = tuple(
            SampleRow(slot.request.id, row, slot.request.params.logprobs, plan.steps)
            for row, slot in enumerate(slots)
            if slot.request is not None
        )
        score_rows = tuple(ScoreRow(c.request_id, 0, c.scoring) for c in plan.chunks if c.scoring is not None)
        outputs: list[Any] = [*tokens]
        sum_rows: list[SumRow] = []
        for chunk in plan.chunks:
            if chunk.summing is not None:
                sum_rows.append(SumRow(chunk.request_id, len(outputs), chunk.summing.count))
                outputs.append(_sum(chunk, chunk.summing))
        size = 0 if plan.chunks else max(self._check_group(plan, g)[1] for g in range(self._limits.data))
        guesses = {}
        if self._limits.proposes:
            guesses = {slot.request.id: self._guess(slot) for slot in slots if slot.request is not None}
        requests = [slot.request for slot in slots if slot.request is not None]
        among = {
            request.id: request.params.allowed_token_ids
            for request in requests
            if request.params.logprobs_of == "allowed" and request.params.allowed_token_ids is not None
        }
        results = FakeOutputs(outputs, guesses, among)
        return Dispatched(plan.tick, places, score_rows, results, self._losses, tuple(sum_rows), size)

    def _verify(self, rows: Sequence[Row]) -> list[int]:
        """Return the draws of a slot's rows, up to the first one that is not the draft after it."""
        slot = self._slots[rows[0].slot]
        assert [row.offset for row in rows] == list(range(len(rows))), "the rows of a draft are not in order"
        length, drafts = slot.length, [*(row.draft for row in rows[1:]), None]
        for row in rows:  # all pages of a tick are written before any is read
            slot.token = row.draft if row.offset else slot.token
            self._write_row(row, 0)
        draws: list[int] = []
        for place, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
            slot.length, slot.allowed = length + place + 1, row.allowed
            draws.append(self._sample(slot))
            if draws[-1] != draft:
                break
        del slot.state[slot.length :]
        return draws

    def _sample(self, slot: _Slot) -> int:
        assert slot.request is not None, "a row of a slot that no prompt completed"
        assert slot.allowed is not None or slot.request.constrained is None, "a constraint is not applied"
        assert slot.allowed is None or slot.request.may_force, "a mask without a constraint or a budget"
        context = self._context(slot)
        banned = banned_tokens(slot.request, context, slot.allowed)
        slot.token = next_token(context, draw_of(slot.request.params), banned)
        return slot.token

    def _guess(self, slot: _Slot) -> int:
        """Return the draft head's guess of the token after the newest one, sometimes a wrong one."""
        assert slot.request is not None
        context = [*self._context(slot), slot.token]
        right = next_token(context, draw_of(slot.request.params), banned_tokens(slot.request, context))
        return (right + (len(context) % WRONG_GUESSES == 0)) % VOCAB_SIZE

    def _gather(self, page: int) -> tuple[int, ...]:
        tokens = self._pages.get(page, [])
        content = tuple(token for token in tokens if token is not None)
        assert len(content) == self._limits.pool.page_size, f"page {page} is offloaded before it is full"
        return content

    def _scatter(self, onload: Onload) -> None:
        assert len(set(onload.pages)) == len(onload.pages), "a page is onloaded twice"
        for page, content in zip(onload.pages, onload.staged, strict=True):
            self._check_page(page)
            self._pages[page] = list(content)
        if onload.slot is not None:
            assert isinstance(onload.state, FakeState), "a page is onloaded in place of a state"
            self._slots[onload.slot].state = list(onload.state.tokens)

    def _gather_state(self, slot: int) -> FakeState:
        tokens = self._slots[slot].state
        assert self._limits.pool.state_pages, "a state of a model without states"
        assert tokens, "the state of no tokens is copied"
        assert len(tokens) % self._limits.pool.page_size == 0, "a state within a page is copied"
        return FakeState(tuple(tokens))

    def _check(self, plan: Plan) -> None:
        assert plan.chunks or plan.rows or plan.onloads or plan.embeddings, "a plan for nothing"
        assert len(plan.embeddings) <= 1, "two segments of images hold up one tick"
        slots = [chunk.slot for chunk in plan.chunks] + [row.slot for row in plan.rows if not row.offset]
        assert len(set(slots)) == len(slots), "a slot is in one plan twice"
        assert not slots or 0 <= min(slots) <= max(slots) < len(self._slots), "there is no such slot"
        prefill, decode = zip(*(self._check_group(plan, group) for group in range(self._limits.data)), strict=True)
        bucket = Bucket(max(prefill), max(decode), proposes=self._limits.proposes)
        bucket = bucket._replace(windows=self._limits.windows, coordinates=self._limits.coordinates)
        if plan.chunks or plan.rows:
            assert bucket in self._limits.all_buckets(), f"no program is compiled for {bucket}"

    def _check_group(self, plan: Plan, group: int) -> tuple[int, int]:
        """Check one group's part of a plan; return the prefill and decode sizes of its bucket."""
        limits = self._limits
        chunks = [chunk for chunk in plan.chunks if chunk.slot // limits.max_running == group]
        rows = [row for row in plan.rows if row.slot // limits.max_running == group]
        blocks = sum(len(chunk.pages) for chunk in chunks)
        assert blocks * QUERY_BLOCK <= limits.max_prefill_tokens, "more prompt tokens than a tick may have"
        prefill = smallest(limits.prefill_buckets, blocks * QUERY_BLOCK)
        completed = sum(chunk.completes is not None for chunk in chunks)
        assert completed <= prefill // QUERY_BLOCK, "more completed prompts than samples"
        pages = {page for chunk in chunks for page in (*chunk.pages, *chunk.table)} | {row.page for row in rows}
        assert {page // limits.pool.num_pages for page in pages - {NULL_PAGE}} <= {group}, "pages of another group"
        return prefill, smallest(limits.decode_buckets, len(rows))

    def _check_page(self, page: int) -> None:
        group, place = divmod(page, self._limits.pool.num_pages)
        assert 0 <= group < self._limits.data, f"page {page} is not in a pool"
        assert place != NULL_PAGE, f"page {page} is for padding"

    def _write_chunk(self, chunk: Chunk) -> _Slot:
        assert len(chunk.tokens) > 0, "an empty chunk"
        assert chunk.start % QUERY_BLOCK == 0, "a chunk that is not aligned to query blocks"
        assert len(chunk.pages) == -(-len(chunk.tokens) // QUERY_BLOCK), "not one page for each query block"
        assert len(chunk.table) <= self._limits.pool.pages_per_request, (
            "a table that is longer than a row of the device's"
        )
        slot = self._slots[chunk.slot]
        slot.page_table = dict(enumerate(chunk.table))
        end = chunk.start + len(chunk.tokens)
        if self._limits.proposes and slot.following and slot.following[:2] == (chunk.request_id, chunk.start):
            assert slot.following[2] == chunk.tokens[0], "another token follows a chunk than announced"
        slot.following = (chunk.request_id, end, chunk.following) if chunk.completes is None else None
        slot.stamp = self._stamp(chunk)
        if chunk.completes is not None:
            self._check_changes(chunk, chunk.completes)
        stamps = [slot.stamp + stamp for stamp in self._picture_stamps(chunk)]
        self._check_state(slot, chunk, stamps)
        if chunk.scoring is not None:
            first = chunk.scoring.first + 1
            targets = chunk.tokens[first : first + len(chunk.scoring.tokens)]
            assert 0 < first <= len(chunk.tokens), "scored by a token of another chunk"
            assert chunk.scoring.tokens[: len(targets)] == targets, "scored against the wrong tokens"
        for block, page in enumerate(chunk.pages):
            part = slice(block * QUERY_BLOCK, (block + 1) * QUERY_BLOCK)
            tokens = list(chunk.tokens[part])
            position = chunk.start + block * QUERY_BLOCK
            if page == NULL_PAGE:
                self._check_found(chunk.table, position, tokens)
            else:
                content = [token + stamp for token, stamp in zip(tokens, stamps[part], strict=True)]
                self._write(page, position, [*content, *[None] * (QUERY_BLOCK - len(tokens))])
        return slot

    def _embed(self, embedding: SegmentEmbedding) -> None:
        assert 0 <= min(embedding.rows) <= max(embedding.rows) < self._limits.picture_rows, "there is no such row"
        if isinstance(embedding.patches, StoredPicture):
            self._embedded.update(zip(embedding.rows.tolist(), embedding.patches.values[:, 0].tolist(), strict=True))
            return
        assert len(embedding.patches.values) == 1, "an embedding of several segments"
        self._embedded.update(dict.fromkeys(embedding.rows.tolist(), picture_stamp(embedding.patches)))

    def _picture_stamps(self, chunk: Chunk) -> list[int]:
        """Return the stamp of the image of each token in a chunk, 0 for a token of text."""
        if chunk.embedded is None:
            return [0] * len(chunk.tokens)
        assert len(chunk.embedded) == len(chunk.tokens), "not one row for each token"
        return [0 if row < 0 else self._embedded[row] for row in chunk.embedded.tolist()]

    def _check_state(self, slot: _Slot, chunk: Chunk, stamps: Sequence[int]) -> None:
        """Add a chunk to its slot's state, which must have seen exactly the tokens before it."""
        if chunk.start == 0:
            slot.state = []
        if self._limits.pool.state_pages:
            pages = chunk.table[: -(-chunk.start // self._limits.pool.page_size)]
            before = list(chain.from_iterable(self._pages[page] for page in pages))[: chunk.start]
            assert slot.state == before, "a chunk begins after other tokens than those of its state"
            slot.state += [token + stamp for token, stamp in zip(chunk.tokens, stamps, strict=True)]

    def _check_found(self, table: Sequence[int], position: int, tokens: Sequence[int]) -> None:
        """Check a block computed for its last token only: its page must have the keys and values already."""
        index, offset = divmod(position, self._limits.pool.page_size)
        content = self._pages[table[index]][offset : offset + len(tokens)]
        assert [t % VOCAB_SIZE for t in content if t is not None] == list(tokens), "the block's page has other tokens"

    def _write_row(self, row: Row, step: int) -> _Slot:
        slot = self._slots[row.slot]
        assert slot.request is not None, "a row of a slot that no prompt completed"
        assert slot.request.id == row.request_id, "a row of a slot that another request holds"
        assert slot.request.params.logprobs == row.logprobs, "a row that scores what its request does not ask for"
        slot.allowed = row.allowed
        assert step == 0 or slot.allowed is None, "several tokens of a request that is constrained"
        place, offset = divmod(slot.length, self._limits.pool.page_size)
        page = row.page if step <= offset else row.next_page  # the row began on an earlier page than this token's
        slot.page_table[place] = page
        slot.stamp = self._stamp(row)
        self._check_changes(row, slot.request)
        self._write(page, slot.length, [slot.token + slot.stamp])
        slot.state.append(slot.token + slot.stamp)
        slot.length += 1
        return slot

    def _stamp(self, item: Chunk | Row) -> int:
        """Return the stamp of pages computed with an adapter and changes of activations, with the weights in use."""
        adapter = None if item.adapter is None else self._adapters[item.adapter]
        pair = adapter, None if item.changes is None else item.changes.digest
        number = 0 if pair == (None, None) else crc32(repr(pair).encode()) % MOST_STAMPS  # the same in each process
        return (self._weights * MOST_STAMPS + number) * VOCAB_SIZE

    def _check_changes(self, item: Chunk | Row, request: Request) -> None:
        own = request.adapter
        assert item.changes is request.changes, "computed with other changes of activations than the request's"
        assert item.adapter == (None if own is None else own.slot), "computed with another adapter than the request's"
        assert own is None or self._adapters[own.slot] == own.digest, "the adapter's slot has another adapter"

    def _write(self, page: int, position: int, content: Sequence[int | None]) -> None:
        self._check_page(page)
        index, offset = divmod(position, self._limits.pool.page_size)
        assert index < self._limits.pool.pages_per_request, f"position {position} is beyond the page table"
        into = self._pages.setdefault(page, [None] * self._limits.pool.page_size)
        into[offset : offset + len(content)] = content

    def _context(self, slot: _Slot) -> list[int]:
        pages = range(-(-slot.length // self._limits.pool.page_size))
        content = list(chain.from_iterable(self._pages[slot.page_table[page]] for page in pages))[: slot.length]
        assert None not in content, "a position is read that was never written"
        tokens = [token - slot.stamp for token in content if token is not None]
        for picture in () if slot.request is None else slot.request.pictures:
            for position in picture.positions[picture.positions < len(tokens)].tolist():
                tokens[position] -= picture_stamp(picture.patches())
        assert 0 <= min(tokens) <= max(tokens) < VOCAB_SIZE, "a page of other weights, changes or images is read"
        return tokens


def _by_slot(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each slot: the one of its newest token, and those of its draft."""
    return [list(of_slot) for _, of_slot in groupby(rows, key=attrgetter("slot"))]


def _sum(chunk: Chunk, summing: Summing) -> list[float]:
    """Return the sum of hidden states over a range of a chunk's tokens."""
    places = range(summing.first, summing.first + summing.count)
    assert summing.count > 0, "an empty sum"
    assert places.stop <= len(chunk.tokens), "a sum beyond the chunk's tokens"
    return [sum(state_of(chunk.start + at, chunk.tokens[at]) for at in places)]


def _slots(limits: EngineLimits) -> list[_Slot]:
    return [_Slot() for _ in range(limits.data * limits.max_running)]


class FakeSettler:
    """Stand-in for the settler: reads back the tokens of each tick.

    Args:
        held: whether each tick stays in flight until `step` or `release`.
    """

    def __init__(self, held: bool = False):
        self._holds = held
        self._permits: Mailbox[None] = Mailbox()

    async def handle(self, message: Message) -> list[Message]:
        """Answer Dispatched with Settled."""
        if not isinstance(message, Dispatched):
            raise wrong_receiver("settler", message)
        if self._holds:
            await self._permits.receive()
        _wait_for_the_device()
        return [settle_tick(message)]

    def step(self) -> None:
        """Let one more tick settle. Thread-safe, as `release`."""
        self._permits.put(None)

    def release(self) -> None:
        """Let all ticks settle from now on."""
        self._holds = False
        self.step()


def _wait_for_the_device() -> None:
    sleep(TICK_SECONDS)


def settle_tick(tick: Dispatched) -> Settled:
    outputs = FakeOutputs((), {}) if tick.outputs is None else tick.outputs
    of_request: dict[int, list[tuple[int, Any]]] = {}
    for sample in tick.sample_rows:
        of_request.setdefault(sample.request_id, []).append((sample.request_id, outputs.values[sample.row]))
    tokens = tuple(chain.from_iterable(of_request.values()))
    counts = {sample.request_id: sample.logprobs for sample in tick.sample_rows}
    logprobs: dict[int, tuple[TokenLogprob, ...]] = {}
    for i, token in tokens:
        if (k := counts[i]) is not None:
            logprobs[i] = (*logprobs.get(i, ()), score_of(token, k, outputs.among.get(i)))
    prompts = {
        s.request_id: tuple(score_of(t, s.scoring.alternatives) for t in s.scoring.tokens) for s in tick.score_rows
    }
    steps = max((sample.most for sample in tick.sample_rows), default=1)
    sums = {s.request_id: StateSum(s.count, np.array(outputs.values[s.row], np.float32)) for s in tick.sum_rows}
    return Settled(
        tick.tick,
        tokens,
        logprobs,
        prompts,
        tick.losses,
        sums,
        rows=tick.rows,
        seconds=steps * TICK_SECONDS,
        proposals=outputs.proposals,
        steps=steps,
    )
