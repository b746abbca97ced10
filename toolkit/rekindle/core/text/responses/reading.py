"""One answer read while its tokens come, into parts and at last into a response."""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Any, Final

from rekindle.core.text.incremental import IncrementalDecoder
from rekindle.core.text.response import Part, PartKind, Response, ToolCall
from rekindle.core.text.responses.calls import call_id, calls_of
from rekindle.core.text.responses.contents import TrimmedText
from rekindle.core.text.responses.formats import REASONING_KEYS, Format
from rekindle.core.text.responses.marks import NO_MARKS, SIGN, Marks
from rekindle.core.text.responses.parser import Closed, Event, Grown, ResponseParser
from rekindle.core.text.responses.template import ResponseTemplate
from rekindle.core.text.token_bytes import token_bytes
from rekindle.core.text.tokenizer import Tokenizer

TAIL = 64
"""How many of the last tokens of a prompt are read first, to find what its chat template has written of the answer."""

_UNMARKED: Final = re.compile(r"\s*(?:\{|<function=)")
"""What a call begins with that has no mark, and so is one only if it calls a tool that was offered."""


class RawText:
    """The text of an answer with its special tokens, as far as its text without them has come.

    A stop string holds text back and cuts it, so the tokens alone do not tell how far the text goes.

    Args:
        marks: the tokens before whose texts a sign is to stand.
        shows_special: whether the text has the special tokens too.
        goes_on: see `IncrementalDecoder`.

    Attributes:
        starts: the place in the text where that of each token begins; a token without text of its own is where the next
            one begins.
    """

    def __init__(self, tokenizer: Tokenizer, marks: Marks, shows_special: bool, goes_on: bool = False) -> None:
        self._tokenizer, self._marks = tokenizer, marks
        self._shows_special = shows_special
        self._decoder = IncrementalDecoder(tokenizer, goes_on=goes_on)
        self._waiting: deque[tuple[str, int]] = deque()  # (text, how much of its end counts as text that came)
        self._due = 0
        self.starts: list[int] = []
        self._length = 0

    def push(self, text: str, token_ids: Sequence[int]) -> str:
        """Take more text and more tokens, and return the text with special tokens that came with them."""
        for token in token_ids:
            if self._decoder.skips(token):
                raw = token_bytes(self._tokenizer, token).decode("utf-8", "backslashreplace")
                counts = len(raw) if self._shows_special else 0
                raw = raw if counts or raw in self._marks.texts else ""
            else:
                raw = self._decoder.push(token)
                counts = len(raw)
            if token in self._tokenizer.added_ids and raw in self._marks.texts:
                raw = SIGN + raw
            self._waiting.append((raw, counts))
            self.starts.append(self._length)
            self._length += len(raw)
        self._due += len(text)
        return self._released()

    def finish(self) -> str:
        """Return what is left at the end."""
        rest = self._decoder.finish()[0]
        self._waiting.append((rest, len(rest)))
        return self._released()

    def _released(self) -> str:
        released = []
        while self._waiting:
            text, counts = self._waiting[0]
            if counts > self._due:
                text = text[-counts:]  # a token that is cut is no mark
                released.append(text[: self._due])
                self._waiting[0] = text[self._due :], counts - self._due
                self._due = 0
                break
            self._waiting.popleft()
            released.append(text)
            self._due -= counts
        return "".join(released)


class TemplateReading:
    """The reading of one answer.

    Args:
        answers: how they are read.
        tokenizer: the model's.
        prompt: the tokens that the answer follows.
        shows_special: whether the texts of the answer have special tokens.
        tools: the JSON schemas of the tools that it may call. Without any, nothing is taken for a call.
        goes_on: whether it goes on with a text of the prompt.
        salt: what makes the ids of its calls differ from those of other answers.
    """

    def __init__(
        self,
        answers: Format,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        shows_special: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        goes_on: bool = False,
        salt: str = "",
    ) -> None:
        self._format, self._tools = answers, tools
        template = answers.template if tools or answers.template is None else answers.template.without("tool_calls")
        self._raw = RawText(tokenizer, NO_MARKS if template is None else template.marks, shows_special, goes_on)
        self._parser: ResponseParser | None = None
        self._begun: tuple[Event, ...] = ()
        self._before = 0  # characters of the answer that the prompt has
        self._salt = salt
        self._calls: list[ToolCall] = []
        self._texts: dict[PartKind, TrimmedText] = {"reasoning": TrimmedText(), "content": TrimmedText()}
        self._plain: list[str] = []
        if template is not None:
            self._parser = ResponseParser(template, _end_of(prompt, tokenizer, template), shows_special)
            self._begun, self._before = self._parser.events_of_prompt, self._parser.length

    def push(self, text: str, token_ids: Sequence[int]) -> list[Part]:
        """Take more of the answer, and return what it tells."""
        self._plain.append(text)
        if self._parser is None:
            return [Part("content", text)] if text else []
        begun, self._begun = self._begun, ()
        return self._parts([*begun, *self._parser.feed(self._raw.push(text, token_ids))])

    def finish(self) -> tuple[Response, list[Part]]:
        """Take the end of the answer, and return it as a whole, and what the end tells."""
        plain = "".join(self._plain)
        if self._parser is None:
            return self._response(plain), []
        parts = self._parts([*self._begun, *self._parser.feed(self._raw.finish()), *self._parser.finish()[1]])
        content, reasoning = self._texts["content"].text, self._texts["reasoning"].text or None
        if not (content or reasoning or self._calls):  # an answer that does not keep to its format is not lost
            content = plain.strip()
            parts = [Part("content", content)] if content else []
        return self._response(content, reasoning), parts

    def reasoning_tokens(self) -> int:
        """Return how many tokens of an answer that has ended its reasoning has, without its marks, as vLLM counts them.

        Tokens that a stop string has cut off go on with what was before them.
        """
        if self._parser is None:
            return 0
        spans = [span for span in self._parser.spans if _kind(span.field) == "reasoning"]
        starts, end = [self._before + start for start in self._raw.starts], self._parser.length
        return sum(
            bisect_left(starts, inf if span.end == end else span.end) - bisect_left(starts, span.start)
            for span in spans
        )

    def _response(self, content: str, reasoning: str | None = None) -> Response:
        return Response(content, reasoning, tuple(self._calls), self._format.form)

    def _parts(self, events: Sequence[Event]) -> list[Part]:
        parts: list[Part] = []
        for event in events:
            kind = _kind(event.field)
            match event:
                case Grown(text=text) if kind == "tool_call":
                    parts.append(Part(kind, text))
                case Grown(text=text) if kind is not None:
                    if shown := self._texts[kind].push(text):
                        parts.append(Part(kind, shown))
                case Closed() if kind == "tool_call":
                    calls = self._called(event)
                    if _UNMARKED.match(event.raw) and not all(self._offers(call) for call in calls):
                        shown = self._texts["content"].push(event.raw)
                        parts += [Part("content", shown)] if shown else []
                        continue
                    self._calls += calls
                    parts += [Part(kind, "", call) for call in calls]
        return parts

    def _offers(self, call: ToolCall) -> bool:
        """Tell whether a call can be read, and is one of a tool that the model was told of."""
        return call.error is None and any(tool.get("function", tool).get("name") == call.name for tool in self._tools)

    def _called(self, closed: Closed) -> list[ToolCall]:
        salt = f"{self._salt} {len(self._calls)}"
        if closed.error is not None:
            return [ToolCall("", {}, closed.raw, call_id(f"{salt} {closed.raw}"), closed.error)]
        return list(calls_of(closed.value, closed.raw, salt, self._tools))


def _kind(field: str) -> PartKind | None:
    """Return what a field of a response template is part of; None for what a response has no place for."""
    if field in REASONING_KEYS:
        return "reasoning"
    return "content" if field == "content" else "tool_call" if field == "tool_calls" else None


def _end_of(prompt: Sequence[int], tokenizer: Tokenizer, template: ResponseTemplate) -> str:
    """Return the end of a prompt, from before the last anchor on; nothing if there is none."""
    length = TAIL
    while True:
        text = _with_signs(prompt[-length:], tokenizer, template.marks)
        if template.anchor.last_end(text) is not None:
            return text
        if length >= len(prompt):
            return ""
        length *= 2


def _with_signs(token_ids: Sequence[int], tokenizer: Tokenizer, marks: Marks) -> str:
    """Return the text of some tokens, with a sign before each that may be a mark."""
    texts = []
    for added, ids in groupby(token_ids, lambda token: token in tokenizer.added_ids):
        if added:
            for token in ids:
                text = tokenizer.backend.id_to_token(token) or ""
                texts.append(SIGN + text if text in marks.texts else text)
        else:
            texts.append(tokenizer.decode(ids, skip_special_tokens=False))
    return "".join(texts)
