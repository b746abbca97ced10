"""Everything that actors say to each other. A message is frozen; a request id is the only identity in it.

Submit, Cancel ─▶ Intake ─▶ Admit, Withdraw ─▶ Scheduler ─▶ Plan ─▶ Stepper ─▶ Dispatched ─▶ Settler
                   ▲  │ │                        ▲  ▲  │                                        │
         Tokenized │  │ └─ Rejected ─▶ caller    │  │  └─▶ Outputs ─▶ Detokenizer ─▶ Texts ─▶ caller
                   │  ▼ Tokenize                 │  └─── Stopped ◀──────┘                       │
                 Tokenizer                       └───────────────────── Settled ◀───────────────┘
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rekindle.markup import counted
from rekindle.page import NewPage
from rekindle.request import Request, SamplingParams
from rekindle.results.figures import CachedTokens
from rekindle.results.generation import EndReason
from rekindle.results.tokens import TokenLogprob

LONGEST = 60
"""Characters of a text that are shown; those of an error are three times as many."""
MOST = 10
"""Items of a list that are shown."""


class Message:
    """Any message. `str` gives its kind and what it carries on one line."""

    __slots__ = ()

    @property
    def requests(self) -> tuple[int, ...]:
        """The ids of the requests that the message is about."""
        return ()

    def __str__(self) -> str:
        return type(self).__name__


@dataclass(frozen=True, slots=True)
class _OfRequest(Message):
    """A message about one request."""

    request_id: int

    @property
    def requests(self) -> tuple[int, ...]:
        return (self.request_id,)

    def __str__(self) -> str:
        return f"{type(self).__name__}: request {self.request_id}"


# Callers ask


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, and what else the model's chat template reads.

    Attributes:
        messages: mappings with a role and a content, oldest first.
        tools: JSON schemas of the functions that the model may call; None for none.
        variables: further variables of the template, by name.
        continue_final_message: whether the last message is left open, to be continued.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]
    continue_final_message: bool = False

    def __str__(self) -> str:
        return f"a chat of {len(self.messages)}"


@dataclass(frozen=True, slots=True)
class Continued:
    """Two texts, or token ids, each tokenized by itself, so that the tokens of the first begin those of the whole."""

    prefix: "Prompt"
    more: "Prompt"

    def __str__(self) -> str:
        return f"{_prompt(self.prefix)} and {_prompt(self.more)}"


Prompt = str | Chat | tuple[int, ...] | Continued
"""Text, a conversation, token ids, or a continued prefix."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The beginning of an output that is given instead of generated: that of another output, up to a chosen token.

    Attributes:
        token_ids: its tokens.
        logprobs: one for each of them, as they are known of the other output; None if they are not asked for.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


NOTHING = Begun()
"""The beginning of an output that is generated from its first token on."""


@dataclass(frozen=True, slots=True)
class Submit(_OfRequest):
    """A caller's request, not yet tokenized.

    Attributes:
        hold: whether only its prompt is to be computed, and held in the prefix cache.
        caller: the task or thread that submitted it, as a number. Requests of one caller are admitted in their order.
        begun: what its output begins with.
    """

    prompt: Prompt
    params: SamplingParams
    hold: bool = False
    caller: int = 0
    begun: Begun = NOTHING

    def __str__(self) -> str:
        return f"Submit: request {self.request_id}, {_prompt(self.prompt)}{', to be held' if self.hold else ''}"


@dataclass(frozen=True, slots=True)
class Cancel(_OfRequest):
    """A caller no longer wants the request."""


@dataclass(frozen=True, slots=True)
class Tokenize(Message):
    """A request is to be tokenized and checked, which may take long."""

    submit: Submit

    @property
    def requests(self) -> tuple[int, ...]:
        return self.submit.requests

    def __str__(self) -> str:
        return f"Tokenize: request {self.submit.request_id}, {_prompt(self.submit.prompt)}"


@dataclass(frozen=True, slots=True)
class Tokenized(_OfRequest):
    """The answer to a `Tokenize`: the request, or the error for which it cannot be served."""

    outcome: Request | Exception

    def __str__(self) -> str:
        if isinstance(self.outcome, Exception):
            return f"Tokenized: request {self.request_id}, {_error(self.outcome)}"
        return f"Tokenized: request {self.request_id}, {counted(len(self.outcome.prompt), 'token')}"


@dataclass(frozen=True, slots=True)
class Admit(Message):
    """A tokenized and validated request joins the waiting queue."""

    request: Request

    @property
    def requests(self) -> tuple[int, ...]:
        return (self.request.id,)

    def __str__(self) -> str:
        return f"Admit: request {self.request.id}, {counted(len(self.request.prompt), 'prompt token')}"


@dataclass(frozen=True, slots=True)
class Withdraw(_OfRequest):
    """The request is to end now, wherever it is. If it was admitted, its `Admit` was said before.

    It may come for a request that was never admitted, because it was rejected, and for one that has ended.
    """


@dataclass(frozen=True, slots=True)
class Rejected(_OfRequest):
    """The request cannot be served; `error` says why."""

    error: Exception

    def __str__(self) -> str:
        return f"Rejected: request {self.request_id}, {_error(self.error)}"


# The scheduler plans ticks, and the device computes them


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
class Chunk:
    """A slice of one request's tokens to compute, aligned to query blocks.

    Attributes:
        start: the position of its first token, a multiple of `QUERY_BLOCK`.
        pages: the page of each of its query blocks; the null page for one whose keys and values are there already.
        table: all pages of the request, in order of position.
        completes: the request, given with the last chunk, after which the first token is sampled.
        generated: the tokens among the known ones that it generated before it lost its pages.
        scoring: the part of the prompt to score.
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

    def __str__(self) -> str:
        end = "" if self.completes is None else ", then sample"
        return f"prefill {self.request_id} from {self.start} to {self.start + len(self.tokens)}{end}"


@dataclass(frozen=True, slots=True)
class Row:
    """One more token for one request, the page that its newest token goes to, and how many alternatives to score."""

    request_id: int
    slot: int
    page: int
    logprobs: int | None = None


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
        return f"onload pages [{_listed(self.pages)}]"


@dataclass(frozen=True, slots=True)
class Plan(Message):
    """The scheduler's decision for one tick.

    Attributes:
        preempted: the requests that gave their pages back since the plan before; some may have ended meanwhile.
        losses: how often the device state had been lost, as far as the scheduler knew: what was planned for a state
            that is lost by now computes nothing.
    """

    tick: int
    chunks: tuple[Chunk, ...]
    rows: tuple[Row, ...]
    onloads: tuple[Onload, ...] = ()
    preempted: tuple[int, ...] = ()
    losses: int = 0

    @property
    def requests(self) -> tuple[int, ...]:
        computed = [chunk.request_id for chunk in self.chunks]
        return (*self.preempted, *computed, *[row.request_id for row in self.rows])

    def __str__(self) -> str:
        parts = [f"Plan: tick {self.tick}"]
        if self.preempted:
            parts.append(f"preempted {_listed(self.preempted)}")
        parts += [*_first(self.onloads), *_first(self.chunks)]
        if self.rows:
            parts.append(f"decode {_listed([row.request_id for row in self.rows])}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Sampled:
    """Where in a tick's outputs a request's new token is, and how many alternatives are wanted with it."""

    request_id: int
    row: int
    logprobs: int | None


@dataclass(frozen=True, slots=True)
class Scored:
    """Where in a tick's outputs the scores of a slice of a prompt begin."""

    request_id: int
    row: int
    scoring: Scoring


@dataclass(frozen=True, slots=True)
class Dispatched(Message):
    """A plan that the device works on.

    Attributes:
        sampled: the requests that get a token from this tick.
        scored: the requests that get log-probabilities of their prompt from it.
        outputs: the device arrays of the tick; None if there was nothing to compute.
        losses: how often the device state has been lost so far.
    """

    tick: int
    sampled: tuple[Sampled, ...]
    scored: tuple[Scored, ...]
    outputs: Any
    losses: int = 0

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(each.request_id for each in self.sampled)

    def __str__(self) -> str:
        return f"Dispatched: tick {self.tick}" + (f", a token for {_listed(self.requests)}" if self.sampled else "")


@dataclass(frozen=True, slots=True)
class Settled(Message):
    """The results of one tick.

    Attributes:
        tokens: (request id, token) of each new token.
        logprobs: by request id, of its new token.
        prompt_logprobs: by request id, of a slice of its prompt.
        losses: how often the device state had been lost when the tick was dispatched. If it was lost with this tick,
            all that was on the device has to be computed again.
    """

    tick: int
    tokens: tuple[tuple[int, int], ...]
    logprobs: Mapping[int, TokenLogprob] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    losses: int = 0

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(request_id for request_id, _ in self.tokens)

    def __str__(self) -> str:
        tokens = _listed([f"{token} for {request_id}" for request_id, token in self.tokens])
        return f"Settled: tick {self.tick}" + (f", token {tokens}" if tokens else "")


# Callers are answered


@dataclass(frozen=True, slots=True)
class Started(_OfRequest):
    """The request left the waiting queue for the first time.

    Attributes:
        prompt: the tokens of its prompt.
        seed: the one of its draws.
        cached: how many of its tokens need not be computed.
    """

    prompt: tuple[int, ...]
    seed: int | None
    cached: CachedTokens

    def __str__(self) -> str:
        prompt = counted(len(self.prompt), "prompt token")
        return f"Started: request {self.request_id}, {self.cached.total} of {prompt} cached"


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of one request, surplus already dropped. The last `Output` of a request has an end reason.

    Attributes:
        logprobs: of each token, if wanted.
        prompt_logprobs: of the next tokens of its prompt, if wanted.
    """

    request: Request
    token_ids: tuple[int, ...]
    end: EndReason | None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    def __str__(self) -> str:
        return f"request {self.request.id}, tokens [{_listed(self.token_ids)}]{_ending(self.end)}"


@dataclass(frozen=True, slots=True)
class Outputs(Message):
    """The outputs of all requests that got something from one tick, or that ended, in order."""

    outputs: tuple[Output, ...]

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(output.request.id for output in self.outputs)

    def __str__(self) -> str:
        return f"Outputs: {'; '.join(_first(self.outputs))}"


@dataclass(frozen=True, slots=True)
class Stopped(_OfRequest):
    """A request is to end, well, after this many tokens: a stop string is complete in its text."""

    tokens: int

    def __str__(self) -> str:
        return f"Stopped: request {self.request_id}, after {counted(self.tokens, 'token')}"


@dataclass(frozen=True, slots=True)
class Text:
    """An `Output` with the text that it completes.

    Attributes:
        stopped_by: in the last one, the string or token that ended the request.
        cut: in the last one, the bytes of a character that is incomplete.
        end_token: in the last one, the text of the token that ended the request.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    end: EndReason | None
    stopped_by: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    cut: bytes = b""
    end_token: str | None = None

    def __str__(self) -> str:
        return f"request {self.request_id}, {_quoted(self.text)}{_ending(self.end)}"


@dataclass(frozen=True, slots=True)
class Texts(Message):
    """The texts of an `Outputs`, in its order."""

    texts: tuple[Text, ...]

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(text.request_id for text in self.texts)

    def __str__(self) -> str:
        return f"Texts: {'; '.join(_first(self.texts))}"


# Pages move between the device, the host tier and the disk


@dataclass(frozen=True, slots=True)
class Offload(Message):
    """Copy pages to the host tier, as they are between the plans said before and after this.

    Attributes:
        entries: the number by which the copy of each page is known, higher than in any `Offload` before.
        losses: as of a `Plan`: pages of a state that is lost by now are not copied.
    """

    offload_id: int
    pages: tuple[int, ...]
    entries: tuple[int, ...]
    losses: int = 0

    def __str__(self) -> str:
        return f"Offload: pages [{_listed(self.pages)}] to the host tier"


@dataclass(frozen=True, slots=True)
class Gathered(Message):
    """The pages of an `Offload`, in its order, each in a device array of its own; none where that could not be."""

    offload_id: int
    entries: tuple[int, ...]
    arrays: tuple[Any, ...]

    def __str__(self) -> str:
        return f"Gathered: {counted(len(self.arrays), 'page')}"


@dataclass(frozen=True, slots=True)
class Offloaded(Message):
    """The host tier has the entries of an `Offload`, or could keep none of them."""

    offload_id: int
    kept: bool

    def __str__(self) -> str:
        return "Offloaded: kept" if self.kept else "Offloaded: not kept"


@dataclass(frozen=True, slots=True)
class Drop(Message):
    """Entries of the host tier are no longer needed; it may be said before their `Offloaded`."""

    entries: tuple[int, ...]

    def __str__(self) -> str:
        return f"Drop: {counted(len(self.entries), 'page')} of the host tier"


class Copy(NamedTuple):
    """Where a page is beside the device tier: the number of an entry of the host tier, or of a record on disk."""

    entry: int | None
    record: int | None


@dataclass(frozen=True, slots=True)
class Fetch(_OfRequest):
    """A request is going to use these pages, which are not in the device tier: stage them on the device.

    Attributes:
        copies: of each page, the entry of the host tier or, where it has none, the record of the disk tier.
    """

    copies: tuple[Copy, ...]

    def __str__(self) -> str:
        return f"Fetch: request {self.request_id}, {counted(len(self.copies), 'page')}"


@dataclass(frozen=True, slots=True)
class Fetched(_OfRequest):
    """The answer to a `Fetch`.

    Attributes:
        staged: for an `Onload`, one for each copy; None if there is not one for each.
        bad: the copies that could not be read.
    """

    staged: tuple[Any, ...] | None
    bad: tuple[Copy, ...] = ()

    def __str__(self) -> str:
        staged = "not all of them" if self.staged is None else counted(len(self.staged), "page")
        return f"Fetched: request {self.request_id}, {staged}"


@dataclass(frozen=True, slots=True)
class Archive(Message):
    """Write pages that the host tier has to disk.

    Attributes:
        entries: where the host tier has each.
        used: records whose prefixes were used since the last `Archive`.
    """

    pages: tuple[NewPage, ...]
    entries: tuple[int, ...]
    used: tuple[int, ...]

    def __str__(self) -> str:
        return f"Archive: {counted(len(self.pages), 'page')}"


@dataclass(frozen=True, slots=True)
class Write(Message):
    """An `Archive` with the content of each page; None for one that the host tier lacks."""

    pages: tuple[NewPage, ...]
    contents: tuple[Any, ...]
    used: tuple[int, ...]

    def __str__(self) -> str:
        return f"Write: {counted(len(self.pages), 'page')}"


@dataclass(frozen=True, slots=True)
class Written(Message):
    """The outcome of a `Write`; each is answered in its turn.

    Attributes:
        records: of each page; None for one that could not be written.
        pruned: records that are no longer valid.
    """

    records: tuple[int | None, ...]
    pruned: tuple[int, ...]

    def __str__(self) -> str:
        return f"Written: {counted(sum(record is not None for record in self.records), 'page')}"


@dataclass(frozen=True, slots=True)
class SaveCache(Message):
    """A caller wants all cached pages to be on disk."""

    ticket: int


@dataclass(frozen=True, slots=True)
class CacheSaving(Message):
    """Cached pages are on their way to disk; said to the caller who asked.

    Attributes:
        pages: written since the caller asked.
        total: those, and those that are left to write.
    """

    ticket: int
    pages: int
    total: int

    def __str__(self) -> str:
        return f"CacheSaving: {self.pages} of {counted(self.total, 'page')} so far"


@dataclass(frozen=True, slots=True)
class CacheSaved(Message):
    """All pages that were cached are on disk, or as many as can be.

    Attributes:
        pages: written since the caller asked.
        complete: whether all of them are there.
    """

    ticket: int
    pages: int
    complete: bool

    def __str__(self) -> str:
        return f"CacheSaved: {counted(self.pages, 'page')}"


# Weights are exchanged


@dataclass(frozen=True, slots=True)
class NewWeights(Message):
    """A caller wants these weights to be used for all requests that have not started.

    Attributes:
        ticket: the number by which the caller knows the answer.
        weights: device arrays, in the order in which programs take them.
        fail: end running requests with an error, rather than let them finish on the old weights.
    """

    ticket: int
    weights: list[Any]
    fail: bool

    def __str__(self) -> str:
        return f"NewWeights: {counted(len(self.weights), 'array')}"


@dataclass(frozen=True, slots=True)
class KeepWeights(Message):
    """A caller no longer wants its `NewWeights`, if they are not in use yet."""

    ticket: int


@dataclass(frozen=True, slots=True)
class UseWeights(Message):
    """Use these weights for every plan said after this."""

    ticket: int
    weights: list[Any]

    def __str__(self) -> str:
        return f"UseWeights: {counted(len(self.weights), 'array')}"


@dataclass(frozen=True, slots=True)
class WeightsUsed(Message):
    """The weights are in use."""

    ticket: int


def _prompt(prompt: Prompt) -> str:
    match prompt:
        case str():
            return _quoted(prompt)
        case tuple():
            return f"token ids [{_listed(prompt)}]"
    return str(prompt)


def _error(error: Exception) -> str:
    return f"{type(error).__name__}: {_quoted(str(error), 3 * LONGEST)}"


def _ending(end: str | None) -> str:
    return "" if end is None else f", ended: {end}"


def _quoted(text: str, longest: int = LONGEST) -> str:
    return repr(text if len(text) <= longest else f"{text[: longest - 1]}…")


def _listed(items: Sequence[object]) -> str:
    return ", ".join(_first(items))


def _first(items: Sequence[object]) -> list[str]:
    """Return the first items in words, and a sign if there are more."""
    words = [str(item) for item in items[:MOST]]
    if len(items) > MOST:
        words.append("…")
    return words
