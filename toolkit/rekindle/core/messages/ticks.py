"""Plans of ticks, and their results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rekindle.core.errors import RekindleError
from rekindle.core.messages.message import Message, part
from rekindle.core.messages.pictures import SegmentEmbedding
from rekindle.core.messages.words import describe_error, first_of, join_items
from rekindle.core.page import NULL_PAGE
from rekindle.core.request.activations.changes import Changes
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import StateSum, TokenLogprob


@dataclass(frozen=True, slots=True)
class Scoring:
    """Prompt tokens to score with log-probabilities.

    Attributes:
        first: the index in the chunk of the token before the first scored one.
        tokens: the tokens to score, in order.
        alternatives: the number of most likely tokens to report for each position.
    """

    first: int
    tokens: tuple[int, ...]
    alternatives: int


@dataclass(frozen=True, slots=True)
class Summing:
    """Prompt tokens whose hidden states are summed.

    Attributes:
        first: the index of the first token in the chunk.
        count: the number of tokens.
        apart: whether the hidden state of each token is returned in place of their sum.
    """

    first: int
    count: int
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """A slice of one request's tokens to compute in a tick, aligned to query blocks; a part of `Plan`.

    Attributes:
        slot: the slot of the request.
        start: the position of its first token, a multiple of `QUERY_BLOCK`.
        pages: the page of each of its query blocks; the null page for blocks with stored keys and values.
        table: all pages of the request, in order of position.
        completes: the request, in its last chunk only; its next token is sampled after this chunk.
        generated: the output tokens so far, in the last chunk only; empty unless the request continues an output.
        scoring: the prompt tokens to score.
        length: the length for the long-context rope; 0 for short requests.
        group: the group of devices that computes the chunk.
        summing: the prompt tokens whose hidden states to sum.
        allowed: the mask of allowed next tokens, as in `Allowed.bits`; None for all.
        adapter: the slot of the request's adapter; None for none.
        changes: the request's changes of activations; None for none.
        embedded: the row of the buffer of embeddings for each token of an image, -1 for other tokens, (tokens,) int32;
            None without images.
        following: the known token after the chunk; 0 if it is not known.
        coordinates: the time, row and column of each token, (3, tokens) int32; None for their indices.
    """

    request_id: int
    slot: int
    start: int
    tokens: tuple[int, ...]
    pages: tuple[int, ...]
    table: tuple[int, ...]
    completes: Request | None
    generated: tuple[int, ...] = ()
    scoring: Scoring | None = None
    length: int = 0
    group: int = 0
    summing: Summing | None = None
    allowed: Any = field(default=None, compare=False, repr=False)
    adapter: int | None = None
    changes: Changes | None = field(default=None, compare=False, repr=False)
    embedded: Any = field(default=None, compare=False, repr=False)
    following: int = 0
    coordinates: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        end = "" if self.completes is None else ", then sample"
        where = f" in group {self.group}" if self.group else ""
        return f"prefill {self.request_id} from {self.start} to {self.start + len(self.tokens)}{where}{end}"


@dataclass(frozen=True, slots=True)
class Row:
    """A decode row: one new token of one request, or up to `steps` tokens; a part of `Plan`.

    The rows of a request with a draft are adjacent and in order of position.

    Attributes:
        slot: the slot of the request.
        page: the page of its token.
        logprobs: the number of alternatives to score; None for no log-probabilities.
        length, allowed, adapter, changes: see `Chunk`.
        steps: its limit of new tokens, below the tick's limit for a request near its end.
        next_page: the page after `page` in its table if a later token of the tick needs it, else the null page.
        offset: its place after the newest token of the request; 0 for this token itself.
        draft: its drafted token, if it has an offset.
        shift: the position of its token minus its index; below 0 behind images with positions by row and column.
    """

    request_id: int
    slot: int
    page: int
    logprobs: int | None = None
    length: int = 0
    allowed: Any = field(default=None, compare=False, repr=False)
    steps: int = 1
    next_page: int = NULL_PAGE
    adapter: int | None = None
    changes: Changes | None = field(default=None, compare=False, repr=False)
    offset: int = 0
    draft: int = 0
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Onload:
    """Staged pages, and perhaps a state, to copy into the pool and a slot before the tick runs; a part of `Plan`.

    Attributes:
        staged: the staged copies of pages.
        pages: the destination of each copy.
        from_disk: the number of pages read from disk; the others come from the host tier.
        state: the staged copy of a state; None for none.
        slot: the destination of the state.
    """

    staged: tuple[Any, ...]
    pages: tuple[int, ...]
    from_disk: int = 0
    state: Any = None
    slot: int | None = None

    def __str__(self) -> str:
        parts = [f"pages [{join_items(self.pages)}]"] if self.pages or self.state is None else []
        parts += [] if self.state is None else [f"a state into slot {self.slot}"]
        return f"onload {' and '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Plan(Message):
    """The work of one tick. From the scheduler to the stepper.

    Attributes:
        tick: the number of the tick.
        chunks: the slices of prompts to compute.
        rows: the decode rows.
        onloads: the staged pages to copy into the pool first.
        preempted: the requests preempted since the previous plan; some may have ended meanwhile.
        losses: the number of losses of the device state known to the scheduler. A plan for a lost state computes
            nothing.
        steps: the limit of new tokens for each row.
        embeddings: the segments of images to embed first.
    """

    tick: int
    chunks: tuple[Chunk, ...]
    rows: tuple[Row, ...]
    onloads: tuple[Onload, ...] = ()
    preempted: tuple[int, ...] = ()
    losses: int = 0
    steps: int = 1
    embeddings: tuple[SegmentEmbedding, ...] = ()

    @property
    def pictured(self) -> bool:
        """True if a chunk has tokens of images, or is behind images with positions by row and column."""
        return any(chunk.embedded is not None or chunk.coordinates is not None for chunk in self.chunks)

    @property
    def adapted(self) -> bool:
        """True if a chunk or a row has an adapter."""
        return any([each.adapter is not None for each in self.items])  # noqa: C419 - a list is faster

    @property
    def steered(self) -> bool:
        """True if a chunk or a row has changes of activations."""
        return any([each.changes is not None for each in self.items])  # noqa: C419 - a list is faster

    @property
    def items(self) -> tuple[Chunk | Row, ...]:
        """All chunks and rows."""
        return (*self.chunks, *self.rows)

    @property
    def requests(self) -> tuple[int, ...]:
        computed = [chunk.request_id for chunk in self.chunks]
        return (*self.preempted, *computed, *[row.request_id for row in self.rows if not row.offset])

    def __str__(self) -> str:
        parts = [f"Plan: tick {self.tick}"]
        if self.preempted:
            parts.append(f"preempted {join_items(self.preempted)}")
        parts += [*first_of(self.onloads), *first_of(self.embeddings), *first_of(self.chunks)]
        if self.rows:
            several = f", {self.steps} steps" if self.steps > 1 else ""
            drafted = sum(row.offset > 0 for row in self.rows)
            several += f", {drafted} drafted" if drafted else ""
            parts.append(f"decode {join_items([row.request_id for row in self.rows if not row.offset])}{several}")
        return "; ".join(parts)


@part
class SampleRow:
    """The place of a request's new tokens in the outputs of a tick.

    Attributes:
        row: the row of the outputs.
        logprobs: the number of alternatives to report; None for no log-probabilities.
        most: the most tokens.
    """

    request_id: int
    row: int
    logprobs: int | None
    most: int = 1


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """The place of the scores of a prompt's slice in the outputs of a tick.

    Attributes:
        row: the first row of the scores.
        scoring: the scored tokens.
    """

    request_id: int
    row: int
    scoring: Scoring


@dataclass(frozen=True, slots=True)
class SumRow:
    """The place of a request's sum of hidden states in the outputs of a tick.

    Attributes:
        row: the row of the outputs; of the first token, if hidden states are apart.
        count: the number of summed tokens.
        apart: whether the hidden state of each token is returned in place of their sum.
    """

    request_id: int
    row: int
    count: int
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Dispatched(Message):
    """A plan in flight on the device. From the stepper to the settler.

    Attributes:
        sample_rows: the places of new tokens, in order within each request.
        score_rows: the places of prompt log-probabilities.
        outputs: the device arrays of the tick; None if nothing is computed.
        losses: the number of losses of the device state so far.
        sum_rows: the places of sums of hidden states.
        rows: the number of rows with padding, in a tick without prompts; 0 for others.
        began: its start on the host, in seconds of `time.perf_counter`.
        unready: numbers of rows whose programs are being made.
        awaited: another device array to wait for, of a tick without outputs; None for none.
        needing: the ids of the requests that fail if the device has no memory for the tick; the others begin again.
        error: the error of a device without memory, after which the device state is that of an idle engine.
    """

    tick: int
    sample_rows: tuple[SampleRow, ...]
    score_rows: tuple[ScoreRow, ...]
    outputs: Any
    losses: int = 0
    sum_rows: tuple[SumRow, ...] = ()
    rows: int = 0
    began: float = field(default=0.0, compare=False)
    unready: tuple[int, ...] = ()
    awaited: Any = field(default=None, compare=False, repr=False)
    needing: tuple[int, ...] = ()
    error: Exception | None = None

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(each.request_id for each in self.sample_rows))

    def __str__(self) -> str:
        return f"Dispatched: tick {self.tick}" + (
            f", a token for {join_items(self.requests)}" if self.sample_rows else ""
        )


@dataclass(frozen=True, slots=True)
class StateLost(Message):
    """A tick in flight failed for want of memory, and has left no device state. From the settler to the stepper.

    Attributes:
        losses: the number of losses of the device state before.
    """

    losses: int

    def __str__(self) -> str:
        return "StateLost: the device had no memory for a tick"


@dataclass(frozen=True, slots=True)
class Overdue(Message):
    """A tick exceeds `watchdog_timeout`, so requests fail with `error`. From the watchdog to the scheduler.

    The watchdog repeats the message after each further period of this length. Without a tick, other work of the device
    exceeds it, and all ticks in flight wait behind.
    """

    tick: int | None
    error: RekindleError

    def __str__(self) -> str:
        return "Overdue" if self.tick is None else f"Overdue: tick {self.tick}"


@dataclass(frozen=True, slots=True)
class Settled(Message):
    """The results of one tick, read back from the device. From the settler to the scheduler.

    Attributes:
        tokens: (request id, token) of each new token, those of a request side by side and in order. Tokens after the
            end of a request are surplus.
        logprobs: the requested log-probabilities of new tokens, by request id.
        prompt_logprobs: the log-probabilities of a slice of the prompt, by request id.
        losses: the number of losses of the device state after the dispatch. If it is new to the scheduler, everything
            on the device has to be computed again.
        sums: the summed hidden states of a slice of the prompt, by request id.
        failures: the errors of requests, by request id; the requests end after their tokens of this tick.
        rows, unready: see `Dispatched`.
        proposals: the guess of the token after the newest one, by request id, from a draft head.
        steps: the number of decode steps; 0 if no row was left to compute.
        seconds: its time, without that of the tick before it.
        gap: the time from the end of that tick to the start of this one; 0 if it began earlier.
    """

    tick: int
    tokens: tuple[tuple[int, int], ...]
    logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    losses: int = 0
    sums: Mapping[int, StateSum] = field(default_factory=dict)
    failures: Mapping[int, RekindleError] = field(default_factory=dict)
    rows: int = 0
    seconds: float = field(default=0.0, compare=False)
    gap: float = field(default=0.0, compare=False)
    unready: tuple[int, ...] = ()
    proposals: Mapping[int, int] = field(default_factory=dict)
    steps: int = field(default=1, compare=False)

    @property
    def requests(self) -> tuple[int, ...]:
        return (*(request_id for request_id, _ in self.tokens), *self.failures)

    def __str__(self) -> str:
        tokens = join_items([f"{token} for {request_id}" for request_id, token in self.tokens])
        failures = "; ".join(f"{of} fails: {describe_error(error)}" for of, error in self.failures.items())
        return f"Settled: tick {self.tick}" + (f", token {tokens}" if tokens else "") + (failures and f"; {failures}")
