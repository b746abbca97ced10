"""Response templates: which parts an answer has, and what they begin and end with.

The form is that of transformers' response templates, version 1, which checkpoints have in their tokenizer_config.json
under "response_template". Where a chat template says how a conversation is written, a response template says how an
answer is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rekindle.core.errors import CheckpointError
from rekindle.core.text.responses.contents import NAMES
from rekindle.core.text.responses.delimiters import Delimiter, Literals, Pattern
from rekindle.core.text.responses.marks import NO_MARKS, Marks
from rekindle.core.text.responses.transforms import mixed

_TEMPLATE_KEYS = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_FIELD_KEYS = {
    *("open", "open_pattern", "close", "close_pattern"),
    *("content", "content_args", "repeats", "join", "optional", "transform", "transform_each"),
}


@dataclass(frozen=True, slots=True)
class Field:
    """A part of an answer, which becomes a key of the message.

    Attributes:
        name: the key.
        open: what it begins with; None for the one that has all that is in no other.
        close: what it ends with; None if only the end of the answer ends it.
        content: what its text means; see `contents`.
        content_args: further settings of that.
        repeats: whether it is a list, with an item each time.
        join: what is between the texts of several that make one text; None for a list, or the last.
        transform: the shape that its value gets; None for the value itself.
        transform_each: whether the value is a list, each item of which gets that shape.
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
    """The description of how an answer is read.

    Attributes:
        defaults: what the message has in any case.
        fields: its parts by name.
        anchor: what an answer begins after, in the prompt.
        marks: the tokens that its delimiters are looked for as.
    """

    defaults: Mapping[str, Any]
    fields: Mapping[str, Field]
    anchor: Delimiter
    marks: Marks = NO_MARKS

    def without(self, name: str) -> "ResponseTemplate":
        """Return the same template without a field, if it has it."""
        return replace(self, fields={other: field for other, field in self.fields.items() if other != name})

    @property
    def implicit(self) -> Field | None:
        """The field that has all that is in no other."""
        return next((field for field in self.fields.values() if field.open is None), None)


def load(written: Any, marks: Marks = NO_MARKS) -> ResponseTemplate:
    """Return a response template that was written as JSON.

    A field's "optional" is read and means nothing here: an answer may end at any token, so any field may be missing.

    Args:
        written: the template.
        marks: the tokens of the vocabulary whose texts are no delimiters where they are written as text.

    Raises:
        CheckpointError: it is none of version 1; the message says where.
    """
    top = _mapping("response_template", written)
    if top.get("version", 1) != 1:
        raise CheckpointError(f"response_template must be of version 1, got version {top['version']!r:.40}")
    _check_keys("response_template", top, _TEMPLATE_KEYS)
    fields = _mapping("response_template.fields", top.get("fields"))
    if not fields:
        raise CheckpointError("response_template.fields must have at least one field")
    made = {name: _field(f"response_template.fields[{name!r}]", name, field, marks) for name, field in fields.items()}
    leftover = [name for name, field in made.items() if field.open is None]
    if len(leftover) > 1:
        raise CheckpointError(f"at most one field may have neither open nor open_pattern, got {', '.join(leftover)}")
    anchor = _delimiter("response_template", top, "start_anchor", marks)
    if anchor is None:
        raise CheckpointError("response_template must have start_anchor or start_anchor_pattern")
    return ResponseTemplate(_mapping("response_template.defaults", top.get("defaults", {})), made, anchor, marks)


def _field(place: str, name: str, written: Any, marks: Marks) -> Field:
    given = _mapping(place, written)
    _check_keys(place, given, _FIELD_KEYS)
    content, join, shape = given.get("content", "text"), given.get("join"), given.get("transform")
    if content not in NAMES:
        raise CheckpointError(f"{place}: content must be one of {', '.join(sorted(NAMES))}, got {content!r:.80}")
    arguments = _mapping(f"{place}.content_args", given.get("content_args", {}))
    if (
        content == "xml-inline"
        and "key" not in _pattern(f"{place}: tag_pattern", arguments.get("tag_pattern")).compiled.groupindex
    ):
        raise CheckpointError(f"{place}: the tag_pattern of xml-inline must have a group named key")
    if join is not None and not (isinstance(join, str) and given.get("repeats")):
        raise CheckpointError(f"{place}: join must be a text, beside repeats that is true")
    if given.get("transform_each") and shape is None:
        raise CheckpointError(f"{place}: transform_each needs a transform")
    for text in mixed(shape):
        raise CheckpointError(f"{place}: a text of transform is a placeholder as a whole or not at all, got {text!r}")
    return Field(
        name,
        _delimiter(place, given, "open", marks),
        _delimiter(place, given, "close", marks),
        content,
        arguments,
        bool(given.get("repeats", False)),
        join,
        shape,
        bool(given.get("transform_each", False)),
    )


def _delimiter(place: str, given: Mapping[str, Any], key: str, marks: Marks) -> Delimiter | None:
    """Return what is written as a text or a list of texts under a key, or as a regular expression under its twin."""
    pattern = given.get(f"{key}_pattern")
    if key not in given:
        return None if pattern is None else _pattern(f"{place}: {key}_pattern", pattern, marks)
    if pattern is not None:
        raise CheckpointError(f"{place}: give {key} or {key}_pattern, and not both")
    texts = [given[key]] if isinstance(given[key], str) else given[key]
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise CheckpointError(f"{place}: {key} must be a text or a list of texts, none empty, got {given[key]!r:.80}")
    return Literals(tuple(sorted(dict.fromkeys(map(marks.signed, texts)), key=len, reverse=True)))


def _pattern(place: str, written: Any, marks: Marks = NO_MARKS) -> Pattern:
    import regex

    try:
        return Pattern(regex.compile(marks.signed_pattern(written), regex.DOTALL))
    except (TypeError, regex.error) as error:
        raise CheckpointError(f"{place} must be a regular expression, got {written!r:.80}: {error}") from error


def _mapping(place: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{place} must be an object, got {value!r:.80}")
    return value


def _check_keys(place: str, given: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise CheckpointError(
            f"{place} has the unknown keys {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
