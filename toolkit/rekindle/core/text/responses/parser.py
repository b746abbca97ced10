"""An answer read by a response template while it comes: events for what is new, and the message at the end."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from rekindle.core.text.responses.contents import Malformed, TrimmedText, is_inside, values_of
from rekindle.core.text.responses.delimiters import NO_CAPTURES, Delimiter, FoundMark
from rekindle.core.text.responses.marks import unsigned
from rekindle.core.text.responses.template import Field, ResponseTemplate
from rekindle.core.text.responses.transforms import transformed

CONTEXT = 64
"""How many characters of what was read are kept, for patterns that look back."""


@dataclass(frozen=True, slots=True)
class Grown:
    """More text of a part. The texts of a part that is text, joined, are its value; those of others are as written."""

    field: str
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """A part that is complete.

    Attributes:
        field: its name.
        value: what it means; None if that cannot be said.
        raw: all of it as it was written, what it begins and ends with included.
        error: why its meaning cannot be said; None if it can.
    """

    field: str
    value: Any
    raw: str
    error: str | None = None


Event = Grown | Closed


@dataclass(frozen=True, slots=True)
class TextSpan:
    """The place of a part's text among all that was read, without its marks."""

    field: str
    start: int
    end: int


class ResponseParser:
    """The reader of one answer. How the answer is cut into pieces changes nothing but the pieces of `Grown`.

    A part whose text is malformed is told in its `Closed`, and is not in the message; transformers raises there. A mark
    in a string or a value belongs to that, unless the part is malformed with it: then the mark ended the part.

    Args:
        template: how the answer is read.
        prompt: what the answer follows, or the end of it: what a chat template has written behind the last anchor
            belongs to the answer.
        shows_special: whether special tokens that are no marks in their place are shown.

    Attributes:
        events_of_prompt: what the prompt had of the answer.
        spans: of the parts that are complete, counted from where the prompt's part of the answer begins.
    """

    def __init__(self, template: ResponseTemplate, prompt: str = "", shows_special: bool = False) -> None:
        self._template = template
        self._shown = unsigned if shows_special else template.marks.shown
        self._message: dict[str, Any] = deepcopy(dict(template.defaults))
        self.spans: list[TextSpan] = []
        self._text = ""
        self._dropped = 0  # characters that were before those of _text
        self._place = 0
        self._empty_at: int | None = None  # where a mark without any text began a part, which it may do once
        self._region = _Region(template.implicit, "", NO_CAPTURES, 0, self._shown, begun=False)
        self.events_of_prompt = tuple(self.feed(prompt[template.anchor.last_end(prompt) or 0 :]))

    @property
    def message(self) -> Mapping[str, Any]:
        """The message of the parts that are complete."""
        return self._message

    @property
    def length(self) -> int:
        """The number of characters that were read, those of the prompt's part of the answer included."""
        return self._dropped + len(self._text)

    def feed(self, text: str) -> list[Event]:
        """Take more of the answer, and return what it tells."""
        gone = max(0, self._place - CONTEXT)
        self._text = self._text[gone:] + text
        self._place -= gone
        self._dropped += gone
        self._empty_at = None if self._empty_at is None else self._empty_at - gone
        return list(self._read(final=False))

    def finish(self) -> tuple[dict[str, Any], list[Event]]:
        """Take the end of the answer, and return the message without what is empty, and what the end tells."""
        events = list(self._read(final=True))
        kept = {
            name: value
            for name, value in self._message.items()
            if name in self._template.defaults or value not in (None, "", [], {})
        }
        return kept, events

    def _read(self, final: bool) -> Iterator[Event]:
        while True:
            found, pending = self._next_mark(final)
            if found is None:
                yield from self._take(len(self._text) if final else pending)
                if not final:
                    return
                if not self._region.misread(""):
                    yield from self._close("")
                    return
                yield from self._close(self._back_to_mark(len(self._text)))
                continue
            field, mark = found
            yield from self._take(mark.start)
            written, self._place = self._text[mark.start : mark.end], mark.end
            if self._region.misread(written):
                yield from self._close(self._back_to_mark(mark.start))
                continue
            implicit = self._region.field is self._template.implicit
            if not implicit or field is self._template.implicit:
                anything = self._region.begun
                yield from self._close(written)
                if not written and not anything:
                    self._empty_at = mark.start
                continue
            yield from self._close("")
            if not written:
                self._empty_at = mark.start
            yield from self._open(field, written, mark.captures)

    def _next_mark(self, final: bool) -> tuple[tuple[Field, FoundMark] | None, int]:
        """Return the first mark that ends this part or begins another, and from where on nothing is sure yet."""
        first: tuple[Field, FoundMark] | None = None
        pending = len(self._text)
        for field, delimiter in self._watched():
            found, unsure = self._find(field, delimiter, final)
            pending = min(pending, unsure)
            if found is None or (found.end == found.start == self._empty_at):
                continue
            if first is None or _rank(field, found) < _rank(*first):
                first = field, found
        if first is not None and first[1].start >= pending:
            first = None
        return first, max(pending, self._place)

    def _find(self, field: Field, delimiter: Delimiter, final: bool) -> tuple[FoundMark | None, int]:
        """Look for a mark as `Delimiter.find` does, but for those inside a string or a value of the region."""
        region, start = self._region, self._place
        while True:
            found, unsure = delimiter.find(self._text, start, final)
            if found is None or region.field is not field or region.is_text:
                return found, unsure
            if not region.holds(self._text[self._place : found.start], found.end - found.start):
                return found, unsure
            start = max(found.end, found.start + 1)

    def _back_to_mark(self, end: int) -> str:
        """Return to the first mark that was taken for a part of a string, in a part that ends at a place; return it."""
        written, rest = self._region.cut()
        self._dropped += end - len(rest) - len(written)
        self._text, self._place = f"{written}{rest}{self._text[end:]}", len(written)
        self._empty_at = None
        return written

    def _watched(self) -> Iterator[tuple[Field, Delimiter]]:
        """Yield what may come next, by the field that it is about."""
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
        """Take the text up to a place as part of the region."""
        text, self._place = self._text[self._place : end], max(self._place, end)
        if text and self._region.field is not None:
            if not self._region.begun:
                yield from self._begin()
            yield from self._region.grow(text)

    def _open(self, field: Field, written: str, captures: Mapping[str, str]) -> Iterator[Event]:
        self._region = _Region(field, written, captures, self._dropped + self._place, self._shown, begun=False)
        yield from self._begin()

    def _begin(self) -> Iterator[Event]:
        """Begin a region: one that is joined to a former of its name begins with what is between them."""
        region, self._region.begun = self._region, True
        field = region.field
        if field is not None and field.join and isinstance(self._message.get(field.name), str):
            yield Grown(field.name, field.join)

    def _close(self, written: str) -> Iterator[Event]:
        """End the region, and go back to the field that has what is in no other."""
        place = self._dropped + self._place
        implicit = self._template.implicit
        region, self._region = self._region, _Region(implicit, "", NO_CAPTURES, place, self._shown, begun=False)
        field = region.field
        if field is None or not region.begun:
            return
        self.spans.append(TextSpan(field.name, region.start, region.start + len(region.body)))
        opened_by, closed_by = map(self._template.marks.without_ends, (region.opened_by, written))
        raw = f"{opened_by}{self._shown(region.body)}{closed_by}"
        try:
            values, others = region.values(written)
        except Malformed as error:
            yield Closed(field.name, None, raw, str(error))
            return
        for value in values:
            if field.join is not None and field.name in self._message:
                self._message[field.name] += field.join + value
            elif field.join is None and field.repeats:
                self._message.setdefault(field.name, []).append(value)
            else:
                self._message[field.name] = value
        yield Closed(field.name, values[0] if len(values) == 1 else values, raw)
        if others and implicit is not None and implicit is not field:
            yield from self._begin()
            yield from self._region.grow(others)


def _rank(field: Field, found: FoundMark) -> tuple[int, int, bool, str]:
    """Return what the next mark is the least by: its place; then the longest, one that begins a part, and the name."""
    return found.start, found.start - found.end, field.open is None, field.name


class _Region:
    """A part of the answer that is being written.

    Args:
        field: what it is a part of; None for text that no field has.
        opened_by: the mark that it began with.
        captures: the texts of the named groups of that mark.
        start: the place of its first character among all that was read.
        shown: returns a text without the signs of marks, and without special tokens.
        begun: whether it has begun, which the field without a mark does with its first character.
    """

    def __init__(
        self,
        field: Field | None,
        opened_by: str,
        captures: Mapping[str, str],
        start: int,
        shown: Callable[[str], str],
        *,
        begun: bool,
    ) -> None:
        self.field = field
        self.opened_by = opened_by
        self.start = start
        self.begun = begun
        self._shown = shown
        self._captures = captures
        self._held_mark: tuple[int, int] | None = None  # where the first mark in a string begins in the body, and ends
        self._pieces: list[str] = []
        self._trimmed = TrimmedText()

    @property
    def body(self) -> str:
        """All of its text, without marks."""
        return "".join(self._pieces)

    def grow(self, text: str) -> Iterator[Event]:
        """Take more text, and yield what of it is sure to be part of the value."""
        assert self.field is not None
        self._pieces.append(text)
        text = self._shown(text)
        if self.field.content == "text" and self.field.content_args.get("strip", True):
            text = self._trimmed.push(text)
        if text:
            yield Grown(self.field.name, text)

    @property
    def is_text(self) -> bool:
        """Tell whether its text is its value, which has no strings."""
        return self.field is None or self.field.content == "text"

    def holds(self, further: str, length: int) -> bool:
        """Tell whether a mark of a length that comes after further text is inside a string or a value."""
        assert self.field is not None
        whole = self.body + further
        if not is_inside(self.field.content, whole, self.field.content_args):
            return False
        self._held_mark = self._held_mark or (len(whole), len(whole) + length)
        return True

    def misread(self, written: str) -> bool:
        """Tell whether a mark was taken for a part of a string, and what came of that means nothing.

        Args:
            written: the mark that would end it.
        """
        if self._held_mark is None:
            return False
        try:
            self.values(written)
        except Malformed:
            return True
        return False

    def cut(self) -> tuple[str, str]:
        """End its text before the first mark in a string; return the mark, and what followed it."""
        assert self._held_mark is not None
        begin, end = self._held_mark
        body, self._held_mark = self.body, None
        self._pieces = [body[:begin]]
        return body[begin:end], body[end:]

    def values(self, written: str) -> tuple[list[Any], str]:
        """Return the values of its text, as a rule one, and the other text in it.

        Args:
            written: the mark that it ended with.

        Raises:
            Malformed: that cannot be said.
        """
        field = self.field
        assert field is not None
        text = self._shown(self.body)
        if "whole_pattern" in field.content_args:  # which tells by its end whether it is whole
            text += unsigned(written)
        values, others = values_of(field.content, text, field.content_args)
        return [self._value(field, value) for value in values], others

    def _value(self, field: Field, value: Any) -> Any:
        if field.join is not None and not isinstance(value, str):
            raise Malformed(f"expected a text that can be joined to another, got {value!r:.80}")
        if field.transform is None:
            return value
        if not field.transform_each:
            return transformed(field.transform, {**self._captures, "content": value})
        value = [value] if isinstance(value, Mapping) else value
        if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
            raise Malformed(f"expected a list of objects, got {value!r:.200}")
        return [transformed(field.transform, {**self._captures, **each}) for each in value]
