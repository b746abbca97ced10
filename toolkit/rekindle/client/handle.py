"""The remote control of one submitted request: wait for it, stream it, show it, or cancel it."""

import threading
from collections.abc import Callable, Generator
from typing import Any, NoReturn

from rekindle.client.parts import Parts
from rekindle.client.record import Record
from rekindle.client.submission import Submission
from rekindle.core import markup
from rekindle.core.concurrency import interrupts
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.loops import Loop
from rekindle.core.concurrency.waits import Wait, Waits, awaited, blocked
from rekindle.core.errors import RequestCancelled, SessionError, with_short_traceback
from rekindle.core.messages import Cancel, Message
from rekindle.core.request.tokens import Piece
from rekindle.results.generation import Generation

Post = Callable[[Message], None]
"""Sends a message to the engine; raises SessionError where there is none any more."""


class Handle:
    """A request that was submitted. Await it, stream it, ask its `result` from a thread, or cancel it.

    Leaving a wait for it in any way but a timeout of `result` cancels it: an interrupt, a timeout scope, a `break`. An
    interrupt (KeyboardInterrupt, or asyncio's CancelledError) then has what had come as its attribute `generation`.

    Attributes:
        record: what is known of the request.
    """

    def __init__(self, request_id: int, submission: Submission, post: Post):
        self.record = Record(submission)
        self._submission, self._post = submission, post
        self._request = submission.message(request_id)
        self._sent = False
        self._entered: Feed[None] = Feed()  # closed once the request was sent, or has ended before
        self.record.pieces.when_closed(self._entered.close)
        self._lock = threading.RLock()  # the garbage collector may drop a stream, and so cancel, at any instruction

    def send(self) -> bool:
        """Send the request to the engine, unless it was cancelled before, and return whether it was sent."""
        with self._lock:
            if self.done:
                return False
            self._tell(self._request)
            self._sent = True
            self._entered.close()
            if self.record.cancelling:  # since the garbage collector dropped its stream just now
                self.withdraw()
            return True

    def cancel(self) -> None:
        """End the request now, if it has not ended. Returns at once; any thread may call this, any number of times."""
        with self._lock:
            if self.record.cancelling or self.done:
                return
            self.record.cancelling = True
            try:
                if self._sent:
                    self.withdraw()
                else:
                    self.record.fail(RequestCancelled("the request was cancelled before it was submitted"))
            except BaseException:  # an interrupt: the next try is to do it
                self.record.cancelling = False
                raise

    def leave(self, left: BaseException) -> None:
        """Cancel the request, because the wait for it ends with this error; an interrupt then says how far it was."""
        self.cancel()
        generation = self.record.so_far()
        tokens = markup.quantity(len(generation.token_ids), "token")
        words = f"interrupted after {tokens}; the text so far is in `generation` of this error"
        interrupts.tell(left, words, "generation", generation)

    def withdraw(self) -> None:
        """Have the engine end a request that was sent, or let go of the prefix that it holds."""
        self._tell(Cancel(self._request.request_id))

    @property
    def done(self) -> bool:
        """Tell whether the request ended, well or not."""
        return self.record.done

    @property
    def generation(self) -> Generation | None:
        """The generation, if the request ended well."""
        return self.record.generation

    def result(self, timeout: float | None = None) -> Generation:
        """Block until the request ends; not for a cell that other awaits share a loop with, but it works there.

        Args:
            timeout: seconds; None waits for ever. The request goes on after a timeout.

        Raises:
            TimeoutError: the request had not ended in time.
            RequestCancelled: the request was cancelled.
            RekindleError: the request failed; the class says why.
        """
        __tracebackhide__ = True  # a cell shows errors without such frames
        return blocked(self.ended(timeout))

    def __await__(self) -> Generator[Any, None, Generation]:
        return awaited(self.ended()).__await__()

    def __aiter__(self) -> "Stream":
        return Stream(self)

    def __iter__(self) -> "Stream":
        return Stream(self)

    def display(self) -> None:
        """Show the request in the output of this cell, with a button that cancels it, and return at once.

        It is drawn as its text comes, also while later cells run or block, and at its end as its result is. Where there
        is no notebook, it is printed.
        """
        if self._submission.drawing is not None:
            self._submission.drawing.display(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a handle cannot be pickled or copied, because its request runs in this process: pickle its result()"
        )

    def __repr__(self) -> str:
        return f"<rekindle.Handle {self.record.state}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(repr(self), self.record.card("Handle"))

    def entered(self) -> Waits["Handle"]:
        """Wait until the request is in the waiting queue, and return its handle. Leaving the wait cancels it."""
        __tracebackhide__ = True
        try:
            yield Wait(self._entered)
        except BaseException:
            self.cancel()
            raise
        if not self._sent:
            self.record.result()
        return self

    def ended(self, timeout: float | None = None) -> Waits[Generation]:
        """Wait for the end of the request, as `result` does. Leaving the wait cancels it."""
        __tracebackhide__ = True
        try:
            if timeout is None:
                yield from self.grown(1)  # the first token waits for a program of prompts, the second for one of steps
            yield Wait(self.record.pieces, timeout=timeout)
        except BaseException as left:
            self.leave(left)
            raise
        if not self.done:
            raise with_short_traceback(TimeoutError(f"the request had not ended after {timeout} seconds; it goes on"))
        return self.record.result()

    def grown(self, seen: int) -> Waits[None]:
        """Wait until there are more than `seen` pieces if programs that are waited for are to be drawn, else not."""
        __tracebackhide__ = True
        if self._submission.progress and self._submission.drawing is not None:
            yield from self._submission.drawing.first_tokens(self.record.pieces, seen)

    def _tell(self, message: Message) -> None:
        try:
            self._post(message)
        except SessionError as error:
            self.record.fail(error)


class Stream(Loop[Piece]):
    """The pieces of one request, for `async for` or `for`. Dropping or closing it before its end cancels the request.

    `contextlib.aclosing(stream)` closes it where a block ends, and `contextlib.closing(stream)` in blocking code.
    """

    def __init__(self, handle: Handle):
        super().__init__()
        self._handle = handle
        self._seen = 0
        self._closed = False

    def close(self) -> None:
        """Cancel the request, if it has not ended, and give no further piece.

        Returns at once; any thread may call this, any number of times.
        """
        self._closed = True
        self._handle.cancel()

    def parts(self) -> Parts:
        """Return the answer in parts: `async for part in session.stream(messages).parts()`, or with `for`.

        Each part tells by its `kind` whether its text is reasoning, content, or a tool call, which comes last as
        `part.call` once it is complete. Take the pieces or the parts of a stream, and not both. The text of what is no
        answer to a conversation is all content.
        """
        return Parts(self, self._handle.record)

    def __del__(self) -> None:
        self._handle.cancel()

    def __repr__(self) -> str:
        return f"<rekindle.Stream of {self._handle!r}, for 'async for' or 'for'>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(repr(self), self._handle.record.card("Stream"))

    def _next(self) -> Waits[Piece | None]:
        """Wait for the next piece; return None at the end of a request that ended well, or of a closed stream."""
        __tracebackhide__ = True
        if self._closed:
            return None
        pieces = self._handle.record.pieces
        try:
            if not self._seen:  # later, a line would stand in the middle of the text
                yield from self._handle.grown(0)
            yield Wait(pieces, self._seen)
        except BaseException as left:
            self._handle.leave(left)
            raise
        if self._seen == len(pieces.items):
            self._handle.record.result()
            return None
        self._seen += 1
        return pieces.items[self._seen - 1]
