"""Conversion of generations to JSON-compatible values and back, without loss and with a check of each value."""

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, get_args

from rekindle.core.errors import InvalidData
from rekindle.core.request.constraint import Kind
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.tokens import TokenLogprob
from rekindle.formats.response import MessageForm, Response, ToolCall
from rekindle.results.facts.figures import Timings, Usage

VERSION = 7
"""Version of the format. It changes if an older reader cannot read the new format."""
SINCE: Mapping[int, Mapping[str, Any]] = {
    2: {"constraint": None, "response": None},
    3: {"usage": {"reasoning_tokens": 0}},
    4: {"weights_version": ()},
    5: {"prompt": None},
    6: {"repeats_at": None},
    7: {"usage": {"image_tokens": 0}},
}
"""Attributes added by each version, with their values for older data; nested dicts are attributes of objects."""

Reader = Callable[[Any], Any]
"""Converts a plain value back to the original value; raises InvalidData."""


def plain(value: Any) -> Any:
    """Return the JSON-compatible form of a value: bytes as base64, and non-finite floats as strings."""
    match value:
        case ToolCall(arguments=arguments):
            return {**{field.name: getattr(value, field.name) for field in fields(value)}, "arguments": dict(arguments)}
        case bytes():
            return b64encode(value).decode()
        case float() if not math.isfinite(value):
            return str(value)
        case tuple():
            return [plain(item) for item in value]
        case TokenLogprob() | Usage() | Timings() | CachedTokens() | Response() | MessageForm():
            return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value


def read(data: object) -> dict[str, Any]:
    """Return the attributes of a generation from its plain form.

    Raises:
        InvalidData: the version is unknown, or a field is missing, unknown or invalid.
    """
    if not isinstance(data, Mapping):
        raise InvalidData(f"expected a dict as returned by to_dict(), got {data!r:.80}")
    version = data.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise InvalidData(
            f"expected a generation of version 1 to {VERSION}, as returned by to_dict(), got version {version!r}; a "
            "newer Rekindle may read it"
        )
    values = {name: data[name] for name in data if name != "version"}
    for since, additions in SINCE.items():
        if since > version:
            values = _merge(values, additions)
    attributes: dict[str, Any] = _record(dict, **_ATTRIBUTES)(values)
    return attributes


def _merge(values: Mapping[str, Any], additions: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with the additions of a later version, including additions to nested objects."""
    merged = dict(values)
    for name, value in additions.items():
        if not isinstance(value, Mapping):
            merged[name] = value
        elif isinstance(values.get(name), Mapping):
            merged[name] = {**values[name], **value}
    return merged


def _record(build: Callable[..., Any], **attributes: Reader) -> Reader:
    """Return the reader of an object with exactly the given attributes; `build` creates the object from them."""

    def reader(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _unlike(f"an object with {', '.join(attributes)}", value)
        wrong = [f"no {name}" for name in attributes if name not in value]
        wrong += [f"an unknown {name}" for name in value if name not in attributes]
        if wrong:
            raise InvalidData(f"expected an object with {', '.join(attributes)}, got one with {' and '.join(wrong)}")
        return build(**{name: _at(name, attribute, value[name]) for name, attribute in attributes.items()})

    return reader


def _at(place: str, reader: Reader, value: Any) -> Any:
    try:
        return reader(value)
    except InvalidData as error:
        raise InvalidData(f"{place}: {error}") from None


def _exactly(*kinds: type[Any]) -> Reader:
    """Return the reader of a value of one of the types, all native to JSON."""

    def reader(value: Any) -> Any:
        if type(value) not in kinds:
            raise _unlike(" or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds), value)
        return value

    return reader


def _one_of(*options: str) -> Reader:
    def reader(value: Any) -> Any:
        if value not in options:
            raise _unlike(" or ".join(map(repr, options)), value)
        return value

    return reader


def _float(value: Any) -> float:
    if type(value) in (int, float) or value in ("inf", "-inf", "nan"):
        return float(value)
    raise _unlike('a number, "inf", "-inf" or "nan"', value)


def _bytes(value: Any) -> bytes:
    try:
        return b64decode(value, validate=True)
    except (TypeError, ValueError):
        raise _unlike("bytes in base64", value) from None


def _list(item: Reader, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _unlike("a list", value)
    return tuple(_at(f"item {place}", item, each) for place, each in enumerate(value))


def _or_none(reader: Reader, value: Any) -> Any:
    return None if value is None else reader(value)


def _unlike(expected: str, value: Any) -> InvalidData:
    return InvalidData(f"expected {expected}, got {value!r:.80}")


def _by_name(value: Any) -> Any:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _unlike("an object", value)
    return dict(value)


def _token(value: Any) -> Any:
    return _TOKEN(value)


def _run(value: Any) -> tuple[int, ...]:
    run = _list(_INT, value)
    if len(run) != 2:
        raise _unlike("two integers", value)
    return run


_INT, _STR = _exactly(int), _exactly(str)
_TOKENS = partial(_list, _token)
_TOKEN = _record(TokenLogprob, token_id=_INT, text=_STR, logprob=_float, rank=_INT, top=_TOKENS, bytes=_bytes)
_STR_OR_NONE = _exactly(str, type(None))
_CALL = _record(ToolCall, name=_STR, arguments=_by_name, text=_STR, id=_STR, error=_STR_OR_NONE)
_BOOL = _exactly(bool)
_FORM = _record(MessageForm, reasoning_key=_STR_OR_NONE, arguments_as_text=_BOOL, null_content=_BOOL)
_RESPONSE = _record(Response, content=_STR, reasoning=_STR_OR_NONE, tool_calls=partial(_list, _CALL), form=_FORM)
_ATTRIBUTES: Mapping[str, Reader] = {
    "text": _STR,
    "token_ids": partial(_list, _INT),
    "finish_reason": _one_of("stop", "length", "repetition", "cancelled", "held"),
    "stopped_by": _exactly(str, int, type(None)),
    "logprobs": partial(_or_none, _TOKENS),
    "prompt_logprobs": partial(_or_none, partial(_list, partial(_or_none, _token))),
    "prompt_token_ids": partial(_list, _INT),
    "seed": _exactly(int, type(None)),
    "usage": _record(Usage, prompt_tokens=_INT, completion_tokens=_INT, reasoning_tokens=_INT, image_tokens=_INT),
    "timings": _record(Timings, queued=_float, first_token=_float, total=_float),
    "cached": _record(CachedTokens, device=_INT, host=_INT, disk=_INT),
    "cut": _bytes,
    "end_token": _STR_OR_NONE,
    "begun": _INT,
    "constraint": partial(_or_none, _one_of(*get_args(Kind))),
    "response": partial(_or_none, _RESPONSE),
    "weights_version": partial(_list, _run),
    "prompt": _STR_OR_NONE,
    "repeats_at": _exactly(int, type(None)),
}
