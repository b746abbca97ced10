"""Stop strings in the content of an answer: its reasoning and its tool calls do not match."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rekindle.core.text.stops import StopMatcher
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.responses.formats import format_of
from rekindle.formats.responses.marks import SIGN
from rekindle.formats.responses.parser import ResponseParser
from rekindle.formats.responses.reading.reader import prompt_tail
from rekindle.formats.responses.template import ResponseTemplate

CONTENT = "content"


@dataclass(slots=True)
class _Piece:
    """Text of a token before its field is certain.

    Attributes:
        text: the text that the answer shows, or would show if it were not hidden.
        length: the number of its characters for the parser.
        may_stop, hidden: see `StopMatcher.push`.
    """

    text: str
    length: int
    may_stop: bool
    hidden: bool

    @property
    def is_whole(self) -> bool:
        """True if the piece is in one field, as a delimiter token is."""
        return self.length != len(self.text)


class ContentStops:
    """Matcher of one answer's stop strings in its content. Text is held back until its field is certain.

    Args:
        matcher: the matcher of the stop strings.
        tokenizer: the model's tokenizer.
        template: the response template of the answer.
        prompt: the token ids of the prompt, which may begin the reasoning.
        shows_special: whether the answer's text includes special tokens.
    """

    def __init__(
        self,
        matcher: StopMatcher,
        tokenizer: Tokenizer,
        template: ResponseTemplate,
        prompt: Sequence[int],
        shows_special: bool,
    ) -> None:
        self._matcher, self._tokenizer, self._marks = matcher, tokenizer, template.marks
        self._parser = ResponseParser(template, prompt_tail(prompt, tokenizer, template), shows_special)
        self._pieces: deque[_Piece] = deque()
        self._place = self._parser.length  # of the first piece in the parsed text
        self._span = 0  # index of the first span that ends after this place

    def push(self, token: int, text: str, may_stop: bool, hidden: bool) -> tuple[str, str | None]:
        """Consume the text of the next token; see `StopMatcher.push`."""
        is_mark = token in self._tokenizer.added_ids and text in self._marks.texts
        parsed = SIGN + text if is_mark else "" if hidden else text
        self._pieces.append(_Piece(text, len(parsed), may_stop, hidden))
        self._parser.feed(parsed)
        return self._release()

    def finish(self, text: str = "", may_stop: bool = True) -> tuple[str, str | None]:
        """Consume the last piece of text; see `StopMatcher.finish`."""
        self._pieces.append(_Piece(text, len(text), may_stop, hidden=False))
        self._parser.feed(text)
        self._parser.finish()
        visible, stop = self._release()
        if stop is not None:
            return visible, stop
        rest, stop = self._matcher.finish()
        return visible + rest, stop

    def _release(self) -> tuple[str, str | None]:
        """Match the pieces whose fields are certain. Return the newly visible text, and the matched stop or None."""
        visible = ""
        certain = self._parser.last_span.end
        while self._pieces and (self._place < certain or not self._pieces[0].length):
            piece = self._pieces[0]
            is_content, end = self._run_at(self._place)
            length = piece.length if piece.is_whole else min(piece.length, end - self._place, certain - self._place)
            text = piece.text if piece.is_whole else piece.text[:length]
            if is_content:
                more, stop = self._matcher.push(text, piece.may_stop, piece.hidden)
                visible += more
                if stop is not None:
                    return visible, stop
            else:
                visible += self._matcher.pass_by(text, piece.hidden)
            self._place += length
            if length == piece.length:
                self._pieces.popleft()
            else:
                piece.text, piece.length = piece.text[length:], piece.length - length
        return visible, None

    def _run_at(self, place: int) -> tuple[bool, int]:
        """Return True if a position is in the content, and the end of this run of text."""
        spans, last = self._parser.spans, self._parser.last_span
        while self._span < len(spans):
            span = spans[self._span]
            following = spans[self._span + 1] if self._span + 1 < len(spans) else last
            end = min(span.closed_at, max(following.opened_at, span.end))
            if place < end:
                return (False, span.start) if place < span.start else (span.field == CONTENT, end)
            self._span += 1
        return (False, last.start) if place < last.start else (last.field == CONTENT, max(last.end, place + 1))


def content_stops(
    matcher: StopMatcher, tokenizer: Tokenizer, prompt: Sequence[int], calls: bool, shows_special: bool
) -> ContentStops | StopMatcher:
    """Return the matcher for a turn of the assistant: the given one if its answers are content alone.

    Args:
        matcher, tokenizer, prompt, shows_special: see `ContentStops`.
        calls: whether the answer may call tools.
    """
    answers = format_of(tokenizer)
    template = answers.template
    if template is not None and not calls:
        template = None if answers.is_plain else template.without("tool_calls")
    return matcher if template is None else ContentStops(matcher, tokenizer, template, prompt, shows_special)
