"""Response templates: the fields of an answer and their delimiters.

The format is version 1 of transformers' response templates, stored by checkpoints in tokenizer_config.json under
"response_template". A chat template describes how to render a conversation; a response template describes how to
parse an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rekindle.core.errors import CheckpointError
from rekindle.formats.responses.contents import NAMES
from rekindle.formats.responses.delimiters import Delimiter, Literals, Pattern
from rekindle.formats.responses.marks import NO_MARKS, Marks
from rekindle.formats.responses.transforms import mixed_texts

_TEMPLATE_KEYS = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_FIELD_KEYS = {
    *("open", "open_pattern", "close", "close_pattern"),
    *("content", "content_args", "repeats", "join", "optional", "transform", "transform_each"),
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an answer, and the message key for its value.

    Attributes:
        name: the message key.
        open: opening delimiter, or None for the implicit field with all text outside other fields.
        close: closing delimiter, or None if the field extends to the end of the answer.
        content: format of the text; see `contents`.
        content_args: settings of the format.
        repeats: whether the value is a list with an item for each occurrence.
        join: text between joined occurrences, or None to collect a list or keep the last value.
        transform: shape of the value, or None to leave it unchanged.
        transform_each: whether the value is a list with the shape applied to each item.
    """

    name: str
    open: Delimiter | None
    close: Delimiter | None
    content: str
    content_args: Mapping[str, Any]
    repeats: bool
    join: str | None
    transform: Any
    transform_each: bool


@dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """Description of an answer's fields.

    Attributes:
        defaults: initial content of the message.
        fields: fields by name.
        anchor: delimiter in the prompt directly before the answer.
        marks: tokens to match as tokens instead of text.
    """

    defaults: Mapping[str, Any]
    fields: Mapping[str, Field]
    anchor: Delimiter
    marks: Marks = NO_MARKS

    def without(self, name: str) -> "ResponseTemplate":
        """Return the template without a field, if it exists."""
        return replace(self, fields={other: field for other, field in self.fields.items() if other != name})

    @property
    def implicit(self) -> Field | None:
        """The field for all text outside other fields, or None."""
        return next((field for field in self.fields.values() if field.open is None), None)


def load(source: Any, marks: Marks = NO_MARKS) -> ResponseTemplate:
    """Load a response template from parsed JSON.

    A field's "optional" key is accepted and ignored: an answer may end at any token, so every field may be missing.

    Args:
        source: the template.
        marks: vocabulary tokens to match only as tokens, not as equal text.

    Raises:
        CheckpointError: the template is not valid in version 1; the message names the place.
    """
    top = _mapping("response_template", source)
    if top.get("version", 1) != 1:
        raise CheckpointError(f"response_template must be of version 1, got version {top['version']!r:.40}")
    _check_keys("response_template", top, _TEMPLATE_KEYS)
    fields = _mapping("response_template.fields", top.get("fields"))
    if not fields:
        raise CheckpointError("response_template.fields must have at least one field")
    parts = {name: _field(f"response_template.fields[{name!r}]", name, field, marks) for name, field in fields.items()}
    implicit = [name for name, field in parts.items() if field.open is None]
    if len(implicit) > 1:
        raise CheckpointError(f"at most one field may have neither open nor open_pattern, got {', '.join(implicit)}")
    anchor = _delimiter("response_template", top, "start_anchor", marks)
    if anchor is None:
        raise CheckpointError("response_template must have start_anchor or start_anchor_pattern")
    return ResponseTemplate(_mapping("response_template.defaults", top.get("defaults", {})), parts, anchor, marks)


def _field(place: str, name: str, source: Any, marks: Marks) -> Field:
    options = _mapping(place, source)
    _check_keys(place, options, _FIELD_KEYS)
    content, join, shape = options.get("content", "text"), options.get("join"), options.get("transform")
    if content not in NAMES:
        raise CheckpointError(f"{place}: content must be one of {', '.join(sorted(NAMES))}, got {content!r:.80}")
    arguments = _mapping(f"{place}.content_args", options.get("content_args", {}))
    if (
        content == "xml-inline"
        and "key" not in _pattern(f"{place}: tag_pattern", arguments.get("tag_pattern")).expression.groupindex
    ):
        raise CheckpointError(f"{place}: the tag_pattern of xml-inline must have a group named key")
    if join is not None and not (isinstance(join, str) and options.get("repeats")):
        raise CheckpointError(f"{place}: join must be a text, and needs repeats to be true")
    if options.get("transform_each") and shape is None:
        raise CheckpointError(f"{place}: transform_each needs a transform")
    for text in mixed_texts(shape):
        raise CheckpointError(f"{place}: a text in transform must be one placeholder or contain none, got {text!r}")
    return Field(
        name,
        _delimiter(place, options, "open", marks),
        _delimiter(place, options, "close", marks),
        content,
        arguments,
        bool(options.get("repeats", False)),
        join,
        shape,
        bool(options.get("transform_each", False)),
    )


def _delimiter(place: str, options: Mapping[str, Any], key: str, marks: Marks) -> Delimiter | None:
    """Return the delimiter under a key (a text or list of texts) or its "_pattern" variant (a regular expression)."""
    pattern = options.get(f"{key}_pattern")
    if key not in options:
        return None if pattern is None else _pattern(f"{place}: {key}_pattern", pattern, marks)
    if pattern is not None:
        raise CheckpointError(f"{place}: give {key} or {key}_pattern, and not both")
    texts = [options[key]] if isinstance(options[key], str) else options[key]
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise CheckpointError(f"{place}: {key} must be a text or a list of texts, none empty, got {options[key]!r:.80}")
    return Literals(tuple(sorted(dict.fromkeys(map(marks.with_signs, texts)), key=len, reverse=True)))


def _pattern(place: str, source: Any, marks: Marks = NO_MARKS) -> Pattern:
    import regex

    try:
        return Pattern(regex.compile(marks.pattern_with_signs(source), regex.DOTALL))
    except (TypeError, regex.error) as error:
        raise CheckpointError(f"{place} must be a regular expression, got {source!r:.80}: {error}") from error


def _mapping(place: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{place} must be an object, got {value!r:.80}")
    return value


def _check_keys(place: str, options: Mapping[str, Any], allowed: set[str]) -> None:
    unknown = sorted(set(options) - allowed)
    if unknown:
        raise CheckpointError(
            f"{place} has the unknown keys {', '.join(unknown)}; supported are {', '.join(sorted(allowed))}"
        )
