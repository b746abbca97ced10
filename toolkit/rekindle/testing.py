"""A fake device whose tokens can be computed by hand, for tests of everything around the real one.

    session = fake_session(max_running=2)
    generation = await session.generate(token_ids=[3, 1, 4], max_tokens=5)
    assert generation.token_ids == expected_tokens([3, 1, 4], 5)

The fake keeps pages and slots as the real step does, filled with token ids, and computes each next token from what
it finds in the pages. So a plan with a wrong page, slot, position or order shows as a wrong token.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Unpack

from rekindle.actor import Mailbox
from rekindle.buckets import QUERY_BLOCK, Bucket, smallest
from rekindle.callers import Callers
from rekindle.config import Limits, Settings
from rekindle.detokenizer import Detokenizer
from rekindle.engine import Actors
from rekindle.host import Host
from rekindle.intake import Intake
from rekindle.machine import Machine
from rekindle.messages import Admit, Chunk, Dispatched, EndReason, Message, Output, Plan, Row, Settled, Started
from rekindle.metrics import Stats
from rekindle.model_config import ModelConfig, Rope
from rekindle.pages import NULL_PAGE
from rekindle.request import Request, SamplingParams
from rekindle.scheduler import Scheduler
from rekindle.session import Session, SettingsOptions
from rekindle.text.tokenizer import Tokenizer

VOCAB_SIZE = 251
"""A prime, so that a token at a wrong position changes the sum in `next_token`."""

FAKE_MODEL = ModelConfig(
    family="fake", vocab_size=VOCAB_SIZE, hidden_size=1, intermediate_size=1, num_layers=1, num_heads=1,
    num_kv_heads=1, head_dim=1, max_context=4096, norm_eps=1e-5, rope=Rope(10000.0),
)  # fmt: skip


def next_token(tokens: Iterable[int], draw: int = 0) -> int:
    """The fake model: `draw` and the sum of (position + 1) * (token + 1), modulo `VOCAB_SIZE`.

    Args:
        tokens: every token of the request so far.
        draw: see `draw_of`.
    """
    return (draw + sum((position + 1) * (token + 1) for position, token in enumerate(tokens))) % VOCAB_SIZE


def draw_of(params: SamplingParams) -> int:
    """What sampling adds to the sum: nothing when greedy, else the seed."""
    return (params.seed or 0) if params.temperature > 0 else 0


def expected_tokens(
    prompt: Sequence[int], max_tokens: int, *, draw: int = 0, end_ids: Collection[int] = ()
) -> tuple[int, ...]:
    """What the fake model generates, up to and with the first of `end_ids`."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(next_token(tokens, draw))
        if tokens[-1] in end_ids:
            break
    return tuple(tokens[len(prompt) :])


@dataclass(slots=True)
class _Slot:
    token: int = 0
    length: int = 0
    draw: int = 0
    page_table: dict[int, int] = field(default_factory=dict)


class FakeStepper:
    """Takes plans like the real stepper, and asserts that each fits a bucket and stays inside pages and slots."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._pages: dict[int, list[int | None]] = {}
        self._slots = [_Slot() for _ in range(limits.max_running)]

    def handle(self, message: Message) -> list[Dispatched]:
        """Plan becomes Dispatched. All of a tick is written before any of it is read, as on the device."""
        assert isinstance(message, Plan), f"the stepper takes Plan, got {message!r}"
        self._check(message)
        sampled: list[tuple[int, _Slot]] = []
        for chunk in message.chunks:
            slot = self._write_chunk(chunk)
            if chunk.params is not None:
                slot.length, slot.draw = chunk.start + len(chunk.tokens), draw_of(chunk.params)
                sampled.append((chunk.request_id, slot))
        sampled += [(row.request_id, self._write_row(row)) for row in message.rows]
        for _, slot in sampled:
            slot.token = next_token(self._context(slot), slot.draw)
        indices = tuple((request_id, index) for index, (request_id, _) in enumerate(sampled))
        return [Dispatched(message.tick, indices, [slot.token for _, slot in sampled])]

    def _check(self, plan: Plan) -> None:
        blocks = sum(len(chunk.pages) for chunk in plan.chunks)
        assert blocks * QUERY_BLOCK <= self._limits.max_prefill_tokens, "more prompt tokens than a tick may have"
        assert len(plan.rows) <= self._limits.max_running, "more rows than slots"
        bucket = Bucket(
            smallest(self._limits.prefill_buckets, blocks * QUERY_BLOCK),
            smallest(self._limits.decode_buckets, len(plan.rows)),
        )
        assert bucket in self._limits.all_buckets(), f"no program is compiled for {bucket}"
        completed = sum(chunk.params is not None for chunk in plan.chunks)
        assert completed <= min(bucket.blocks, self._limits.max_running), "more completed prompts than samples"
        slots = [chunk.slot for chunk in plan.chunks] + [row.slot for row in plan.rows]
        assert slots, "a plan for nothing"
        assert len(set(slots)) == len(slots), "a slot is in one plan twice"
        assert 0 <= min(slots) <= max(slots) < self._limits.max_running, "there is no such slot"

    def _write_chunk(self, chunk: Chunk) -> _Slot:
        assert len(chunk.tokens) > 0, "an empty chunk"
        assert chunk.start % QUERY_BLOCK == 0, "a chunk that is not aligned to query blocks"
        assert len(chunk.pages) == -(-len(chunk.tokens) // QUERY_BLOCK), "not one page for each query block"
        slot = self._slots[chunk.slot]
        for block, page in enumerate(chunk.pages):
            tokens = list(chunk.tokens[block * QUERY_BLOCK : (block + 1) * QUERY_BLOCK])
            position = chunk.start + block * QUERY_BLOCK
            padding = [None] * (QUERY_BLOCK - len(tokens))
            self._write(slot, page, position, [*tokens, *padding])
        return slot

    def _write_row(self, row: Row) -> _Slot:
        slot = self._slots[row.slot]
        self._write(slot, row.page, slot.length, [slot.token])
        slot.length += 1
        return slot

    def _write(self, slot: _Slot, page: int, position: int, tokens: Sequence[int | None]) -> None:
        assert NULL_PAGE < page < self._limits.num_pages, f"page {page} is not in the pool"
        index, offset = divmod(position, self._limits.page_size)
        assert index < self._limits.pages_per_request, f"position {position} is beyond the page table"
        slot.page_table[index] = page
        content = self._pages.setdefault(page, [None] * self._limits.page_size)
        content[offset : offset + len(tokens)] = tokens

    def _context(self, slot: _Slot) -> list[int]:
        size = self._limits.page_size
        found = [self._pages[slot.page_table[at // size]][at % size] for at in range(slot.length)]
        tokens = [token for token in found if token is not None]
        assert len(tokens) == len(found), "a position is read that was never written"
        return tokens


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
    return Settled(tick.tick, tuple((request_id, tick.tokens[at]) for request_id, at in tick.sampled))


class CheckedScheduler(Scheduler):
    """A scheduler that checks its invariants after every message."""

    def handle(self, message: Message) -> list[Message]:
        """As the scheduler's own."""
        said = super().handle(message)
        self.check()
        return said


class ByHand:
    """A scheduler and the fake device without a loop: ticks stay in flight until `settle` is called.

    Attributes:
        in_flight: ticks that are dispatched and not settled, oldest first.
        started: requests in the order in which they left the waiting queue.
        tokens: what each request got so far.
        ends: why those that ended did, in order.
    """

    def __init__(self, **settings: Unpack[SettingsOptions]):
        self.limits = fake_limits(**settings)
        self.scheduler = CheckedScheduler(self.limits)
        self.in_flight: deque[Dispatched] = deque()
        self.started: list[int] = []
        self.tokens: defaultdict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, EndReason] = {}
        self._stepper = FakeStepper(self.limits)

    def say(self, message: Message) -> list[Plan]:
        """Tell the scheduler something; what it plans in answer is dispatched and returned."""
        plans = []
        for answer in self.scheduler.handle(message):
            match answer:
                case Plan():
                    plans.append(answer)
                    self.in_flight += self._stepper.handle(answer)
                case Started(request_id, _):
                    self.started.append(request_id)
                case Output(request_id, token_ids, end):
                    assert request_id not in self.ends, "something is said of a request that ended"
                    self.tokens[request_id] += token_ids
                    if end is not None:
                        self.ends[request_id] = end
        return plans

    def admit(
        self,
        request_id: int,
        prompt: Sequence[int],
        max_tokens: int = 4,
        *,
        draw: int = 0,
        end_ids: Collection[int] = (),
    ) -> list[Plan]:
        """Let a request join the waiting queue."""
        params = SamplingParams(max_tokens=max_tokens, temperature=float(draw > 0), seed=draw)
        request = Request(request_id, tuple(prompt), params, frozenset(end_ids), self.limits.max_context)
        return self.say(Admit(request))

    def settle(self) -> list[Plan]:
        """Settle the oldest tick in flight."""
        return self.say(_settled(self.in_flight.popleft()))

    def drain(self) -> None:
        """Settle until nothing is in flight, and see that it does not go round in circles."""
        while self.in_flight:
            before = sum(map(len, self.tokens.values()))
            for _ in range(1000):  # more than the prompts of any running set take
                if self.in_flight:
                    self.settle()
            assert not self.in_flight or sum(map(len, self.tokens.values())) > before, "1000 ticks gave no token"


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
    actors = Actors(
        intake=Intake(tokenizer, VOCAB_SIZE, frozenset(eos_ids), limits.max_context),
        scheduler=scheduler,
        stepper=FakeStepper(limits),
        settler=settler or FakeSettler(),
        detokenizer=Detokenizer(tokenizer),
    )
    return Machine(
        source="fake",
        model=FAKE_MODEL,
        limits=limits,
        dtype="int",
        actors=actors,
        free=free,
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
