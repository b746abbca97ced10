"""Incremental parser of an answer by a response template: events for new text, and a message at the end."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from rekindle.formats.responses.contents import Malformed
from rekindle.formats.responses.delimiters import NO_CAPTURES, Delimiter, DelimiterMatch
from rekindle.formats.responses.marks import remove_signs
from rekindle.formats.responses.region import Event, FieldEnd, FieldStart, FieldText, Region, TextSpan
from rekindle.formats.responses.template import Field, ResponseTemplate

CONTEXT = 64
"""Number of parsed characters retained for lookbehind in patterns."""


class ResponseParser:
    """Incremental parser of one answer. Piece boundaries affect only the pieces of `FieldText`.

    A malformed value is reported by its `FieldEnd` and left out of the message; transformers raises an error instead.
    A delimiter inside a string or value belongs to it, unless this makes the value malformed: the delimiter then ends
    the field.

    Args:
        template: the response template.
        prompt: the prompt, or its end. Text after the last anchor belongs to the answer.
        shows_special: whether to keep special tokens that are not delimiters at their position.

    Attributes:
        prompt_events: events for the prompt's part of the answer.
        spans: positions of complete fields, from the start of the prompt's part of the answer.
    """

    def __init__(self, template: ResponseTemplate, prompt: str = "", shows_special: bool = False) -> None:
        self._template = template
        self._visible = remove_signs if shows_special else template.marks.visible
        self._message: dict[str, Any] = deepcopy(dict(template.defaults))
        self.spans: list[TextSpan] = []
        self._text = ""
        self._dropped = 0  # number of characters removed before `_text`
        self._place = 0
        self._empty_at: int | None = None  # position of an empty match; it may begin a field only once
        self._region = Region(template.implicit, "", NO_CAPTURES, 0, self._visible, has_begun=False)
        self.prompt_events = tuple(self.feed(prompt[template.anchor.last_end(prompt) or 0 :]))

    @property
    def message(self) -> Mapping[str, Any]:
        """The message from all complete fields."""
        return self._message

    @property
    def length(self) -> int:
        """Number of received characters, including the prompt's part of the answer."""
        return self._dropped + len(self._text)

    @property
    def last_span(self) -> TextSpan:
        """Position of the field in progress, up to the first character without a certain field."""
        region, end = self._region, self._dropped + self._place
        return TextSpan("" if region.field is None else region.field.name, region.opened_at, region.start, end, end)

    def feed(self, text: str) -> list[Event]:
        """Parse more of the answer, and return its events."""
        dropped = max(0, self._place - CONTEXT)
        self._text = self._text[dropped:] + text
        self._place -= dropped
        self._dropped += dropped
        self._empty_at = None if self._empty_at is None else self._empty_at - dropped
        return list(self._read(final=False))

    def finish(self) -> tuple[dict[str, Any], list[Event]]:
        """End the answer, and return the message without empty values, and the last events."""
        events = list(self._read(final=True))
        message = {
            name: value
            for name, value in self._message.items()
            if name in self._template.defaults or value not in (None, "", [], {})
        }
        return message, events

    def _read(self, final: bool) -> Iterator[Event]:
        while True:
            match, pending = self._next_delimiter(final)
            if match is None:
                yield from self._take(self._start_of_cut_mark() if final else pending)
                if not final:
                    return
                if not self._region.is_misread(""):
                    yield from self._close("")
                    return
                yield from self._close(self._rewind(len(self._text)))
                continue
            field, mark = match
            yield from self._take(mark.start)
            delimiter_text, self._place = self._text[mark.start : mark.end], mark.end
            if final and field is self._region.field and self._is_cut_in(field, mark):
                self._place = len(self._text)
            if self._region.is_misread(delimiter_text):
                yield from self._close(self._rewind(mark.start))
                continue
            implicit = self._region.field is self._template.implicit
            if not implicit or field is self._template.implicit:
                had_text = self._region.has_begun
                yield from self._close(delimiter_text)
                if not delimiter_text and not had_text:
                    self._empty_at = mark.start
                continue
            yield from self._close("")
            if not delimiter_text:
                self._empty_at = mark.start
            yield from self._open(field, delimiter_text, mark.captures)

    def _next_delimiter(self, final: bool) -> tuple[tuple[Field, DelimiterMatch] | None, int]:
        """Return the first match that ends this field or begins another, and the start of uncertain text."""
        first: tuple[Field, DelimiterMatch] | None = None
        pending = len(self._text)
        for field, delimiter in self._possible_delimiters():
            match, unsure_from = self._find(field, delimiter, final)
            pending = min(pending, unsure_from)
            if match is None or (match.end == match.start == self._empty_at):
                continue
            if first is None or _rank(field, match) < _rank(*first):
                first = field, match
        if first is not None and first[1].start >= pending:
            first = None
        return first, max(pending, self._place)

    def _find(self, field: Field, delimiter: Delimiter, final: bool) -> tuple[DelimiterMatch | None, int]:
        """Find a match with `Delimiter.find`, ignoring matches inside a string or value of the region."""
        region, start = self._region, self._place
        while True:
            match, unsure_from = delimiter.find(self._text, start, final)
            if match is None or region.field is not field or region.is_text:
                return match, unsure_from
            if not region.is_inside_value(self._text[self._place : match.start], match.end - match.start):
                return match, unsure_from
            start = max(match.end, match.start + 1)

    def _start_of_cut_mark(self) -> int:
        """Return the start of a closing delimiter that the answer's end cuts behind a whole value; else the end."""
        region, end = self._region, len(self._text)
        if region.is_text or region.field is None or region.field.close is None:
            return end
        start = max(self._place, region.field.close.find(self._text, self._place, final=False)[1])
        return start if start < end and region.is_whole(self._text[self._place : start]) else end

    def _is_cut_in(self, field: Field, mark: DelimiterMatch) -> bool:
        """Return True if the answer's end cuts the optional end of a field's closing delimiter."""
        if self._region.is_text or field.close is None:
            return False
        return field.close.find(self._text, mark.start, final=False) == (None, mark.start)

    def _rewind(self, end: int) -> str:
        """Rewind a malformed value to the first delimiter inside a string. Return the delimiter's text."""
        delimiter_text, remainder = self._region.cut_at_inner_delimiter()
        self._dropped += end - len(remainder) - len(delimiter_text)
        self._text, self._place = f"{delimiter_text}{remainder}{self._text[end:]}", len(delimiter_text)
        self._empty_at = None
        return delimiter_text

    def _possible_delimiters(self) -> Iterator[tuple[Field, Delimiter]]:
        """Yield the possible next delimiters with their fields."""
        field, implicit = self._region.field, self._template.implicit
        if field is not None and field is not implicit:
            if field.close is not None:
                yield field, field.close
            return
        for each in self._template.fields.values():
            if each.open is not None:
                yield each, each.open
        if implicit is not None and implicit.close is not None:
            yield implicit, implicit.close

    def _take(self, end: int) -> Iterator[Event]:
        """Append the text up to a position to the region."""
        text, self._place = self._text[self._place : end], max(self._place, end)
        if text and self._region.field is not None:
            if not self._region.has_begun:
                yield from self._begin()
            yield from self._region.append(text)

    def _open(self, field: Field, delimiter_text: str, captures: Mapping[str, str]) -> Iterator[Event]:
        self._region = Region(
            field, delimiter_text, captures, self._dropped + self._place, self._visible, has_begun=False
        )
        yield FieldStart(field.name, captures)
        yield from self._begin()

    def _begin(self) -> Iterator[Event]:
        """Begin a region. If it is joined to an earlier value of its field, emit the joining text."""
        region, self._region.has_begun = self._region, True
        field = region.field
        if field is not None and field.join and isinstance(self._message.get(field.name), str):
            yield FieldText(field.name, field.join)

    def _close(self, delimiter_text: str) -> Iterator[Event]:
        """End the region, and return to the implicit field."""
        place = self._dropped + self._place
        implicit = self._template.implicit
        region, self._region = self._region, Region(implicit, "", NO_CAPTURES, place, self._visible, has_begun=False)
        field = region.field
        if field is None or not region.has_begun:
            return
        end = region.start + len(region.body)
        self.spans.append(TextSpan(field.name, region.opened_at, region.start, end, place))
        opening, closing = map(self._template.marks.without_ends, (region.opening, delimiter_text))
        raw = f"{opening}{self._visible(region.body)}{closing}"
        try:
            values, other_text = region.values(delimiter_text)
        except Malformed as error:
            yield FieldEnd(field.name, None, raw, str(error))
            return
        for value in values:
            if field.join is not None and field.name in self._message:
                self._message[field.name] += field.join + value
            elif field.join is None and field.repeats:
                self._message.setdefault(field.name, []).append(value)
            else:
                self._message[field.name] = value
        yield FieldEnd(field.name, values[0] if len(values) == 1 else values, raw)
        if other_text and implicit is not None and implicit is not field:
            yield from self._begin()
            yield from self._region.append(other_text)


def _rank(field: Field, match: DelimiterMatch) -> tuple[int, int, bool, str]:
    """Return the sort key of matches: position, then longest, then closing before opening, then name."""
    return match.start, match.start - match.end, field.open is None, field.name
