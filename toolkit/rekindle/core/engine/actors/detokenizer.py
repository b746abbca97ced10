"""The detokenizer actor: token ids become text, piece by piece, with no character split and no stop string passed."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from anyio.lowlevel import checkpoint

from rekindle.core.messages import Message, Output, Outputs, Stopped, Text, Texts
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.text.incremental import IncrementalDecoder
from rekindle.core.text.stops import StopMatcher
from rekindle.core.text.token_bytes import token_bytes
from rekindle.core.text.tokenizer import Tokenizer

SCORES_AT_ONCE = 512
"""The texts of so many tokens in log-probabilities take half a millisecond; then other actors get a turn."""


@dataclass(slots=True)
class _Follower:
    """The text of one request as it grows; `stopped` once its stop string was found."""

    decoder: IncrementalDecoder
    matcher: StopMatcher
    text_of: Callable[[int], str]
    tokens: int = 0
    stopped: bool = False

    def push(self, token: int, min_tokens: int) -> tuple[str, str | None]:
        self.tokens += 1
        skipped = self.decoder.skips(token)
        text = self.text_of(token) if skipped else self.decoder.push(token)
        return self.matcher.push(text, self.tokens >= min_tokens, skipped)

    def finish(self, min_tokens: int, cancelled: bool) -> tuple[str, str | None, bytes]:
        """Return the rest of the text, the stop string that it completes, and the bytes of an incomplete character."""
        rest, cut = self.decoder.finish()
        # The last characters of a cancelled request are cut, so they stop nothing.
        return *self.matcher.finish(rest, not cancelled and self.tokens >= min_tokens), cut


class Detokenizer:
    """Turns outputs into text.

    Args:
        tokenizer: None for a model that is asked by token ids alone; its text is always empty.
    """

    def __init__(self, tokenizer: Tokenizer | None):
        self._tokenizer = tokenizer
        self._followers: dict[int, _Follower] = {}
        self._bytes_of = lru_cache(maxsize=65536)(lambda token: token_bytes(tokenizer, token) if tokenizer else b"")

    def handle(self, message: Message) -> list[Message] | Awaitable[list[Message]]:
        """Turn Outputs into Texts. A complete stop string is answered with Stopped, and what follows it is dropped.

        The answer is awaitable if there are so many log-probabilities that other actors get turns meanwhile.
        """
        if not isinstance(message, Outputs):
            raise TypeError(f"the detokenizer takes Outputs, got {message!r}")
        stopped: list[Message] = []
        texts = [text for output in message.outputs if (text := self._text(output, stopped)) is not None]
        if any(text.logprobs or text.prompt_logprobs for text in texts):
            if sum(map(_scores, texts)) > SCORES_AT_ONCE:
                return self._scored_in_turns(texts, stopped)
            texts = list(map(self._scored, texts))
        return [Texts(tuple(texts)), *stopped] if texts else stopped

    async def _scored_in_turns(self, texts: Sequence[Text], stopped: Sequence[Message]) -> list[Message]:
        scored: list[Text] = []
        turn = 0  # the tokens in log-probabilities since the other actors had a turn
        for text in texts:
            done: list[TokenLogprob] = []
            for logprob in (*text.logprobs, *text.prompt_logprobs):
                done.append(self._with_text(logprob))
                turn += 1 + len(logprob.top)
                if turn > SCORES_AT_ONCE:
                    await checkpoint()
                    turn = 0
            first = len(text.logprobs)
            scored.append(replace(text, logprobs=tuple(done[:first]), prompt_logprobs=tuple(done[first:])))
        return [Texts(tuple(scored)), *stopped]

    def _scored(self, text: Text) -> Text:
        """Return a text with the texts of the tokens in its log-probabilities."""
        logprobs, prompt = map(self._with_text, text.logprobs), map(self._with_text, text.prompt_logprobs)
        return replace(text, logprobs=tuple(logprobs), prompt_logprobs=tuple(prompt))

    def _text(self, output: Output, stopped: list[Message]) -> Text | None:
        """Return the text of an output; None if a stop string ended the text before it."""
        if self._tokenizer is None:
            return self._said(output, "", len(output.token_ids))
        request_id, params = output.request.id, output.request.params
        follower = self._followers.get(request_id)
        if follower is None:
            decoder = IncrementalDecoder(self._tokenizer, params.skip_special_tokens, output.request.goes_on)
            matcher = StopMatcher(params.stop, params.keep_stop)
            follower = self._followers[request_id] = _Follower(decoder, matcher, self._text_of)
        text = None if follower.stopped else self._follow(output, follower)
        if text is not None and follower.stopped:
            stopped.append(Stopped(request_id, follower.tokens))
        if output.end is not None:
            del self._followers[request_id]
        return text

    def _follow(self, output: Output, follower: _Follower) -> Text:
        text, stop, taken, cut, earliest = "", None, 0, b"", output.request.params.min_tokens
        for token in output.token_ids:
            shown, stop = follower.push(token, earliest)
            text, taken = text + shown, taken + 1
            if stop is not None:
                break
        if stop is None and output.end is not None:
            shown, stop, cut = follower.finish(earliest, output.end == "cancelled")
            text += shown
        follower.stopped = stop is not None
        return self._said(output, text, taken, stop, cut)

    def _said(self, output: Output, text: str, taken: int, stop: str | None = None, cut: bytes = b"") -> Text:
        token_ids, end = output.token_ids[:taken], output.end
        by: str | int | None = stop
        end_token: str | None = None
        if stop is not None:
            end = "stop"
        elif end == "stop" and token_ids:  # without one, it is complete, or a user's actor has stopped it
            by, end_token = token_ids[-1], self._text_of(token_ids[-1])
        return Text(
            output.request.id,
            text,
            token_ids,
            end,
            by,
            output.logprobs[:taken],
            output.prompt_logprobs,
            cut,
            end_token or None,
            output.states,
        )

    def _text_of(self, token: int) -> str:
        return self._bytes_of(token).decode("utf-8", "backslashreplace")

    def _with_text(self, logprob: TokenLogprob) -> TokenLogprob:
        named = self._named
        return named(logprob, tuple(named(each) for each in logprob.top))

    def _named(self, logprob: TokenLogprob, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        token = logprob.token_id
        return TokenLogprob(token, self._text_of(token), logprob.logprob, logprob.rank, top, self._bytes_of(token))


def _scores(text: Text) -> int:
    """Return how many tokens are in the log-probabilities of a text."""
    return sum(1 + len(logprob.top) for logprob in (*text.logprobs, *text.prompt_logprobs))
