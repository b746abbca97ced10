"""Answers and models in the form of Ollama's API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from time import time
from typing import Any, Final, Literal

from rekindle.core.request.tokens import TokenLogprob
from rekindle.formats.checkpoints.model_facts import ModelFacts
from rekindle.formats.response import ToolCall
from rekindle.results.generation import Generation
from rekindle.server.common.answer import Answer
from rekindle.server.common.call import Call
from rekindle.server.common.events import json_bytes, timestamp
from rekindle.server.common.logprobs import chat_logprobs
from rekindle.server.ollama.body import OllamaRequest

LINES: Final = "application/x-ndjson"
"""Content type of lines of JSON."""
API_VERSION: Final = "0.12.6"
"""The version of Ollama's API; clients ask for it, and refuse one without tools or thinking."""
LEVELS: Final[Mapping[str, str]] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Ollama's names of dtypes."""
TAG: Final = ":latest"
"""The tag of a model's name without one."""
NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
"""The end of a model that stays open."""


@dataclass(frozen=True, slots=True)
class OllamaHead:
    """The first fields of each object of an answer.

    Attributes:
        model: the name of the model.
        created: the time of creation, in seconds since 1970.
        in_chat: whether the answer is a message; otherwise, it is a text.
    """

    model: str
    created: float
    in_chat: bool

    def of(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """Return an object with a part of the answer: some of content, thinking and tool_calls."""
        head = {"model": self.model, "created_at": timestamp(self.created)}
        if self.in_chat:
            return {**head, "message": {"role": "assistant", "content": "", **part}}
        text = {"response": part.get("content", "")}
        return {**head, **text, **({"thinking": part["thinking"]} if "thinking" in part else {})}


def opened_object(head: OllamaHead, reason: Literal["load", "unload"] = "load") -> dict[str, Any]:
    """Return the answer to a request without a prompt, which opens or closes the model."""
    return {**head.of({}), "done": True, "done_reason": reason}


def ollama_object(head: OllamaHead, generation: Generation, request: OllamaRequest, call: Call) -> dict[str, Any]:
    """Return the complete answer of a generation."""
    answer = Answer.of(generation, call, one_call=False)
    part: dict[str, Any] = {"content": answer.content}
    if answer.reasoning is not None:
        part["thinking"] = answer.reasoning
    if answer.calls:
        part["tool_calls"] = [call_object(index, each) for index, each in enumerate(answer.calls)]
    scores = logprobs_of(generation.logprobs, request)
    return {**head.of(part), **scores, **end_of(generation, request)}


def call_object(index: int, call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "function": {"index": index, "name": call.name, "arguments": call.arguments}}


def logprobs_of(tokens: Sequence[TokenLogprob] | None, request: OllamaRequest) -> dict[str, Any]:
    return {"logprobs": chat_logprobs(tokens or ())["content"]} if request.logprobs else {}


def end_of(generation: Generation, request: OllamaRequest) -> dict[str, Any]:
    """Return the last fields of an answer: the reason for its end, and its counts and times."""
    counts, times = generation.usage, generation.timings
    context = [*generation.prompt_token_ids, *generation.token_ids]
    return {
        "done": True,
        "done_reason": "length" if generation.finish_reason == "length" else "stop",
        **({"context": context} if request.remembers else {}),
        "total_duration": nanoseconds(times.total),
        "load_duration": 0,
        "prompt_eval_count": counts.prompt_tokens,
        "prompt_eval_duration": nanoseconds(times.first_token - times.queued),
        "eval_count": counts.completion_tokens,
        "eval_duration": nanoseconds(times.total - times.first_token),
    }


def nanoseconds(seconds: float) -> int:
    """Return a duration in nanoseconds."""
    return max(0, round(seconds * 1e9))


def line(value: Any) -> bytes:
    """Return a value as a line of JSON."""
    return json_bytes(value) + b"\n"


def tag_object(name: str, since: float, facts: ModelFacts | None, weights: int = 0) -> dict[str, Any]:
    """Return the object describing a model in lists.

    Args:
        name: its name for clients.
        since: the start of its service, in seconds since 1970.
        facts: the facts about a model; None for one that was not open yet, whose files are not looked at.
        weights: the bytes of its weights on the devices, for a model without files.
    """
    tagged = name if ":" in name else name + TAG
    modified = since if facts is None or not facts.modified else facts.modified
    size = weights if facts is None else facts.file_bytes or weights
    # Clients compare digests. A model without files, or without facts, has that of its name.
    digest = facts.digest if facts is not None and facts.digest else sha256(name.encode()).hexdigest()
    names = {"name": tagged, "model": tagged, "modified_at": timestamp(modified)}
    return {**names, "size": size, "digest": digest, "details": details(facts)}


def details(facts: ModelFacts | None) -> dict[str, Any]:
    """Return the details of a model; empty without facts."""
    if facts is None:
        texts = ("parent_model", "format", "family", "parameter_size", "quantization_level")
        return {**dict.fromkeys(texts, ""), "families": []}
    return {
        "parent_model": "",
        "format": facts.file_format,
        "family": facts.family,
        "families": [facts.family] if facts.family else [],
        "parameter_size": parameter_size(facts.parameters),
        "quantization_level": LEVELS.get(facts.numbers, facts.numbers.upper()),
    }


def parameter_size(count: int) -> str:
    """Return a number of parameters as text, such as "135M"."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if count >= 0.9995 * size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def running_object(tag: Mapping[str, Any], weights: int, longest: int, closes_in: float) -> dict[str, Any]:
    """Return the object describing an open model.

    Args:
        tag: its object in lists.
        weights: the bytes of its weights on the devices.
        longest: the tokens of its context.
        closes_in: the seconds until it closes if no request comes; infinity for never.
    """
    end = timestamp(min(time() + closes_in, NEVER))
    return {**tag, "size": weights, "size_vram": weights, "expires_at": end, "context_length": longest}


def show_object(
    facts: ModelFacts, since: float, longest: int, template: str | None, capabilities: Sequence[str]
) -> dict[str, Any]:
    """Return the description of a model.

    Args:
        facts: the facts about it.
        since: the start of its service, in seconds since 1970.
        longest: the tokens of its context.
        template: its chat template, in Jinja; None without one.
        capabilities: the names of its abilities.
    """
    family = facts.family or "unknown"
    info = {"general.architecture": family, "general.parameter_count": facts.parameters}
    return {
        "modelfile": "",
        "parameters": f"num_ctx {longest}",
        "template": template or "",
        "details": details(facts),
        "model_info": {**info, f"{family}.context_length": longest},
        "capabilities": list(capabilities),
        "modified_at": timestamp(facts.modified or since),
    }
