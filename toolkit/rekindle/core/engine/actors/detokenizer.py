"""The detokenizer actor: turns token ids into text, piece by piece, without split characters or stop strings."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from weakref import ref

from anyio.lowlevel import checkpoint

from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Message, Output, Outputs, Rejected, Stopped, Text, Texts
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.request.repetition import RepetitionWatch
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason, TokenLogprob
from rekindle.core.text.incremental import IncrementalDecoder
from rekindle.core.text.stops import StopMatcher
from rekindle.core.text.token_bytes import token_bytes
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.core.text.turns import CallWatcher, Turns, TurnStops

SCORES_AT_ONCE = 512
"""Tokens in log-probabilities per turn; their texts take half a millisecond. Other actors run between turns."""


@dataclass(slots=True)
class _GrowingText:
    """The growing text of one request.

    Attributes:
        first_call: watcher for the end of the first tool call; None for an output without this end.
        repetition: watch for repetition; None for an output without a limit.
        plain: whether only its tokens end the output: no stop string, no call and no repetition.
        piece: the text of the latest token, as far as it is visible.
        stopped: whether a stop string or the first tool call is complete, or the output repeats itself.
    """

    request: ref[Request]
    decoder: IncrementalDecoder
    matcher: StopMatcher | TurnStops
    text_of: Callable[[int], str]
    first_call: CallWatcher | None = None
    repetition: RepetitionWatch | None = None
    plain: bool = False
    tokens: int = 0
    piece: str = ""
    stopped: bool = False

    def push(self, token: int, min_tokens: int) -> tuple[str, str | None]:
        self.tokens += 1
        skipped = self.decoder.skips(token)
        text = self.text_of(token) if skipped else self.decoder.push(token)
        self.piece = "" if skipped else text
        may_stop = self.tokens >= min_tokens
        if isinstance(self.matcher, StopMatcher):
            return self.matcher.push(text, may_stop, skipped)
        return self.matcher.push(token, text, may_stop, skipped)

    def last_token(self, token: int, min_tokens: int) -> int | None:
        """Return the number of tokens up to the end of the first call; None before, and if it would be too early."""
        last = None if self.first_call is None else self.first_call.push(token)
        return last if last is not None and last >= min_tokens else None

    def repeats(self, token: int, min_tokens: int) -> bool:
        """Return True if the output, with its next token, repeats itself; False if the end would be too early."""
        return self.repetition is not None and self.repetition.push(token, self.piece) and self.tokens >= min_tokens

    def finish(self, min_tokens: int, cancelled: bool) -> tuple[str, str | None, bytes]:
        """Return the rest of the text, the stop string completed by it, and the bytes of an incomplete character."""
        rest, cut = self.decoder.finish()
        # The last characters of a cancelled request are cut, so they complete no stop string.
        return *self.matcher.finish(rest, not cancelled and self.tokens >= min_tokens), cut


class Detokenizer:
    """The detokenizer actor: turns the outputs of all requests into text.

    Args:
        tokenizer: the tokenizer; None for a model that takes token ids only, with empty texts.
        turns: the format of answers in a conversation; None if all text of an output is its content.
    """

    def __init__(self, tokenizer: Tokenizer | None, turns: Turns | None = None):
        self._tokenizer = tokenizer
        self._turns = turns
        self._growing_texts: dict[int, _GrowingText] = {}
        self._bytes_of = lru_cache(maxsize=65536)(self._bytes)

    def handle(self, message: Message) -> list[Message] | Awaitable[list[Message]]:
        """Turn Outputs into Texts. At a complete stop string or call, or a repetition, send Stopped and drop the rest.

        The answer is awaitable if there are enough log-probabilities to let other actors run in between.
        """
        if not isinstance(message, Outputs):
            raise wrong_receiver("detokenizer", message)
        stopped: list[Message] = []
        texts = [text for output in message.outputs if (text := self._text_or_error(output, stopped)) is not None]
        if any([text.logprobs or text.prompt_logprobs for text in texts]):  # noqa: C419 - a list is faster
            if sum(map(_scores, texts)) > SCORES_AT_ONCE:
                return self._score_in_turns(texts, stopped)
            texts = list(map(self._score, texts))
        return [Texts(tuple(texts)), *stopped] if texts else stopped

    async def _score_in_turns(self, texts: Sequence[Text], stopped: Sequence[Message]) -> list[Message]:
        results: list[Text] = []
        turn = 0  # tokens in log-probabilities since other actors could run
        for text in texts:
            done: list[TokenLogprob] = []
            for logprob in (*text.logprobs, *text.prompt_logprobs):
                done.append(self._with_text(logprob))
                turn += 1 + len(logprob.top)
                if turn > SCORES_AT_ONCE:
                    await checkpoint()
                    turn = 0
            first = len(text.logprobs)
            results.append(replace(text, logprobs=tuple(done[:first]), prompt_logprobs=tuple(done[first:])))
        return [Texts(tuple(results)), *stopped]

    def _score(self, text: Text) -> Text:
        """Return a text with token texts added to its log-probabilities."""
        logprobs, prompt = map(self._with_text, text.logprobs), map(self._with_text, text.prompt_logprobs)
        return replace(text, logprobs=tuple(logprobs), prompt_logprobs=tuple(prompt))

    def _text_or_error(self, output: Output, stopped: list[Message]) -> Text | None:
        """Return the text of an output, as `_text` does; a decoder that breaks down ends this request alone."""
        try:
            return self._text(output, stopped)
        except InvalidRequest as error:
            stopped.append(Rejected(output.request.id, error))
            growing_text = self._growing_texts.pop(output.request.id, None)
            if output.end is None and growing_text is not None:
                growing_text.stopped, growing_text.plain = True, False
                self._growing_texts[output.request.id] = growing_text
                stopped.append(Stopped(output.request.id, growing_text.tokens))
            return None

    def _text(self, output: Output, stopped: list[Message]) -> Text | None:
        """Return the text of an output; None if a stop string or a call ended the text before it."""
        if self._tokenizer is None:
            return self._piece(output, "")
        growing_text = self._growing_texts.get(output.request.id) or self._begin(output.request)
        growing_text.request = ref(output.request)  # a request that moves to another lane is another object
        if growing_text.plain and output.end is None:
            growing_text.tokens += len(output.token_ids)
            return self._piece(output, "".join(map(growing_text.decoder.push, output.token_ids)))
        text = None if growing_text.stopped else self._follow(output, growing_text)
        if text is not None and growing_text.stopped:
            stopped.append(Stopped(output.request.id, growing_text.tokens))
        if output.end is not None:
            del self._growing_texts[output.request.id]
        return text

    def _begin(self, request: Request) -> _GrowingText:
        """Return the text of a new request, after those of failed requests are dropped."""
        assert self._tokenizer is not None
        self._drop_failed()
        params, matcher, first_call = request.params, self._matcher(request), self._first_call(request)
        repetition = None if request.repetition is None else RepetitionWatch(request.repetition)
        decoder = IncrementalDecoder(self._tokenizer, params.skip_special_tokens, request.goes_on)
        growing_text = _GrowingText(ref(request), decoder, matcher, self._text_of, first_call, repetition)
        growing_text.plain = not params.stop and first_call is None and repetition is None
        return self._growing_texts.setdefault(request.id, growing_text)

    def _first_call(self, request: Request) -> CallWatcher | None:
        """Return the watcher of an output that ends after its first call; None for another output."""
        turn = request.turn
        if self._turns is None or turn is None or not turn.ends_after_call:
            return None
        return self._turns.first_call(request.prompt, turn.tools, request.goes_on)

    def _matcher(self, request: Request) -> StopMatcher | TurnStops:
        """Return the matcher of a request's stop strings: in the content of a turn, or else in the whole text."""
        params, turn = request.params, request.turn
        matcher = StopMatcher(params.stop, params.keep_stop)
        if not params.stop or turn is None or self._turns is None:
            return matcher
        return self._turns.content_stops(matcher, request.prompt, bool(turn.tools), not params.skip_special_tokens)

    def _drop_failed(self) -> None:
        """Drop the texts of failed requests: no last output came, and nothing holds the `Request` any more."""
        for request_id in [id_ for id_, text in self._growing_texts.items() if text.request() is None]:
            del self._growing_texts[request_id]

    def _follow(self, output: Output, growing_text: _GrowingText) -> Text:
        text, stop, count, cut, repeats, earliest = "", None, 0, b"", False, output.request.params.min_tokens
        last: int | None = None
        for token in output.token_ids:
            if growing_text.first_call is not None and token not in output.request.end_ids:
                last = growing_text.last_token(token, earliest)
            if last is not None and last <= growing_text.tokens:  # the call was complete before this token
                break
            more, stop = growing_text.push(token, earliest)
            text, count = text + more, count + 1
            repeats = growing_text.repeats(token, earliest)
            if stop is not None or last is not None or repeats:
                break
        early: EndReason | None = "stop" if last is not None else "repetition" if repeats else None
        if stop is None and (early or output.end) is not None:
            more, stop, cut = growing_text.finish(earliest, output.end == "cancelled")
            text += more
        early = early if stop is None else "stop"
        growing_text.stopped = early is not None
        piece = self._piece(output, text, count, stop, cut, early)
        if early != "repetition" or growing_text.repetition is None:
            return piece
        return replace(piece, repeats_at=growing_text.repetition.repeats_at)

    def _piece(
        self,
        output: Output,
        text: str,
        count: int | None = None,
        stop: str | None = None,
        cut: bytes = b"",
        early: EndReason | None = None,
    ) -> Text:
        """Return the text of an output; `early` is the reason for an end by the text, before the end of the output."""
        token_ids, end = output.token_ids[:count], early or output.end
        by: str | int | None = stop
        end_token: str | None = None
        if early is None and end == "stop" and token_ids:  # else a complete constraint or a user's actor ended it
            by, end_token = token_ids[-1], self._text_of(token_ids[-1])
        return Text(
            output.request.id,
            text,
            token_ids,
            end,
            by,
            output.logprobs[:count],
            output.prompt_logprobs,
            cut,
            end_token or None,
            output.states,
            output.weights_version,
        )

    def _bytes(self, token: int) -> bytes:
        try:
            return b"" if self._tokenizer is None else token_bytes(self._tokenizer, token)
        except InvalidRequest:  # the decoder breaks down at this token
            return b""

    def _text_of(self, token: int) -> str:
        return self._bytes_of(token).decode("utf-8", "backslashreplace")

    def _with_text(self, logprob: TokenLogprob) -> TokenLogprob:
        complete = self._complete
        return complete(logprob, tuple(complete(each) for each in logprob.top))

    def _complete(self, logprob: TokenLogprob, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        token = logprob.token_id
        return TokenLogprob(token, self._text_of(token), logprob.logprob, logprob.rank, top, self._bytes_of(token))


def _scores(text: Text) -> int:
    """Return the number of tokens in the log-probabilities of a text."""
    return sum(1 + len(logprob.top) for logprob in (*text.logprobs, *text.prompt_logprobs))
