"""Everything that actors say to each other. A message is frozen; a request id is the only identity in it.

Submit, Cancel ─▶ Intake ─▶ Admit, Withdraw ─▶ Scheduler ─▶ Plan ─▶ Stepper ─▶ Dispatched ─▶ Settler
                    │                            ▲  ▲  │                                        │
                    └─ Rejected ─▶ caller        │  │  └─▶ Output ─▶ Detokenizer ─▶ Text ─▶ caller
                                                 │  └─── Stopped ◀──────┘                       │
                                                 └───────────────────── Settled ◀───────────────┘
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rekindle.page import NewPage
from rekindle.request import Request, SamplingParams
from rekindle.results import CachedTokens, EndReason, TokenLogprob


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, and what else the model's chat template reads.

    Attributes:
        messages: mappings with a role and a content, oldest first.
        tools: JSON schemas of the functions that the model may call; None for none.
        variables: further variables of the template, by name.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Continued:
    """Two texts, or token ids, each tokenized by itself, so that the tokens of the first begin those of the whole."""

    prefix: "Prompt"
    more: "Prompt"


Prompt = str | Chat | tuple[int, ...] | Continued
"""Text, a conversation, token ids, or a continued prefix."""


@dataclass(frozen=True, slots=True)
class Submit:
    """A caller's request, not yet tokenized; `hold` asks for its prompt alone, to be held in the prefix cache."""

    request_id: int
    prompt: Prompt
    params: SamplingParams
    hold: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """A caller no longer wants the request."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Admit:
    """A tokenized and validated request joins the waiting queue."""

    request: Request


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The request is to end now, wherever it is; said after its Admit, if there was one."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request cannot be served, and why."""

    request_id: int
    error: Exception


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
        scoring: what to score of the prompt.
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


@dataclass(frozen=True, slots=True)
class Plan:
    """What the scheduler decided for one tick.

    Attributes:
        preempted: the requests that gave their pages back since the plan before; some may have ended meanwhile.
    """

    tick: int
    chunks: tuple[Chunk, ...]
    rows: tuple[Row, ...]
    onloads: tuple[Onload, ...] = ()
    preempted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Offload:
    """Copy pages to the host tier, as they are between the plans said before and after this.

    Attributes:
        entries: what the copy of each page is to be known by: higher numbers than in any `Offload` before.
    """

    offload_id: int
    pages: tuple[int, ...]
    entries: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gathered:
    """The pages of an `Offload`, in its order, each in a device array of its own; none where there was no room."""

    offload_id: int
    entries: tuple[int, ...]
    arrays: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Offloaded:
    """The host tier has the entries of an `Offload`, or could keep none of them."""

    offload_id: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Drop:
    """These entries of the host tier are no longer needed. It may be said before their `Offloaded`."""

    entries: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """A request is going to use these pages, which are not in the device tier: stage them on the device.

    Attributes:
        copies: of each page, the entry of the host tier or, where it has none, the record of the disk tier.
    """

    request_id: int
    copies: "tuple[Copy, ...]"


class Copy(NamedTuple):
    """Where a page is beside the device tier: the number of an entry of the host tier, or of a record on disk."""

    entry: int | None
    record: int | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was fetched for a request.

    Attributes:
        staged: for an `Onload`, one for each copy; None if there is not one for each.
        bad: the copies that could not be read.
    """

    request_id: int
    staged: tuple[Any, ...] | None
    bad: tuple[Copy, ...] = ()


@dataclass(frozen=True, slots=True)
class Archive:
    """Write pages to disk, which the host tier has.

    Attributes:
        pages: what they are.
        entries: where the host tier has each.
        used: records whose prefixes were used since the last `Archive`.
    """

    pages: tuple[NewPage, ...]
    entries: tuple[int, ...]
    used: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """A `Archive` with the content of each page; None for one that the host tier lacks."""

    pages: tuple[NewPage, ...]
    contents: tuple[Any, ...]
    used: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a `Write`; they are answered in their order.

    Attributes:
        records: of each page; None for one that could not be written.
        pruned: records that are good no more.
    """

    records: tuple[int | None, ...]
    pruned: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SaveCache:
    """A caller wants all cached pages to be on disk."""

    ticket: int


@dataclass(frozen=True, slots=True)
class CacheSaving:
    """Cached pages are on their way to disk, for who asked.

    Attributes:
        pages: written since the caller asked.
        total: those, and those that are left to write.
    """

    ticket: int
    pages: int
    total: int


@dataclass(frozen=True, slots=True)
class CacheSaved:
    """All pages that were cached are on disk, or as many as can be.

    Attributes:
        pages: written since the caller asked.
        complete: whether all of them are there.
    """

    ticket: int
    pages: int
    complete: bool


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
class Dispatched:
    """A plan that the device works on.

    Attributes:
        sampled: the requests that get a token from this tick.
        scored: the requests that get log-probabilities of their prompt from it.
        outputs: the device arrays of the tick; None of one that had nothing to compute.
    """

    tick: int
    sampled: tuple[Sampled, ...]
    scored: tuple[Scored, ...]
    outputs: Any


@dataclass(frozen=True, slots=True)
class Settled:
    """What one tick gave.

    Attributes:
        tokens: (request id, token) of each new token.
        logprobs: by request id, of its new token.
        prompt_logprobs: by request id, of a slice of its prompt.
    """

    tick: int
    tokens: tuple[tuple[int, int], ...]
    logprobs: Mapping[int, TokenLogprob] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Started:
    """The request left the waiting queue for the first time.

    Attributes:
        prompt_tokens: tokens in its prompt.
        cached: those of them that need not be computed.
    """

    request_id: int
    prompt_tokens: int
    cached: CachedTokens


@dataclass(frozen=True, slots=True)
class Output:
    """What is new of one request, surplus already dropped. Its last one has an end reason.

    Attributes:
        logprobs: of each token, if wanted.
        prompt_logprobs: of the next tokens of its prompt, if wanted.
    """

    request: Request
    token_ids: tuple[int, ...]
    end: EndReason | None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Stopped:
    """A request is to end, well, after this many tokens: a stop string is complete in its text."""

    request_id: int
    tokens: int


@dataclass(frozen=True, slots=True)
class NewWeights:
    """A caller wants these weights to be used for all requests that have not started.

    Attributes:
        ticket: by which the caller knows the answer.
        weights: device arrays, in the order in which every step takes them.
        fail: end running requests with an error, rather than let them finish on the old weights.
    """

    ticket: int
    weights: list[Any]
    fail: bool


@dataclass(frozen=True, slots=True)
class KeepWeights:
    """A caller no longer wants its `NewWeights`, if they are not in use yet."""

    ticket: int


@dataclass(frozen=True, slots=True)
class UseWeights:
    """Use these weights for every plan said after this."""

    ticket: int
    weights: list[Any]


@dataclass(frozen=True, slots=True)
class WeightsUsed:
    """The weights are in use."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Text:
    """An `Output` with the text that it completes, and with its last one, the string or token that ended it."""

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    end: EndReason | None
    stopped_by: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


Message = (
    Submit | Cancel | Admit | Withdraw | Rejected | Plan | Dispatched | Settled | Started | Output | Stopped | Text
    | Offload | Gathered | Offloaded | Drop | Fetch | Fetched | NewWeights | KeepWeights | UseWeights
    | WeightsUsed | Archive | Write | Written | SaveCache | CacheSaving | CacheSaved
)  # fmt: skip
"""Any message."""
