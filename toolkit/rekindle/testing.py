"""A fake device whose tokens can be computed by hand, for tests of everything around the real one.

    session = fake_session(max_running=2)
    generation = await session.generate(token_ids=[3, 1, 4], max_tokens=5)
    assert generation.token_ids == expected_tokens([3, 1, 4], 5)

The fake keeps pages and slots as the real step does, filled with token ids, and computes each next token from what
it finds in the pages. So a plan with a wrong page, slot, position or order shows as a wrong token.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Unpack

from rekindle.actor import Mailbox
from rekindle.buckets import QUERY_BLOCK, Bucket, smallest
from rekindle.cache_view import view
from rekindle.callers import Callers
from rekindle.config import Limits, Settings
from rekindle.detokenizer import Detokenizer
from rekindle.engine import Actors
from rekindle.host import Host
from rekindle.intake import Intake
from rekindle.machine import Machine
from rekindle.messages import (
    Admit,
    Chunk,
    Dispatched,
    Drop,
    Fetch,
    Fetched,
    Gathered,
    Message,
    Onload,
    Output,
    Plan,
    Rejected,
    Row,
    Sampled,
    Save,
    Saved,
    Scored,
    Settled,
    Started,
    UseWeights,
    WeightsUsed,
)
from rekindle.metrics import Stats
from rekindle.model_config import ModelConfig, Rope
from rekindle.pages import NULL_PAGE
from rekindle.request import Request, SamplingParams
from rekindle.results import EndReason, TokenLogprob
from rekindle.scheduler import Scheduler
from rekindle.session import Session, SettingsOptions
from rekindle.text.tokenizer import Tokenizer

VOCAB_SIZE = 251
"""A prime, so that a token at a wrong position changes the sum in `next_token`."""

FAKE_MODEL = ModelConfig(
    family="fake", vocab_size=VOCAB_SIZE, hidden_size=1, intermediate_size=1, num_layers=1, num_heads=1,
    num_kv_heads=1, head_dim=1, max_context=4096, norm_eps=1e-5, rope=Rope(10000.0),
)  # fmt: skip


def next_token(tokens: Sequence[int], draw: int = 0, banned: Collection[int] = ()) -> int:
    """The fake model: `draw` and the sum of (position + 1) * (token + 1), modulo `VOCAB_SIZE`; if that token is banned,
    the next one that is not.

    Args:
        tokens: every token of the request so far.
        draw: see `draw_of`.
        banned: see `banned_tokens`.
    """
    first = draw + sum((position + 1) * (token + 1) for position, token in enumerate(tokens))
    return next(token for step in range(VOCAB_SIZE) if (token := (first + step) % VOCAB_SIZE) not in banned)


def draw_of(params: SamplingParams) -> int:
    """What sampling adds to the sum: nothing when greedy, else the seed."""
    return (params.seed or 0) if params.temperature > 0 else 0


def banned_tokens(request: Request, tokens: Sequence[int]) -> set[int]:
    """The tokens that a request may not take next. The fake knows no logits: any penalty is a ban to it.

    Args:
        tokens: every token of the request so far.
    """
    params, output = request.params, tokens[len(request.prompt) :]
    allowed = params.allowed_token_ids
    banned = set() if allowed is None else set(range(VOCAB_SIZE)) - allowed
    banned |= {token for token, bias in params.logit_bias if bias < 0}
    banned |= {word[-1] for word in request.bad_words if tuple(tokens[len(tokens) - len(word) + 1 :]) == word[:-1]}
    if len(output) < params.min_tokens:
        banned |= request.end_ids
    penalized = set(tokens) if params.repetition_penalty > 1 else set()
    if params.frequency_penalty > 0 or params.presence_penalty > 0:
        penalized |= set(output)
    return banned if len(banned | penalized) == VOCAB_SIZE else banned | penalized


def score_of(token: int, alternatives: int) -> TokenLogprob:
    """What the fake model gives for log-probabilities: the token's negative, and the tokens after it."""
    top = [(token + step) % VOCAB_SIZE for step in range(alternatives)]
    others = tuple(TokenLogprob(other, "", -float(other), rank) for rank, other in enumerate(top, 1))
    return TokenLogprob(token, "", -float(token), 1, others)


def expected_tokens(
    prompt: Sequence[int], max_tokens: int, *, draw: int = 0, end_ids: Collection[int] = ()
) -> tuple[int, ...]:
    """What the fake model generates without parameters that ban, up to and with the first of `end_ids`."""
    params = SamplingParams(max_tokens=max_tokens, temperature=float(draw > 0), seed=draw)
    return expected_of(Request(0, tuple(prompt), params, frozenset(end_ids), len(prompt) + max_tokens))


def expected_of(request: Request) -> tuple[int, ...]:
    """What the fake model generates for a request, stop strings aside."""
    tokens = list(request.prompt)
    while len(tokens) < min(len(request.prompt) + request.params.max_tokens, request.capacity):
        tokens.append(next_token(tokens, draw_of(request.params), banned_tokens(request, tokens)))
        if tokens[-1] in request.end_ids:
            break
    return tuple(tokens[len(request.prompt) :])


@dataclass(slots=True)
class _Slot:
    token: int = 0
    length: int = 0
    request: Request | None = None
    page_table: dict[int, int] = field(default_factory=dict)


class FakeStepper:
    """Takes plans and saves like the real stepper, and asserts that each fits a bucket, its pages and its slots.

    What it gathers of a page are the token ids in it.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._pages: dict[int, list[int | None]] = {}
        self._slots = [_Slot() for _ in range(limits.max_running)]
        self._weights = 0

    def handle(self, message: Message) -> list[Dispatched | Gathered | WeightsUsed]:
        """Plan becomes Dispatched, Save becomes Gathered, and UseWeights WeightsUsed."""
        match message:
            case Plan():
                return [self._dispatch(message)]
            case Save():
                return [Gathered(message.save_id, message.entries, tuple(map(self._gather, message.pages)))]
            case UseWeights(ticket):
                self._weights += 1  # which tells the pages that they computed from all others
                return [WeightsUsed(ticket)]
        raise AssertionError(f"the stepper takes Plan, Save and UseWeights, got {message!r}")

    def _dispatch(self, plan: Plan) -> Dispatched:
        """All of a tick is written before any of it is read, as on the device."""
        self._check(plan)
        for onload in plan.onloads:
            self._scatter(onload)
        sampled: list[_Slot] = []
        for chunk in plan.chunks:
            slot = self._write_chunk(chunk)
            if chunk.completes is not None:
                slot.length, slot.request = chunk.start + len(chunk.tokens), chunk.completes
                known = self._context(slot)
                assert (*chunk.completes.prompt, *chunk.generated) == tuple(known), "the tokens are not the request's"
                sampled.append(slot)
        sampled += [self._write_row(row) for row in plan.rows]
        for slot in sampled:
            assert slot.request is not None, "a row of a slot that no prompt completed"
            context = self._context(slot)
            slot.token = next_token(context, draw_of(slot.request.params), banned_tokens(slot.request, context))
        places = tuple(
            Sampled(slot.request.id, row, slot.request.params.logprobs)
            for row, slot in enumerate(sampled)
            if slot.request is not None
        )
        scored = tuple(Scored(c.request_id, 0, c.scoring) for c in plan.chunks if c.scoring is not None)
        return Dispatched(plan.tick, places, scored, [slot.token for slot in sampled])

    def _gather(self, page: int) -> tuple[int, ...]:
        found = self._pages.get(page, [])
        content = tuple(token for token in found if token is not None)
        assert len(content) == self._limits.page_size, f"page {page} is saved before it is full"
        return content

    def _scatter(self, onload: Onload) -> None:
        assert len(set(onload.pages)) == len(onload.pages), "a page is onloaded twice"
        for page, content in zip(onload.pages, onload.staged, strict=True):
            assert NULL_PAGE < page < self._limits.num_pages, f"page {page} is not in the pool"
            self._pages[page] = list(content)

    def _check(self, plan: Plan) -> None:
        assert plan.chunks or plan.rows or plan.onloads, "a plan for nothing"
        if not plan.chunks and not plan.rows:
            return
        blocks = sum(len(chunk.pages) for chunk in plan.chunks)
        assert blocks * QUERY_BLOCK <= self._limits.max_prefill_tokens, "more prompt tokens than a tick may have"
        assert len(plan.rows) <= self._limits.max_running, "more rows than slots"
        bucket = Bucket(
            smallest(self._limits.prefill_buckets, blocks * QUERY_BLOCK),
            smallest(self._limits.decode_buckets, len(plan.rows)),
        )
        assert bucket in self._limits.all_buckets(), f"no program is compiled for {bucket}"
        completed = sum(chunk.completes is not None for chunk in plan.chunks)
        assert completed <= min(bucket.blocks, self._limits.max_running), "more completed prompts than samples"
        slots = [chunk.slot for chunk in plan.chunks] + [row.slot for row in plan.rows]
        assert len(set(slots)) == len(slots), "a slot is in one plan twice"
        assert 0 <= min(slots) <= max(slots) < self._limits.max_running, "there is no such slot"

    def _write_chunk(self, chunk: Chunk) -> _Slot:
        assert len(chunk.tokens) > 0, "an empty chunk"
        assert chunk.start % QUERY_BLOCK == 0, "a chunk that is not aligned to query blocks"
        assert len(chunk.pages) == -(-len(chunk.tokens) // QUERY_BLOCK), "not one page for each query block"
        assert len(chunk.table) <= self._limits.pages_per_request, "a table that is longer than a row of the device's"
        slot = self._slots[chunk.slot]
        slot.page_table = dict(enumerate(chunk.table))
        if chunk.scoring is not None:
            first = chunk.scoring.first + 1
            known = chunk.tokens[first : first + len(chunk.scoring.tokens)]
            assert 0 < first <= len(chunk.tokens), "scored by a token of another chunk"
            assert chunk.scoring.tokens[: len(known)] == known, "scored against the wrong tokens"
        for block, page in enumerate(chunk.pages):
            tokens = list(chunk.tokens[block * QUERY_BLOCK : (block + 1) * QUERY_BLOCK])
            position = chunk.start + block * QUERY_BLOCK
            padding = [None] * (QUERY_BLOCK - len(tokens))
            self._write(page, position, [*tokens, *padding])
        return slot

    def _write_row(self, row: Row) -> _Slot:
        slot = self._slots[row.slot]
        assert slot.request is not None, "a row of a slot that no prompt completed"
        assert slot.request.id == row.request_id, "a row of a slot that another request holds"
        assert slot.request.params.logprobs == row.logprobs, "a row that scores what its request does not ask for"
        slot.page_table[slot.length // self._limits.page_size] = row.page
        self._write(row.page, slot.length, [slot.token])
        slot.length += 1
        return slot

    def _write(self, page: int, position: int, tokens: Sequence[int | None]) -> None:
        assert NULL_PAGE < page < self._limits.num_pages, f"page {page} is not in the pool"
        index, offset = divmod(position, self._limits.page_size)
        assert index < self._limits.pages_per_request, f"position {position} is beyond the page table"
        content = self._pages.setdefault(page, [None] * self._limits.page_size)
        stamp = self._weights * VOCAB_SIZE
        content[offset : offset + len(tokens)] = [None if token is None else token + stamp for token in tokens]

    def _context(self, slot: _Slot) -> list[int]:
        size = self._limits.page_size
        found = [self._pages[slot.page_table[at // size]][at % size] for at in range(slot.length)]
        stamped = [token for token in found if token is not None]
        assert len(stamped) == len(found), "a position is read that was never written"
        assert {token // VOCAB_SIZE for token in stamped} <= {self._weights}, "a page of other weights is read"
        return [token % VOCAB_SIZE for token in stamped]


class FakeSettler:
    """Reads the tokens of a fake tick back.

    Args:
        held: let each tick stay in flight until `step` or `release` says otherwise.
    """

    def __init__(self, held: bool = False):
        self._held = held
        self._permits: Mailbox[None] = Mailbox()

    async def handle(self, message: Message) -> list[Message]:
        """Dispatched becomes Settled."""
        assert isinstance(message, Dispatched), f"the settler takes Dispatched, got {message!r}"
        if self._held:
            await self._permits.receive()
        return [_settled(message)]

    def step(self) -> None:
        """Let one tick more settle. Any thread may call this and `release`."""
        self._permits.put(None)

    def release(self) -> None:
        """Let all ticks settle from now on."""
        self._held = False
        self.step()


def _settled(tick: Dispatched) -> Settled:
    tokens = tuple((sample.request_id, tick.outputs[sample.row]) for sample in tick.sampled)
    wanted = {sample.request_id: sample.logprobs for sample in tick.sampled}
    logprobs = {i: score_of(token, k) for i, token in tokens if (k := wanted[i]) is not None}
    prompts = {s.request_id: tuple(score_of(t, s.scoring.alternatives) for t in s.scoring.tokens) for s in tick.scored}
    return Settled(tick.tick, tokens, logprobs, prompts)


class FakeHostTier:
    """Keeps what the fake device gathered, and asserts that what is fetched and dropped is there, or is to come.

    Args:
        capacity: pages that it may keep.

    Attributes:
        entries: the content of each.
    """

    def __init__(self, capacity: int):
        self.entries: dict[int, tuple[int, ...]] = {}
        self._capacity = capacity
        self._newest = -1
        self._dropped_ahead: set[int] = set()
        self._lost: set[int] = set()

    def handle(self, message: Message) -> list[Saved | Fetched]:
        """Gathered becomes Saved, Fetch becomes Fetched, and Drop nothing."""
        match message:
            case Gathered(save_id, entries, contents):
                assert list(entries) == sorted({*entries}), "the entries of a save are not ascending"
                assert self._newest < entries[0], "an entry that another save has, or that a later save has"
                self._newest = entries[-1]
                new = zip(entries, contents, strict=True)
                self.entries |= {entry: content for entry, content in new if entry not in self._dropped_ahead}
                self._dropped_ahead.difference_update(entries)
                assert len(self.entries) <= self._capacity, "more is saved than there is room for"
                return [Saved(save_id, kept=True)]
            case Fetch(request_id, entries):
                bad = tuple(entry for entry in entries if entry in self._lost)
                assert self._lost | self.entries.keys() >= {*entries}, "entries are fetched that are not there"
                staged = None if bad else tuple(self.entries[entry] for entry in entries)
                return [Fetched(request_id, staged, bad)]
            case Drop(entries):
                for entry in entries:
                    self._drop(entry)
                return []
        raise AssertionError(f"the host tier takes Gathered, Fetch and Drop, got {message!r}")

    def lose(self, entries: Collection[int]) -> None:
        """Let those of these entries that are there be bad from now on."""
        for entry in entries:
            if self.entries.pop(entry, None) is not None:
                self._lost.add(entry)

    def _drop(self, entry: int) -> None:
        if entry > self._newest:
            assert entry not in self._dropped_ahead, "an entry is dropped twice"
            self._dropped_ahead.add(entry)
        else:
            assert entry in self.entries or entry in self._lost, "an entry is dropped that is not there"
            self._lost.discard(entry)
            self.entries.pop(entry, None)


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
        saving, fetching: what is on its way to the host tier and from it, oldest first.
        host_tier: what arrived there.
        started: requests in the order in which they left the waiting queue.
        tokens: what each request got so far.
        ends: why those that ended did, in order.
        rejected: what those that were turned away were told.
        weights_used: the tickets of new weights that came into use.
    """

    def __init__(self, **settings: Unpack[SettingsOptions]):
        self.limits = fake_limits(**settings)
        self.scheduler = CheckedScheduler(self.limits)
        self.host_tier = FakeHostTier(self.limits.host_pages)
        self.in_flight: deque[Dispatched] = deque()
        self.saving: deque[Gathered] = deque()
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
                case Plan() | Save() | UseWeights():
                    self._dispatch(answer)
                    plans += [answer] if isinstance(answer, Plan) else []
                case Fetch():
                    (fetched,) = self.host_tier.handle(answer)
                    assert isinstance(fetched, Fetched)
                    self.fetching.append((answer, fetched))
                case Drop():
                    self.host_tier.handle(answer)
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

    def _dispatch(self, message: Plan | Save | UseWeights) -> None:
        for answer in self._stepper.handle(message):
            match answer:
                case Gathered():
                    self.saving.append(answer)
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
        return self.say(_settled(self.in_flight.popleft()))

    def settle_save(self, *, ok: bool = True) -> list[Plan]:
        """Settle the oldest save; if it is not ok, nothing of it was kept."""
        gathered = self.saving.popleft()
        (saved,) = self.host_tier.handle(gathered)
        if not ok:
            self.host_tier.lose(gathered.entries)
            saved = Saved(gathered.save_id, kept=False)
        return self.say(saved)

    def settle_fetch(self, *, ok: bool = True) -> list[Plan]:
        """Settle the oldest fetch; if it is not ok, all of its entries are bad."""
        fetch, fetched = self.fetching.popleft()
        if not ok:
            self.host_tier.lose(fetch.entries)
            fetched = Fetched(fetch.request_id, None, fetch.entries)
        return self.say(fetched)

    def drain(self) -> None:
        """Settle until nothing is in flight, and see that it does not go round in circles."""
        while self._settle_all():
            before = sum(map(len, self.tokens.values()))
            busy = [self._settle_all() for _ in range(1000)]  # more than the prompts of any running set take
            assert not busy[-1] or sum(map(len, self.tokens.values())) > before, "1000 ticks gave no token"

    def _settle_all(self) -> bool:
        """Settle the oldest of each kind; False if there is none."""
        kinds = ((self.fetching, self.settle_fetch), (self.saving, self.settle_save), (self.in_flight, self.settle))
        busy = [settle for waiting, settle in kinds if waiting]
        for settle in busy:
            settle()
        return bool(busy)


def fake_limits(**settings: Unpack[SettingsOptions]) -> Limits:
    """Limits of the fake model."""
    return Limits.of(Settings(**settings), FAKE_MODEL, itemsize=4)


def fake_machine(
    limits: Limits,
    *,
    tokenizer: Tokenizer | None = None,
    eos_ids: Collection[int] = (),
    settler: FakeSettler | None = None,
    free: Callable[[], None] = lambda: None,
) -> Machine:
    """A machine around the fake device, built at once; `free` is called when it would free the real one."""
    scheduler = CheckedScheduler(limits)
    text_of = tokenizer.decode if tokenizer else lambda tokens: ""
    actors = Actors(
        intake=Intake(tokenizer, VOCAB_SIZE, frozenset(eos_ids), limits.max_context),
        scheduler=scheduler,
        stepper=FakeStepper(limits),
        settler=settler or FakeSettler(),
        detokenizer=Detokenizer(tokenizer),
        host_tier=FakeHostTier(limits.host_pages),
    )
    return Machine(
        source="fake",
        model=FAKE_MODEL,
        limits=limits,
        dtype="int",
        actors=actors,
        defaults={},
        unserved=(),
        free=free,
        load=lambda weights: [],
        cache=lambda: scheduler.look(lambda tree: view(tree, limits.page_bytes, text_of)),
        stats=lambda: Stats(scheduler.stats, programs=0, compilations=0, compilations_after_open=0),
    )


def fake_session(machine: Machine | None = None, **settings: Unpack[SettingsOptions]) -> Session:
    """A session on a machine of `fake_machine`, by default one with these settings; it serves when this returns."""
    parsed = Settings(**settings)
    made = machine or fake_machine(fake_limits(**settings))
    callers = Callers(parsed.max_waiting)
    host = Host(lambda report: made, callers.deliver, callers.fail_all)
    host.opening.grown_blocking(0)
    return Session(host, made, callers)
