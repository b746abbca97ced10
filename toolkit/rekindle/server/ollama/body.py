"""Bodies of Ollama's API."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from rekindle.core.request.checks import preview
from rekindle.formats.rendering.efforts import EFFORT
from rekindle.server.common.call import Call, Streaming
from rekindle.server.common.errors import invalid_field
from rekindle.server.common.fields import Fields
from rekindle.server.common.messages import ModelTemplate, messages_in, thinking_variables, tools_in
from rekindle.server.common.pictures import check_count, from_text
from rekindle.server.common.sampling import ANY_OBJECT, INTEGERS, whole_number, without_idle

HINTS: Final = frozenset({"shift", "truncate"})
"""Fields of prompts without effect: a text is never cut. Conversations and texts to embed take `truncate` before."""
SECONDS: Final[Mapping[str, float]] = {
    **{"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3},
    **{"s": 1.0, "m": 60.0, "h": 3600.0},
}
"""The units of durations, as in Go."""
LONGEST_DURATION: Final = 1000
"""Most characters of a duration."""
_FOREVER: Final = 1e300
"""A number of seconds beyond all others. Larger integers are no floats."""
_PART: Final = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)"
OPTIONS: Final[Mapping[str, str]] = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""The keyword of the session for each of `options`."""
OPTION_HINTS: Final = frozenset(
    {
        "draft_num_predict",
        "embedding_only",
        "f16_kv",
        "logits_all",
        "low_vram",
        "main_gpu",
        "mirostat",
        "mirostat_eta",
        "mirostat_tau",
        "num_batch",
        "num_ctx",
        "num_gpu",
        "num_keep",
        "num_thread",
        "numa",
        "penalize_newline",
        "repeat_last_n",
        "tfs_z",
        "use_mlock",
        "use_mmap",
        "vocab_only",
    }
)
"""Options without effect here: about memory and devices, decided by the session, or of Ollama's earlier versions."""
NEUTRAL_OPTIONS: Final[Mapping[str, tuple[Any, ...]]] = {"typical_p": (1, 1.0)}


@dataclass(frozen=True, slots=True)
class OllamaRequest:
    """A request for an answer.

    Attributes:
        call: the call of the session; None to open the model without an answer.
        logprobs: whether the answer has the log-probabilities of its tokens.
        context: the token ids of the conversation so far, before the prompt; empty without one.
        remembers: whether the answer has the token ids of the conversation.
        keep_alive: the seconds until the model closes when idle; None to leave them as they are.
        truncates: whether a conversation longer than the context loses its oldest turns.
    """

    call: Call | None
    logprobs: bool = False
    context: Sequence[int] = ()
    remembers: bool = False
    keep_alive: float | None = None
    truncates: bool = False


def read_ollama_chat(body: Fields, template: ModelTemplate) -> OllamaRequest:
    """Return the chat requested by a body; raise ApiError if the body is invalid."""
    messages = body.take("messages", list) or []
    if not all(isinstance(each, dict) for each in messages):
        body.refuse("messages", f"must be a list of messages, got {preview(messages)}")
    prompt = messages_in(_with_ids(messages), template.form)
    options, fields = _options(body)
    last = prompt[-1] if prompt else {}
    stays_open = last.get("role") == "assistant" and bool(last.get("content")) and not last.get("tool_calls")
    options |= {**tools_in(body), **_thinking(body, template.variables), "continue_final_message": stays_open}
    fields["prompt"] = "messages"
    truncates = body.flag("truncate", True)
    return replace(_request(body, prompt, options, fields, remembers=False), truncates=truncates)


def read_ollama_generate(body: Fields, template: ModelTemplate | None) -> OllamaRequest:
    """Return the answer to a prompt requested by a body; raise ApiError if the body is invalid.

    Args:
        body: the fields of the body.
        template: the chat template; None for a model without one, whose prompts are plain texts.
    """
    text, system, raw = body.take("prompt", str) or "", body.take("system", str) or "", body.flag("raw")
    context = body.take("context", list) or []
    if not all(type(each) is int and 0 <= each < 2**31 for each in context):
        body.refuse("context", "must be a list of token ids, as in an earlier answer")
    options, fields = _options(body)
    for name in ("suffix", "template"):
        if body.any(name):
            body.refuse(name, "is not served: write the whole prompt, with raw=true if it needs no chat template")
    fields["prompt"] = "prompt"
    form = None if raw else template
    images = _images(body.any("images"), "images", "images")
    if images and form is None:
        body.refuse("images", "need a chat template, and have a place in none: leave raw out")
    thinking = _thinking(body, frozenset() if form is None else form.variables)
    if form is None:
        prompt: Any = text if raw or not system else f"{system}\n\n{text}"
        return _request(body, text and prompt, options, fields, remembers=not raw, context=context)
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "user", "content": _with_images(images, text)}] if text or images else []
    check_count(messages, "images")
    prompt = messages if text or images else []
    return _request(body, prompt, {**options, **thinking}, fields, remembers=True, context=context)


def _request(
    body: Fields,
    prompt: Any,
    options: Mapping[str, Any],
    fields: Mapping[str, str],
    *,
    remembers: bool,
    context: Sequence[int] = (),
) -> OllamaRequest:
    """Take the other fields, and return the request."""
    logprobs, top = body.flag("logprobs"), body.take("top_logprobs", int)
    scores = {"logprobs": top or 0} if logprobs else {}
    streams, keep_alive = body.flag("stream", True), keep_alive_in(body)
    body.leave({}, HINTS)
    if not prompt:
        return OllamaRequest(None, keep_alive=keep_alive)
    stream = Streaming() if streams else None
    call = Call(prompt, {**options, **scores}, None, 1, {**fields, "logprobs": "top_logprobs"}, stream)
    return OllamaRequest(call, logprobs, context, remembers, keep_alive)


def keep_alive_in(body: Fields) -> float | None:
    """Take the seconds until the model closes when idle; infinity for never, None if absent."""
    value = body.any("keep_alive")
    if value is None:
        return None
    seconds = _seconds(value)
    if seconds is None:
        body.refuse("keep_alive", f'must be a number of seconds or a duration such as "5m", got {preview(value)}')
    return inf if seconds < 0 else seconds


def _seconds(value: Any) -> float | None:
    """Return a number of seconds, or a duration such as "1h30m", in seconds; None for another value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(max(-_FOREVER, min(value, _FOREVER)))
    sign, text = (-1, value[1:]) if isinstance(value, str) and value[:1] == "-" else (1, value)
    if text == "0":
        return 0.0
    if not isinstance(text, str) or len(text) > LONGEST_DURATION or not re.fullmatch(f"({_PART})+", text, re.ASCII):
        return None
    return sign * sum(float(number) * SECONDS[unit] for number, unit in re.findall(_PART, text))


def asks_to_unload(body: Fields) -> bool:
    """Return True if a body has no prompt and lets the model close at once."""
    fields = body.peek(("keep_alive", "messages", "prompt"))
    return _seconds(fields.get("keep_alive")) == 0 and not fields.get("messages") and not fields.get("prompt")


def _options(body: Fields) -> tuple[dict[str, Any], dict[str, str]]:
    """Take the options and the format, as keywords of the session, and the field of each."""
    source = body.take_fields("options") or Fields({}, "options.")
    options: dict[str, Any] = {}
    for name, keyword in OPTIONS.items():
        if (value := source.any(name)) is not None:
            options[keyword] = whole_number(value) if keyword in INTEGERS else value
    source.leave(NEUTRAL_OPTIONS, OPTION_HINTS)
    most = options.get("max_tokens")
    options["max_tokens"] = None if type(most) is int and most <= 0 else most  # as in Ollama: until the model ends
    if type(seed := options.get("seed")) is int and seed < 0:
        del options["seed"]  # a random one
    options = without_idle(options)
    fields = {keyword: f"options.{name}" for name, keyword in OPTIONS.items()}
    return options | _format(body), fields | {"json_schema": "format"}


def _format(body: Fields) -> dict[str, Any]:
    """Take the format of the answer, as a keyword of the session; empty without one."""
    value = body.any("format")
    if value is None or value == "":
        return {}
    if value != "json" and not isinstance(value, dict):
        body.refuse("format", f'must be "json" or a JSON schema, got {preview(value)}')
    return {"json_schema": ANY_OBJECT if value == "json" else value}


def _thinking(body: Fields, variables: Collection[str]) -> dict[str, Any]:
    """Take the wish for thinking, as a keyword of the session. Other templates decide by themselves."""
    think = body.any("think")
    if not (think is None or isinstance(think, bool | str)):
        body.refuse("think", f"must be true, false, or low, medium or high; got {preview(think)}")
    if think is None or think == "":
        return {}
    values = thinking_variables(think not in (False, "none"), variables)
    if isinstance(think, str) and EFFORT in variables:
        values[EFFORT] = think
    return {"chat_template_kwargs": values} if values else {}


def _with_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in OpenAI's form: calls and results of tools have ids, in the order of the calls without any."""
    waiting: list[Any] = []
    result = []
    for place, source in enumerate(messages):
        each = {name: value for name, value in source.items() if name not in ("images", "thinking", "tool_name")}
        if images := _images(source.get("images"), "messages", f"messages[{place}].images"):
            each["content"] = _with_images(images, source.get("content"))
        if source.get("thinking") is not None:
            each["reasoning"] = source["thinking"]
        calls = each.get("tool_calls")
        if isinstance(calls, list):
            each["tool_calls"] = [_call(call, f"call{place:03d}{number:02d}") for number, call in enumerate(calls)]
            waiting += [call["id"] for call in each["tool_calls"] if isinstance(call, dict)]
        if each.get("role") == "tool":
            first = waiting.pop(0) if waiting else f"call{place:03d}00"
            each.setdefault("tool_call_id", first)
            if source.get("tool_name") is not None:
                each["name"] = source["tool_name"]
        result.append(each)
    return result


def _images(values: Any, param: str, place: str) -> list[dict[str, Any]]:
    """Return files in base64 as parts of a message; none for an absent field."""
    if not isinstance(values or [], list):
        raise invalid_field(param, f"{place} must be a list of files in base64, got {preview(values, 60)}")
    return [from_text(each, param, f"{place}[{index}]") for index, each in enumerate(values or [])]


def _with_images(images: Sequence[dict[str, Any]], text: Any) -> Any:
    """Return a content with images before its text; a text without images as it is."""
    if not images or not isinstance(text, str | None):
        return text
    return [*images, *([{"type": "text", "text": text}] if text else [])]


def _call(call: Any, identity: str) -> Any:
    """Return a tool call in OpenAI's form."""
    return {"id": identity, "type": "function", **call} if isinstance(call, dict) else call


@dataclass(frozen=True, slots=True)
class OllamaEmbedding:
    """A request for embeddings.

    Attributes:
        texts: the texts to embed.
        dimensions: the length of each vector; None for all dimensions.
        truncates: whether a text too long for the model is cut.
        keep_alive: as in `OllamaRequest`.
    """

    texts: Sequence[str]
    dimensions: int | None
    truncates: bool
    keep_alive: float | None = None


def read_ollama_embed(body: Fields, most: int) -> OllamaEmbedding:
    """Return the request for embeddings in a body of at most `most` texts; raise ApiError if the body is invalid."""
    value = body.any("input")
    texts = [value] if isinstance(value, str) and value else value or []
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts) or len(texts) > most:
        body.refuse("input", f"must be a text or a list of at most {most} texts, got {preview(value)}")
    dimensions, truncates = body.take("dimensions", int), body.flag("truncate", True)
    keep_alive = keep_alive_in(body)
    body.leave({}, ("options",))
    return OllamaEmbedding(texts, dimensions, truncates, keep_alive)


def read_ollama_embedding(body: Fields) -> OllamaEmbedding:
    """Return the request for one embedding in a body; raise ApiError if the body is invalid."""
    text, keep_alive = body.take("prompt", str), keep_alive_in(body)
    body.leave({}, ("options",))
    return OllamaEmbedding([text] if text else [], None, True, keep_alive)


def finish_model_body(body: Fields) -> bool:
    """Take the fields of a body about a model alone, and return whether the answer is a stream."""
    streams = body.flag("stream", True)
    body.leave({}, ("insecure", "options", "password", "system", "template", "username", "verbose"))
    return streams
