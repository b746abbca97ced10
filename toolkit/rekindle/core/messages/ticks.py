"""How the scheduler plans ticks, and what the device computes of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rekindle.core.errors import RekindleError
from rekindle.core.messages.message import Message
from rekindle.core.messages.words import describe_error, first_of, join_items
from rekindle.core.page import NULL_PAGE
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import StateSum, TokenLogprob


@dataclass(frozen=True, slots=True)
class Scoring:
    """Known tokens of a prompt whose log-probabilities are wanted.

    Attributes:
        first: the index, in the chunk, of the token before the first of them.
        tokens: the tokens to score, one after the other.
        alternatives: how many likeliest tokens to give with each.
    """

    first: int
    tokens: tuple[int, ...]
    alternatives: int


@dataclass(frozen=True, slots=True)
class Summing:
    """Tokens of a prompt whose hidden states are wanted, added up.

    Attributes:
        first: the index, in the chunk, of the first of them.
        count: how many they are.
    """

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A slice of one request's tokens to compute, aligned to query blocks.

    Attributes:
        start: the position of its first token, a multiple of `QUERY_BLOCK`.
        pages: the page of each of its query blocks; the null page for one whose keys and values are there already.
        table: all pages of the request, in order of position.
        completes: the request, given with the last chunk, after which the first token is sampled.
        generated: the tokens among the known ones that it generated before it lost its pages.
        scoring: the part of the prompt to score.
        length: the request's length, by which its tokens turn, if the model's positions depend on it; else 0.
        group: the group of devices that computes it.
        summing: the tokens whose hidden states are wanted.
        allowed: which tokens may be sampled after it, the bits of `Allowed`; None for all.
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

    def __str__(self) -> str:
        end = "" if self.completes is None else ", then sample"
        where = f" in group {self.group}" if self.group else ""
        return f"prefill {self.request_id} from {self.start} to {self.start + len(self.tokens)}{where}{end}"


@dataclass(frozen=True, slots=True)
class Row:
    """One more token for one request.

    Attributes:
        page: where its newest token goes.
        logprobs: how many alternatives to score.
        length, allowed: see `Chunk`.
        steps: how many tokens it may get, fewer than those of the tick if it then has as many as it may.
        next_page: the page after `page` in its table, if it has one that any of these tokens can need.
        end_ids: the tokens after which it gets no more in this tick.
    """

    request_id: int
    slot: int
    page: int
    logprobs: int | None = None
    length: int = 0
    allowed: Any = field(default=None, compare=False, repr=False)
    steps: int = 1
    next_page: int = NULL_PAGE
    end_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Onload:
    """Pages that are staged on the device, and where in the pool each goes before the tick is run.

    Attributes:
        from_disk: how many of them were read from disk; the others come from the host tier.
    """

    staged: tuple[Any, ...]
    pages: tuple[int, ...]
    from_disk: int = 0

    def __str__(self) -> str:
        return f"onload pages [{join_items(self.pages)}]"


@dataclass(frozen=True, slots=True)
class Plan(Message):
    """The scheduler's decision for one tick.

    Attributes:
        preempted: the requests that gave their pages back since the plan before; some may have ended meanwhile.
        losses: how often the device state had been lost, as far as the scheduler knew: what was planned for a state
            that is lost by now computes nothing.
        steps: how many tokens each row may get.
    """

    tick: int
    chunks: tuple[Chunk, ...]
    rows: tuple[Row, ...]
    onloads: tuple[Onload, ...] = ()
    preempted: tuple[int, ...] = ()
    losses: int = 0
    steps: int = 1

    @property
    def requests(self) -> tuple[int, ...]:
        computed = [chunk.request_id for chunk in self.chunks]
        return (*self.preempted, *computed, *[row.request_id for row in self.rows])

    def __str__(self) -> str:
        parts = [f"Plan: tick {self.tick}"]
        if self.preempted:
            parts.append(f"preempted {join_items(self.preempted)}")
        parts += [*first_of(self.onloads), *first_of(self.chunks)]
        if self.rows:
            several = f", {self.steps} steps" if self.steps > 1 else ""
            parts.append(f"decode {join_items([row.request_id for row in self.rows])}{several}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class SampleRow:
    """Where in a tick's outputs a new token of a request is, and how many alternatives are wanted with it."""

    request_id: int
    row: int
    logprobs: int | None


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """Where in a tick's outputs the scores of a slice of a prompt begin."""

    request_id: int
    row: int
    scoring: Scoring


@dataclass(frozen=True, slots=True)
class SumRow:
    """Where in a tick's outputs the sum of hidden states of a request is, and of how many tokens it is."""

    request_id: int
    row: int
    count: int


@dataclass(frozen=True, slots=True)
class Dispatched(Message):
    """A plan that the device works on.

    Attributes:
        sample_rows: the tokens that requests get from this tick, those of each request in order.
        score_rows: the requests that get log-probabilities of their prompt from it.
        outputs: the device arrays of the tick; None if there was nothing to compute.
        losses: how often the device state has been lost so far.
        sum_rows: the requests that get sums of hidden states from it.
    """

    tick: int
    sample_rows: tuple[SampleRow, ...]
    score_rows: tuple[ScoreRow, ...]
    outputs: Any
    losses: int = 0
    sum_rows: tuple[SumRow, ...] = ()

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(each.request_id for each in self.sample_rows))

    def __str__(self) -> str:
        return f"Dispatched: tick {self.tick}" + (
            f", a token for {join_items(self.requests)}" if self.sample_rows else ""
        )


@dataclass(frozen=True, slots=True)
class Overdue(Message):
    """A tick takes longer than it may, and requests stop waiting for it.

    It comes again for every further time that the tick takes as long.
    """

    tick: int
    error: RekindleError

    def __str__(self) -> str:
        return f"Overdue: tick {self.tick}"


@dataclass(frozen=True, slots=True)
class Settled(Message):
    """The results of one tick.

    Attributes:
        tokens: (request id, token) of each new token, those of each request in order. Those after the end of a request
            are surplus.
        logprobs: by request id, of its new tokens, where they are wanted.
        prompt_logprobs: by request id, of a slice of its prompt.
        losses: how often the device state had been lost when the tick was dispatched. If it was lost with this tick,
            all that was on the device has to be computed again.
        sums: by request id, of the hidden states of a slice of its prompt.
        failures: by request id, why it cannot go on after its tokens.
    """

    tick: int
    tokens: tuple[tuple[int, int], ...]
    logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    losses: int = 0
    sums: Mapping[int, StateSum] = field(default_factory=dict)
    failures: Mapping[int, RekindleError] = field(default_factory=dict)

    @property
    def requests(self) -> tuple[int, ...]:
        return (*(request_id for request_id, _ in self.tokens), *self.failures)

    def __str__(self) -> str:
        tokens = join_items([f"{token} for {request_id}" for request_id, token in self.tokens])
        failures = "; ".join(f"{of} fails: {describe_error(error)}" for of, error in self.failures.items())
        return f"Settled: tick {self.tick}" + (f", token {tokens}" if tokens else "") + (failures and f"; {failures}")
