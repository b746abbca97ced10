"""Incremental parsing of one answer's tokens into parts, and finally a response."""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby, islice
from math import inf
from typing import Any

from rekindle.core.text.incremental import IncrementalDecoder
from rekindle.core.text.token_bytes import token_bytes
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.response import Part, PartKind, Response
from rekindle.formats.responses.contents import TrimmedText
from rekindle.formats.responses.formats import REASONING_KEYS, Format
from rekindle.formats.responses.marks import NO_MARKS, SIGN, Marks
from rekindle.formats.responses.parser import ResponseParser
from rekindle.formats.responses.reading.answer_calls import AnswerCalls
from rekindle.formats.responses.region import Event, FieldEnd, FieldStart, FieldText
from rekindle.formats.responses.template import ResponseTemplate

TAIL = 64
"""Number of prompt tokens searched first for the start of the answer."""


class RawText:
    """Text of an answer with its special tokens, synchronized with the text without them.

    Stop strings delay and truncate the visible text, so the tokens alone do not determine its length.

    Args:
        marks: the tokens to mark with a sign.
        shows_special: whether the visible text includes special tokens.
        goes_on: see `IncrementalDecoder`.

    Attributes:
        starts: start position of each token in the text. A token without text has the next token's position.
    """

    def __init__(self, tokenizer: Tokenizer, marks: Marks, shows_special: bool, goes_on: bool = False) -> None:
        self._tokenizer, self._marks = tokenizer, marks
        self._shows_special = shows_special
        self._decoder = IncrementalDecoder(tokenizer, goes_on=goes_on)
        self._waiting: deque[tuple[str, int]] = deque()  # (text, number of its last characters in the visible text)
        self._budget = 0
        self.starts: list[int] = []
        self._length = 0

    def push(self, text: str, token_ids: Sequence[int]) -> str:
        """Add visible text and tokens, and return the corresponding text with special tokens."""
        for token in token_ids:
            if self._decoder.skips(token):
                raw = token_bytes(self._tokenizer, token).decode("utf-8", "backslashreplace")
                visible_length = len(raw) if self._shows_special else 0
                raw = raw if visible_length or raw in self._marks.texts else ""
            else:
                raw = self._decoder.push(token)
                visible_length = len(raw)
            if token in self._tokenizer.added_ids and raw in self._marks.texts:
                raw = SIGN + raw
            self._waiting.append((raw, visible_length))
            self.starts.append(self._length)
            self._length += len(raw)
        self._budget += len(text)
        return self._release()

    def finish(self) -> str:
        """Return the remaining text."""
        rest = self._decoder.finish()[0]
        self._waiting.append((rest, len(rest)))
        return self._release()

    def _release(self) -> str:
        pieces = []
        while self._waiting:
            text, visible_length = self._waiting[0]
            if visible_length > self._budget:
                text = text[-visible_length:]  # a truncated token is not a delimiter
                pieces.append(text[: self._budget])
                self._waiting[0] = text[self._budget :], visible_length - self._budget
                self._budget = 0
                break
            self._waiting.popleft()
            pieces.append(text)
            self._budget -= visible_length
        return "".join(pieces)


class TemplateReading:
    """Incremental parser of one answer.

    Args:
        answer_format: the format of the answer.
        tokenizer: the model's tokenizer.
        prompt: the token ids of the prompt.
        shows_special: whether the answer's text includes special tokens.
        tools: JSON schemas of the available tools. Without tools, calls are not parsed.
        goes_on: whether the answer continues a text of the prompt.
        salt: a text to make the ids of calls differ from those of other answers.
    """

    def __init__(
        self,
        answer_format: Format,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        shows_special: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        goes_on: bool = False,
        salt: str = "",
    ) -> None:
        self._form, self._calls = answer_format.form, AnswerCalls(answer_format, tools, salt)
        template = answer_format.template
        if template is not None and not tools:
            template = None if answer_format.is_plain else template.without("tool_calls")
        self._raw = RawText(tokenizer, NO_MARKS if template is None else template.marks, shows_special, goes_on)
        self._parser: ResponseParser | None = None
        self._prompt_events: tuple[Event, ...] = ()
        self._prompt_length = 0  # number of the answer's characters in the prompt
        self._texts: dict[PartKind, TrimmedText] = {"reasoning": TrimmedText(), "content": TrimmedText()}
        self._plain: list[str] = []
        if template is not None:
            self._parser = ResponseParser(template, prompt_tail(prompt, tokenizer, template), shows_special)
            self._prompt_events, self._prompt_length = self._parser.prompt_events, self._parser.length

    def push(self, text: str, token_ids: Sequence[int]) -> list[Part]:
        """Parse more of the answer, and return the new parts."""
        self._plain.append(text)
        if self._parser is None:
            return [Part("content", text)] if text else []
        prompt_events, self._prompt_events = self._prompt_events, ()
        return self._parts([*prompt_events, *self._parser.feed(self._raw.push(text, token_ids))])

    def finish(self) -> tuple[Response, list[Part]]:
        """End the answer, and return the whole response and the last parts."""
        plain = "".join(self._plain)
        if self._parser is None:
            return self._response(plain), []
        parts = self._parts([*self._prompt_events, *self._parser.feed(self._raw.finish()), *self._parser.finish()[1]])
        content, reasoning = self._texts["content"].text, self._texts["reasoning"].text or None
        if not (content or reasoning or self._calls.calls):  # keep the text of an answer in the wrong format
            content = plain.strip()
            parts = [Part("content", content)] if content else []
        return self._response(content, reasoning), parts

    def reasoning_tokens(self) -> int:
        """Return the number of reasoning tokens in a finished answer, without delimiters, as vLLM counts them.

        Tokens removed by a stop string count as part of the field before them.
        """
        if self._parser is None:
            return 0
        spans = [span for span in self._parser.spans if _kind(span.field) == "reasoning"]
        starts, end = [self._prompt_length + start for start in self._raw.starts], self._parser.length
        return sum(
            bisect_left(starts, inf if span.end == end else span.end) - bisect_left(starts, span.start)
            for span in spans
        )

    def first_call_tokens(self) -> int | None:
        """Return the number of tokens up to the end of the first complete call; None before."""
        place = self._calls.first_field
        if self._parser is None or place is None:
            return None
        ends = (span.closed_at for span in self._parser.spans if _kind(span.field) == "tool_call")
        return bisect_left(self._raw.starts, next(islice(ends, place, None)) - self._prompt_length)

    def _response(self, content: str, reasoning: str | None = None) -> Response:
        return Response(content, reasoning, tuple(self._calls.calls), self._form)

    def _parts(self, events: Sequence[Event]) -> list[Part]:
        parts: list[Part] = []
        for event in events:
            kind = _kind(event.field)
            match event:
                case FieldStart(captures=captures) if kind == "tool_call":
                    self._calls.start(event.field, captures)
                case FieldText(text=text) if kind == "tool_call":
                    parts.append(Part(kind, text, pieces=self._calls.pieces_of(text)))
                case FieldText(text=text) if kind is not None:
                    if visible := self._texts[kind].push(text):
                        parts.append(Part(kind, visible))
                case FieldEnd() if kind == "tool_call":
                    calls = self._calls.end(event)
                    if calls is not None:
                        parts += calls
                    elif visible := self._texts["content"].push(event.raw):
                        parts.append(Part("content", visible))
        return parts


def _kind(field: str) -> PartKind | None:
    """Return the kind of part for a field of a response template, or None for unsupported fields."""
    if field in REASONING_KEYS:
        return "reasoning"
    return "content" if field == "content" else "tool_call" if field == "tool_calls" else None


def prompt_tail(prompt: Sequence[int], tokenizer: Tokenizer, template: ResponseTemplate) -> str:
    """Return the end of a prompt, including the last anchor; empty if there is no anchor."""
    length = TAIL
    while True:
        text = _with_signs(prompt[-length:], tokenizer, template.marks)
        if template.anchor.last_end(text) is not None:
            return text
        if length >= len(prompt):
            return ""
        length *= 2


def _with_signs(token_ids: Sequence[int], tokenizer: Tokenizer, marks: Marks) -> str:
    """Return the text of tokens, with a sign before each possible delimiter token."""
    texts = []
    for is_added, ids in groupby(token_ids, lambda token: token in tokenizer.added_ids):
        if is_added:
            for token in ids:
                text = tokenizer.backend.id_to_token(token) or ""
                texts.append(SIGN + text if text in marks.texts else text)
        else:
            texts.append(tokenizer.decode(ids, skip_special_tokens=False))
    return "".join(texts)
