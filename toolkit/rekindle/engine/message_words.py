"""Each message in a few words, for people who look at an engine."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rekindle.markup import counted
from rekindle.messages import (
    Admit,
    Archive,
    CacheSaved,
    CacheSaving,
    Cancel,
    Chat,
    Chunk,
    Continued,
    Dispatched,
    Drop,
    Fetch,
    Fetched,
    Gathered,
    KeepWeights,
    Message,
    NewWeights,
    Offload,
    Offloaded,
    Onload,
    Output,
    Plan,
    Prompt,
    Rejected,
    SaveCache,
    Settled,
    Started,
    Stopped,
    Submit,
    Text,
    UseWeights,
    WeightsUsed,
    Withdraw,
    Write,
    Written,
)

T = TypeVar("T")

LONGEST = 60
"""Characters of a text that are shown; those of an error are three times as many."""
MOST = 10
"""Items of a list that are shown."""


def in_words(message: Message) -> str:
    """Its kind and what it carries, on one line."""
    kind = type(message).__name__
    say: Callable[[Any], str] | None = _WORDS.get(type(message))
    said = say(message) if say is not None else ""
    return f"{kind}: {said}" if said else kind


def _submit(message: Submit) -> str:
    return f"request {message.request_id}, {_prompt(message.prompt)}{', to be held' if message.hold else ''}"


def _prompt(prompt: Prompt) -> str:
    match prompt:
        case str():
            return _short(prompt)
        case Chat():
            return f"a chat of {len(prompt.messages)}"
        case Continued():
            return f"{_prompt(prompt.prefix)} and {_prompt(prompt.more)}"
    return f"token ids {_ids(prompt)}"


def _plan(plan: Plan) -> str:
    parts = [f"tick {plan.tick}"]
    if plan.preempted:
        parts.append(f"preempted {', '.join(_first(plan.preempted, str))}")
    parts += [*_first(plan.onloads, _onload), *_first(plan.chunks, _chunk)]
    if plan.rows:
        parts.append(f"decode {', '.join(_first(plan.rows, lambda row: str(row.request_id)))}")
    return "; ".join(parts)


def _chunk(chunk: Chunk) -> str:
    end = "" if chunk.completes is None else ", then sample"
    return f"prefill {chunk.request_id} from {chunk.start} to {chunk.start + len(chunk.tokens)}{end}"


def _onload(onload: Onload) -> str:
    return f"onload pages {_ids(onload.pages)}"


def _dispatched(message: Dispatched) -> str:
    sampled = ", ".join(_first(message.sampled, lambda each: str(each.request_id)))
    return f"tick {message.tick}" + (f", a token for {sampled}" if sampled else "")


def _settled(message: Settled) -> str:
    tokens = ", ".join(_first(message.tokens, lambda each: f"{each[1]} for {each[0]}"))
    return f"tick {message.tick}" + (f", token {tokens}" if tokens else "")


def _output(message: Output) -> str:
    return f"request {message.request.id}, tokens {_ids(message.token_ids)}{_ending(message.end)}"


def _text(message: Text) -> str:
    return f"request {message.request_id}, {_short(message.text)}{_ending(message.end)}"


def _ending(end: str | None) -> str:
    return "" if end is None else f", ended: {end}"


def _staged(staged: Sequence[object] | None) -> str:
    return "not all of them" if staged is None else counted(len(staged), "page")


def _rejected(message: Rejected) -> str:
    return f"request {message.request_id}, {type(message.error).__name__}: {_short(str(message.error), 3 * LONGEST)}"


def _short(text: str, longest: int = LONGEST) -> str:
    return repr(text if len(text) <= longest else f"{text[: longest - 1]}…")


def _ids(ids: Sequence[int]) -> str:
    return f"[{', '.join(_first(ids, str))}]"


def _first(items: Sequence[T], say: Callable[[T], str]) -> list[str]:
    """The first of them in words, and a sign if there are more."""
    return [*map(say, items[:MOST]), *(["…"] if len(items) > MOST else [])]


_WORDS: dict[type, Callable[[Any], str]] = {
    Submit: _submit,
    Cancel: lambda m: f"request {m.request_id}",
    Admit: lambda m: f"request {m.request.id}, {counted(len(m.request.prompt), 'prompt token')}",
    Withdraw: lambda m: f"request {m.request_id}",
    Rejected: _rejected,
    Plan: _plan,
    Offload: lambda m: f"pages {_ids(m.pages)} to the host tier",
    Gathered: lambda m: counted(len(m.arrays), "page"),
    Offloaded: lambda m: "kept" if m.kept else "not kept",
    Drop: lambda m: f"{counted(len(m.entries), 'page')} of the host tier",
    Fetch: lambda m: f"request {m.request_id}, {counted(len(m.copies), 'page')}",
    Fetched: lambda m: f"request {m.request_id}, {_staged(m.staged)}",
    Archive: lambda m: counted(len(m.pages), "page"),
    Write: lambda m: counted(len(m.pages), "page"),
    Written: lambda m: counted(sum(record is not None for record in m.records), "page"),
    SaveCache: lambda m: "",
    CacheSaving: lambda m: f"{m.pages} of {counted(m.total, 'page')} so far",
    CacheSaved: lambda m: counted(m.pages, "page"),
    Dispatched: _dispatched,
    Settled: _settled,
    Started: lambda m: f"request {m.request_id}, {m.cached.total} of {counted(m.prompt_tokens, 'prompt token')} cached",
    Output: _output,
    Stopped: lambda m: f"request {m.request_id}, after {counted(m.tokens, 'token')}",
    NewWeights: lambda m: counted(len(m.weights), "array"),
    KeepWeights: lambda m: "",
    UseWeights: lambda m: counted(len(m.weights), "array"),
    WeightsUsed: lambda m: "",
    Text: _text,
}
