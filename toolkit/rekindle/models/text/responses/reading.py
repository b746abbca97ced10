"""One answer read while its tokens come, into parts and at last into a response."""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from rekindle.models.text.incremental import IncrementalDecoder
from rekindle.models.text.responses.calls import call_id, calls_of
from rekindle.models.text.responses.formats import REASONING_KEYS, Format
from rekindle.models.text.responses.parser import Closed, Event, Grown, ResponseParser
from rekindle.models.text.responses.template import ResponseTemplate
from rekindle.models.text.token_bytes import token_bytes
from rekindle.models.text.tokenizer import Tokenizer
from rekindle.results.response import Part, PartKind, Response, ToolCall

TAIL = 64
"""How many of the last tokens of a prompt are read first, to find what its chat template has written of the answer."""


class RawText:
    """The text of an answer with its special tokens, as far as its text without them has come.

    A stop string holds text back and cuts it, so the tokens alone do not tell how far the text goes.

    Args:
        shows_special: whether the text has the special tokens too.
        goes_on: see `IncrementalDecoder`.

    Attributes:
        starts: the place in the text where that of each token begins; a token without text of its own is where the next
            one begins.
    """

    def __init__(self, tokenizer: Tokenizer, shows_special: bool, goes_on: bool = False) -> None:
        self._tokenizer = tokenizer
        self._shows_special = shows_special
        self._decoder = IncrementalDecoder(tokenizer, goes_on=goes_on)
        self._waiting: deque[tuple[str, bool]] = deque()  # (text, whether it counts as text that came)
        self._due = 0
        self.starts: list[int] = []
        self._length = 0

    def push(self, text: str, token_ids: Sequence[int]) -> str:
        """Take more text and more tokens, and return the text with special tokens that came with them."""
        for token in token_ids:
            if self._decoder.skips(token):
                raw = token_bytes(self._tokenizer, token).decode("utf-8", "backslashreplace")
                counts = self._shows_special
            else:
                raw, counts = self._decoder.push(token), True
            self._waiting.append((raw, counts))
            self.starts.append(self._length)
            self._length += len(raw)
        self._due += len(text)
        return self._released()

    def finish(self) -> str:
        """Return what is left at the end."""
        self._waiting.append((self._decoder.finish()[0], True))
        return self._released()

    def _released(self) -> str:
        released = []
        while self._waiting:
            text, counts = self._waiting[0]
            if counts and len(text) > self._due:
                released.append(text[: self._due])
                self._waiting[0] = text[self._due :], counts
                self._due = 0
                break
            self._waiting.popleft()
            released.append(text)
            self._due -= len(text) if counts else 0
        return "".join(released)


class Reading:
    """The reading of one answer.

    Args:
        answers: how they are read.
        tokenizer: the model's.
        prompt: the tokens that the answer follows.
        shows_special: whether the texts of the answer have special tokens.
        tools: the JSON schemas of the tools that it may call.
        goes_on: whether it goes on with a text of the prompt.
    """

    def __init__(
        self,
        answers: Format,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        shows_special: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        goes_on: bool = False,
    ) -> None:
        self._format, self._tools = answers, tools
        self._raw = RawText(tokenizer, shows_special, goes_on)
        self._parser: ResponseParser | None = None
        self._begun: tuple[Event, ...] = ()
        self._before = 0  # characters of the answer that the prompt has
        self._salt = str(len(prompt))
        self._calls: list[ToolCall] = []
        self._texts: dict[PartKind, _Stripped] = {"reasoning": _Stripped(), "content": _Stripped()}
        self._plain: list[str] = []
        if answers.template is not None:
            self._parser = ResponseParser(answers.template, _end_of(prompt, tokenizer, answers.template))
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
        content, reasoning = self._texts["content"].joined, self._texts["reasoning"].joined or None
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
                    parts += [Part(kind, "", call) for call in self._called(event)]
        return parts

    def _called(self, closed: Closed) -> list[ToolCall]:
        salt = f"{self._salt} {len(self._calls)}"
        if closed.error is not None:
            calls = [ToolCall("", {}, closed.raw, call_id(f"{salt} {closed.raw}"), closed.error)]
        else:
            calls = list(calls_of(closed.value, closed.raw, salt, self._tools))
        self._calls += calls
        return calls


class _Stripped:
    """A text that grows, without the white space around it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._held = ""

    @property
    def joined(self) -> str:
        return "".join(self._pieces)

    def push(self, text: str) -> str:
        text = self._held + text
        if not self._pieces:
            text = text.lstrip()
        shown = text.rstrip()
        self._held = text[len(shown) :]
        if shown:
            self._pieces.append(shown)
        return shown


def _kind(field: str) -> PartKind | None:
    """Return what a field of a response template is part of; None for what a response has no place for."""
    if field in REASONING_KEYS:
        return "reasoning"
    return "content" if field == "content" else "tool_call" if field == "tool_calls" else None


def _end_of(prompt: Sequence[int], tokenizer: Tokenizer, template: ResponseTemplate) -> str:
    """Return the end of a prompt, from before the last anchor on; nothing if there is none."""
    length = TAIL
    while True:
        text = tokenizer.decode(prompt[-length:], skip_special_tokens=False)
        if template.anchor.last_end(text) is not None:
            return text
        if length >= len(prompt):
            return ""
        length *= 2
