"""One submitted request as its caller sees it: pieces as they come, the whole at the end, and a way to stop it."""

import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from time import perf_counter
from types import TracebackType
from typing import Any

from rekindle import markup
from rekindle.concurrency.feed import TO_THE_END, Feed
from rekindle.errors import RequestCancelled
from rekindle.messages import Message, Rejected, Started, Text
from rekindle.notebook import live_text
from rekindle.request import SamplingParams
from rekindle.results import Generation, Piece, Standing, Timings, TokenLogprob, Usage, generation_html, said_html


class Handle:
    """A request that was submitted. Await it, stream it, ask its `result` from a thread, or cancel it.

    Leaving a wait for it in any way but a timeout of `result` cancels it: an interrupt, a timeout scope, a `break`.

    Args:
        send: puts the request on its way; called once.
        withdraw: asks the engine to end it, or to let go of what it holds; called after `send`.
        params: its sampling parameters.
    """

    def __init__(self, send: Callable[[], None], withdraw: Callable[[], None], params: SamplingParams):
        self._send = send
        self.withdraw = withdraw
        self._params = params
        self._submitted = perf_counter()
        self._started: tuple[Started, float] | None = None
        self._first_token: float | None = None
        self._generated = 0
        self._prompt_logprobs: list[TokenLogprob | None] = [None]
        self._feed: Feed[Piece] = Feed()
        self._lock = threading.RLock()  # the garbage collector may drop a stream, and so cancel, at any instruction
        self._sent = False
        self._cancelled = False
        self._outcome: Generation | Exception | None = None
        self._raised_at: TracebackType | None = None

    def __await__(self) -> Generator[Any, None, Generation]:
        return self._wait().__await__()

    def __repr__(self) -> str:
        return f"<rekindle.Handle {self._state()}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(repr(self), self._html("Handle"))

    def _html(self, kind: str) -> str:
        """How it is now, for a cell that shows it as this kind of object."""
        state = self._state()
        if isinstance(self._outcome, Generation):
            return markup.card(kind, state, generation_html(self._outcome))
        pieces = self._feed.items
        token_ids = [token for piece in pieces for token in piece.token_ids]
        logprobs = [logprob for piece in pieces for logprob in piece.logprobs or ()]
        said, failure = said_html(self._text(), token_ids, logprobs), self._failure
        if failure is not None:
            return markup.card(kind, self._failed(), said, markup.passage(str(failure)), markup.facts(self.known))
        return markup.card(kind, state, said, markup.facts(self.known))

    def _text(self) -> str:
        return "".join(piece.text for piece in self._feed.items)

    def _state(self) -> str:
        if self._failure is not None:
            return f"{self._failed()}: {self._failure}"
        return f"{self._word()}, {markup.counted(self._generated, 'token')}"

    def _failed(self) -> str:
        return f"failed after {markup.counted(self._generated, 'token')}"

    @property
    def _failure(self) -> Exception | None:
        """Why it ended neither well nor because somebody cancelled it."""
        match self._outcome:
            case None | Generation() | RequestCancelled():
                return None
            case error:
                return error

    def _word(self) -> str:
        match self._outcome:
            case None:
                return "cancelling" if self._cancelled else "running" if self._started else "waiting"
            case Generation(finish_reason=reason):
                return f"ended: {reason}"
            case RequestCancelled():
                return "cancelled"
            case _:
                return "failed"

    def shown(self) -> markup.Bundle:
        """What a cell shows of it, by MIME type: what it gave, once it has ended well, else what has come so far."""
        if isinstance(self._outcome, Generation):
            return self._outcome._repr_mimebundle_()
        text = self._text()
        return markup.bundle(f"{text}\n[{self._state()}]" if text else f"[{self._state()}]", self._html("Generation"))

    @property
    def pieces(self) -> Feed[Piece]:
        """What has come so far, for any thread to follow; closed once it has ended."""
        return self._feed

    @property
    def known(self) -> dict[str, str | None]:
        """What a cell shows beside the text, as long as it has not ended."""
        known: dict[str, str | None] = {}
        if self._started:
            started, queued = self._started
            known |= Usage(started.prompt_tokens, self._generated).said(started.cached)
            known["queued"] = markup.seconds(queued)
        if self._first_token:
            known["first token after"] = markup.seconds(self._first_token)
        return known

    @property
    def standing(self) -> Standing:
        """How far it is, now. Any thread may ask; it costs the same however long the request is."""
        prompt_tokens = self._started[0].prompt_tokens if self._started else None
        return Standing(self._word(), prompt_tokens, self._generated, self._elapsed())

    @property
    def done(self) -> bool:
        """Whether it ended, well or not."""
        return self._feed.closed

    @property
    def generation(self) -> Generation | None:
        """What it gave, if it ended well."""
        return self._outcome if isinstance(self._outcome, Generation) else None

    def cancel(self) -> None:
        """End it now, if it has not ended. Returns at once; any thread may call this, and any number of times."""
        with self._lock:
            if self._cancelled or self.done:
                return
            self._cancelled = True
            if self._sent:
                self.withdraw()
                return
        self.fail(RequestCancelled("the request was cancelled before it was submitted"))

    def display(self) -> None:
        """Show it in the output of this cell, with a button that cancels it, and return at once.

        It is drawn as its text comes, also while later cells run or block, and at its end as its result is. Where there
        is no notebook, it is printed.
        """
        live_text.display(self)

    def result(self, timeout: float | None = None) -> Generation:
        """Block until it ends; not for a cell that other awaits share a loop with, but it works there.

        Args:
            timeout: seconds; None waits for ever. The request goes on after a timeout.

        Raises:
            TimeoutError: it had not ended in time.
            RequestCancelled: it was cancelled.
            RekindleError: it failed; the class says why.
        """
        __tracebackhide__ = True  # a cell shows errors without such frames
        try:
            ended = self._feed.grown_blocking(TO_THE_END, timeout)
        except BaseException:
            self.cancel()
            raise
        if not ended:
            raise TimeoutError(f"the request had not ended after {timeout} seconds; it goes on")
        return self._finished()

    def __aiter__(self) -> AsyncIterator[Piece]:
        return Stream(self)

    def __iter__(self) -> Iterator[Piece]:
        return Stream(self)

    async def _wait(self) -> Generation:
        __tracebackhide__ = True
        try:
            await self._feed.grown(TO_THE_END)
        except BaseException:
            self.cancel()
            raise
        return self._finished()

    def _finished(self) -> Generation:
        __tracebackhide__ = True
        if isinstance(self._outcome, Generation):
            return self._outcome
        assert self._outcome is not None, "a closed feed has an outcome"
        raise self._outcome.with_traceback(self._raised_at)

    # Called by the session

    def send(self) -> bool:
        """Put it on its way, unless it ended before: then False."""
        with self._lock:
            if self._cancelled or self.done:
                return False
            self._send()
            self._sent = True
            if self._cancelled:
                self.withdraw()
            return True

    def deliver(self, message: Message) -> None:
        """Take in what the engine says of this request."""
        match message:
            case Started():
                self._started = (message, self._elapsed())
            case Rejected(_, error):
                self.fail(error)
            case Text():
                self._prompt_logprobs += message.prompt_logprobs
                if message.token_ids or message.text:
                    self._first_token = self._first_token or self._elapsed()
                    self._generated += len(message.token_ids)
                    scored = self._params.logprobs is not None
                    self._feed.put(Piece(message.text, message.token_ids, message.logprobs if scored else None))
                if message.end == "cancelled":
                    self.fail(RequestCancelled("the request was cancelled"))
                elif message.end is not None:
                    self._finish(message)

    def fail(self, error: Exception) -> None:
        """End it with an error, if it has not ended."""
        if not self.done:
            self._outcome, self._raised_at = error, error.__traceback__
            self._feed.close()

    def _finish(self, last: Text) -> None:
        assert self._started is not None, "a request that ended well has started"
        assert last.end is not None
        pieces, (started, queued), total = self._feed.items, self._started, self._elapsed()
        token_ids = tuple(token for piece in pieces for token in piece.token_ids)
        logprobs = tuple(logprob for piece in pieces for logprob in piece.logprobs or ())
        self._outcome = Generation(
            text="".join(piece.text for piece in pieces),
            token_ids=token_ids,
            finish_reason=last.end,
            stopped_by=last.stopped_by,
            logprobs=None if self._params.logprobs is None else logprobs,
            prompt_logprobs=None if self._params.prompt_logprobs is None else tuple(self._prompt_logprobs),
            usage=Usage(started.prompt_tokens, len(token_ids)),
            timings=Timings(queued, self._first_token or total, total),
            cached=started.cached,
        )
        self._feed.close()

    def _elapsed(self) -> float:
        return perf_counter() - self._submitted


class Stream(AsyncIterator[Piece], Iterator[Piece]):
    """The pieces of one request, for `async for` or `for`. Dropping it before its end cancels the request."""

    def __init__(self, handle: Handle):
        self._handle = handle
        self._seen = 0

    async def __anext__(self) -> Piece:
        __tracebackhide__ = True
        try:
            await self._handle._feed.grown(self._seen)
        except BaseException:
            self._handle.cancel()
            raise
        return self._next(StopAsyncIteration)

    def __next__(self) -> Piece:
        __tracebackhide__ = True
        try:
            self._handle._feed.grown_blocking(self._seen)
        except BaseException:
            self._handle.cancel()
            raise
        return self._next(StopIteration)

    def __del__(self) -> None:
        self._handle.cancel()

    def __repr__(self) -> str:
        return f"<rekindle.Stream of {self._handle!r}, for 'async for' or 'for'>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(repr(self), self._handle._html("Stream"))

    def _next(self, stop: type[Exception]) -> Piece:
        __tracebackhide__ = True
        pieces = self._handle._feed.items
        if self._seen < len(pieces):
            self._seen += 1
            return pieces[self._seen - 1]
        self._handle._finished()
        raise stop
