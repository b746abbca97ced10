"""Events of an answer, and the part of it in progress."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.formats.responses.contents import Malformed, TrimmedText, is_inside, parse_values
from rekindle.formats.responses.marks import remove_signs
from rekindle.formats.responses.template import Field
from rekindle.formats.responses.transforms import transform_value


@dataclass(frozen=True, slots=True)
class FieldText:
    """The next text of a field. The joined texts of a text field are its value; those of other fields are raw text."""

    field: str
    text: str


@dataclass(frozen=True, slots=True)
class FieldEnd:
    """The end of a field's value.

    Attributes:
        field: name of the field.
        value: the parsed value, or None if it is malformed.
        raw: the raw text with its delimiters.
        error: the reason for a malformed value, or None.
    """

    field: str
    value: Any
    raw: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FieldStart:
    """The start of a field with delimiters.

    Attributes:
        field: name of the field.
        captures: texts of the named groups of the opening delimiter.
    """

    field: str
    captures: Mapping[str, str]


Event = FieldStart | FieldText | FieldEnd


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Position of a field's text in the parsed text, without delimiters.

    Attributes:
        field: name of the field.
        opened_at: the start of the opening delimiter.
        start, end: the position.
        closed_at: the end of the closing delimiter.
    """

    field: str
    opened_at: int
    start: int
    end: int
    closed_at: int


class Region:
    """A part of the answer in progress.

    Args:
        field: field of the region, or None for text outside all fields.
        opening: text of the opening delimiter.
        captures: texts of the named groups of the opening delimiter.
        start: position of the first character in the parsed text.
        visible: function that removes signs and special tokens from a text.
        has_begun: whether the region has begun. The implicit field begins with its first character.
    """

    def __init__(
        self,
        field: Field | None,
        opening: str,
        captures: Mapping[str, str],
        start: int,
        visible: Callable[[str], str],
        *,
        has_begun: bool,
    ) -> None:
        self.field = field
        self.opening = opening
        self.start = start
        self.has_begun = has_begun
        self._visible = visible
        self._captures = captures
        self._inner_delimiter: tuple[int, int] | None = None  # position of the first one inside a string of the body
        self._pieces: list[str] = []
        self._trimmed = TrimmedText()

    @property
    def opened_at(self) -> int:
        """Position of the opening delimiter in the parsed text."""
        return self.start - len(self.opening)

    @property
    def body(self) -> str:
        """The raw text, without delimiters."""
        return "".join(self._pieces)

    def append(self, text: str) -> Iterator[Event]:
        """Append text, and yield the newly final text of the value."""
        assert self.field is not None
        self._pieces.append(text)
        text = self._visible(text)
        if self.field.content == "text" and self.field.content_args.get("strip", True):
            text = self._trimmed.push(text)
        if text:
            yield FieldText(self.field.name, text)

    @property
    def is_text(self) -> bool:
        """True if the value is the text itself, without strings."""
        return self.field is None or self.field.content == "text"

    def is_inside_value(self, more: str, length: int) -> bool:
        """Return True if a delimiter of the given length, after more text, would be inside a string or value."""
        assert self.field is not None
        whole = self.body + more
        if not is_inside(self.field.content, remove_signs(whole), self.field.content_args):
            return False
        self._inner_delimiter = self._inner_delimiter or (len(whole), len(whole) + length)
        return True

    def is_misread(self, delimiter_text: str) -> bool:
        """Return True if the value is malformed, and a delimiter was treated as part of a string or value.

        Args:
            delimiter_text: the possible closing delimiter.
        """
        if self._inner_delimiter is None:
            return False
        try:
            self.values(delimiter_text)
        except Malformed:
            return True
        return False

    def is_whole(self, more: str) -> bool:
        """Return True if the text so far with more text is a value of the field's format."""
        self._pieces.append(more)
        try:
            return not self.values("")[1]
        except Malformed:
            return False
        finally:
            self._pieces.pop()

    def cut_at_inner_delimiter(self) -> tuple[str, str]:
        """Truncate the text before the first delimiter inside a string. Return this delimiter and the text after it."""
        assert self._inner_delimiter is not None
        begin, end = self._inner_delimiter
        body, self._inner_delimiter = self.body, None
        self._pieces = [body[:begin]]
        return body[begin:end], body[end:]

    def values(self, delimiter_text: str) -> tuple[list[Any], str]:
        """Return the values of the text (usually one), and the text between them.

        Args:
            delimiter_text: the closing delimiter.

        Raises:
            Malformed: the text does not have the field's format.
        """
        field = self.field
        assert field is not None
        # Tokens around strings may be special.
        text = remove_signs(self.body) if "string_delims" in field.content_args else self._visible(self.body)
        if "whole_pattern" in field.content_args:  # it also matches the closing delimiter
            text += remove_signs(delimiter_text)
        values, other_text = parse_values(field.content, text, field.content_args)
        return [self._value(field, value) for value in values], other_text

    def _value(self, field: Field, value: Any) -> Any:
        if field.join is not None and not isinstance(value, str):
            raise Malformed(f"expected a text to join, got {value!r:.80}")
        if field.transform is None:
            return value
        if not field.transform_each:
            return transform_value(field.transform, {**self._captures, "content": value})
        value = [value] if isinstance(value, Mapping) else value
        if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
            raise Malformed(f"expected a list of objects, got {value!r:.200}")
        return [transform_value(field.transform, {**self._captures, **each}) for each in value]
