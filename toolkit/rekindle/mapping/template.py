"""Templates of prompts, with fields for the values of each item."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.formats.rendering.chat import check_messages

TEXT_FIELD = "text"
"""Field of the template for items of type str."""
_FORMATTER = Formatter()
_BRACES_HINT = "Double all other braces, such as those of JSON: {{ and }}"


@dataclass(frozen=True, slots=True)
class RowTemplate:
    """Text or conversation with fields such as `{name}`, in the syntax of `str.format`.

    Attributes:
        source: the text, or the messages with fields in their contents.
    """

    source: str | Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, source: Any) -> "RowTemplate":
        """Return the checked template of a call.

        Raises:
            InvalidRequest: the source is neither text nor messages, or has a single brace, an unnamed field or no
                field.
        """
        if not isinstance(source, str):
            if not isinstance(source, Sequence):
                raise InvalidRequest(f"template must be a str or a list of messages, got {preview(source)}")
            check_messages(source)
        names = [name for text in _texts(source) for name in _fields(text)]
        if not names:
            raise InvalidRequest(f"template has no field such as {{{TEXT_FIELD}}}, so all prompts would be equal")
        for name in names:
            if not name or name[0].isdigit() or name[0] in ".[\"'" or name[0].isspace():
                raise InvalidRequest(
                    f"each field of template needs a name, such as {{{TEXT_FIELD}}}; got {{{name:.80}}}. {_BRACES_HINT}"
                )
        return cls(source)

    def fill(self, item: Any) -> Any:
        """Return the prompt of an item.

        Args:
            item: a mapping of field names to values, or a str for the field `text`.

        Raises:
            InvalidRequest: the item is neither a mapping nor a str, lacks a field, or has a value of the wrong type for
                the field's format.
        """
        fields = {TEXT_FIELD: item} if isinstance(item, str) else item
        if not isinstance(fields, Mapping):
            raise InvalidRequest(
                f"a template needs a mapping of its fields, or a str for {{{TEXT_FIELD}}}; got {preview(item)}"
            )
        try:
            return _fill_fields(self.source, fields)
        except KeyError as error:
            has = ", ".join(map(str, fields)) or "none"
            raise InvalidRequest(f"the template needs the field {error}, and the item has {has}") from error
        except Exception as error:  # the format method of a value may raise any error
            raise InvalidRequest(f"the item cannot fill the template: {type(error).__name__}: {error}") from error


def _fill_fields(value: Any, fields: Mapping[str, Any]) -> Any:
    """Return a text with its fields filled in; in messages, only contents, texts and images have fields."""
    match value:
        case str():
            return _FORMATTER.vformat(value, (), fields)
        case Mapping():
            filled = {
                name: _fill_fields(part, fields) if name in ("content", "text") else part
                for name, part in value.items()
            }
            image = value.get("image")
            return {**filled, "image": _fill_image(image, fields)} if isinstance(image, str) else filled
        case Sequence():
            return [_fill_fields(part, fields) for part in value]
    return value


def _fill_image(source: str, fields: Mapping[str, Any]) -> Any:
    """Return an image: the value of a field alone, such as a PIL image in a column, or else a text such as a path."""
    parts = list(_FORMATTER.parse(source))
    if len(parts) == 1 and parts[0][:1] == ("",) and parts[0][1] is not None and not any(parts[0][2:]):
        value, _ = _FORMATTER.get_field(parts[0][1], (), fields)
        return value
    return _FORMATTER.vformat(source, (), fields)


def _texts(value: Any) -> Iterator[str]:
    """Yield each text with fields, in the order of `_fill_fields`."""
    match value:
        case str():
            yield value
        case Mapping():
            for name in ("content", "text"):
                yield from _texts(value.get(name))
            if isinstance(image := value.get("image"), str):
                yield image
        case Sequence():
            for part in value:
                yield from _texts(part)


def _fields(text: str) -> list[str]:
    try:
        return [name for _, name, _, _ in _FORMATTER.parse(text) if name is not None]
    except ValueError as error:
        raise InvalidRequest(f"template is not a valid format string: {error}. {_BRACES_HINT}") from error
