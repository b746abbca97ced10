"""A template of prompts, whose fields each item fills."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.core.text.chat import check_messages

TEXT_FIELD = "text"
"""The field that an item fills which is a text."""
_FORMATTER = Formatter()
_DOUBLED = "Braces that are no field, such as those of JSON, are doubled: {{ and }}"


@dataclass(frozen=True, slots=True)
class Template:
    """A text or a conversation with fields such as `{name}`, as `str.format` fills them.

    Attributes:
        source: the text, or the messages, whose contents have the fields.
    """

    source: str | Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, source: Any) -> "Template":
        """Return the template that a call gives.

        Raises:
            InvalidRequest: it is no text and no list of messages, or a brace stands alone, or no field has a name.
        """
        if not isinstance(source, str):
            if not isinstance(source, Sequence):
                raise InvalidRequest(f"template must be a str or a list of messages, got {preview(source)}")
            check_messages(source)
        names = [name for text in _texts(source) for name in _fields(text)]
        if not names:
            raise InvalidRequest(f"template has no field such as {{{TEXT_FIELD}}}, so all prompts would be the same")
        for name in names:
            if not name or name[0].isdigit() or name[0] in ".[\"'" or name[0].isspace():
                raise InvalidRequest(
                    f"each field of template needs a name, such as {{{TEXT_FIELD}}}; got {{{name:.80}}}. {_DOUBLED}"
                )
        return cls(source)

    def filled(self, item: Any) -> Any:
        """Return the prompt of an item: a mapping, which has the fields by name, or a text for the field `text`.

        Raises:
            InvalidRequest: the item is neither, or it lacks a field, or a field cannot be written as is asked.
        """
        fields = {TEXT_FIELD: item} if isinstance(item, str) else item
        if not isinstance(fields, Mapping):
            raise InvalidRequest(
                f"a template is filled by a mapping, or by a str for {{{TEXT_FIELD}}}; got {preview(item)}"
            )
        try:
            return _filled(self.source, fields)
        except KeyError as error:
            has = ", ".join(map(str, fields)) or "none"
            raise InvalidRequest(f"the template needs the field {error}, and the item has {has}") from error
        except Exception as error:  # of the format of any object
            raise InvalidRequest(f"the item cannot fill the template: {type(error).__name__}: {error}") from error


def _filled(value: Any, fields: Mapping[str, Any]) -> Any:
    """Return a text with its fields filled; of messages and their parts, the contents and texts are filled."""
    match value:
        case str():
            return _FORMATTER.vformat(value, (), fields)
        case Mapping():
            return {
                name: _filled(part, fields) if name in ("content", "text") else part for name, part in value.items()
            }
        case Sequence():
            return [_filled(part, fields) for part in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    """Yield each text that `_filled` fills."""
    match value:
        case str():
            yield value
        case Mapping():
            for name in ("content", "text"):
                yield from _texts(value.get(name))
        case Sequence():
            for part in value:
                yield from _texts(part)


def _fields(text: str) -> list[str]:
    try:
        return [name for _, name, _, _ in _FORMATTER.parse(text) if name is not None]
    except ValueError as error:
        raise InvalidRequest(f"template is not as str.format reads it: {error}. {_DOUBLED}") from error
