"""Handle of a submitted request, and the stream of its pieces."""

import threading
from collections.abc import Callable, Generator
from typing import Any, Final, NoReturn, Protocol

from rekindle import markup
from rekindle.client.concurrency.loops import Loop
from rekindle.client.parts import Parts
from rekindle.client.record import Record
from rekindle.client.submission import Submission
from rekindle.core.concurrency import interrupts
from rekindle.core.concurrency.feed import TO_THE_END, Feed
from rekindle.core.concurrency.waits import Wait, Waits, awaited, blocked
from rekindle.core.cures import cured
from rekindle.core.errors import RequestCancelled, SessionError
from rekindle.core.messages import Cancel, Message
from rekindle.core.request.tokens import Piece
from rekindle.core.tracebacks import with_short_traceback
from rekindle.core.words import quantity
from rekindle.results.generation import Generation

Post = Callable[[Message], None]
"""Sends a message to the engine; raises SessionError if the session has ended."""
_UNLISTED: Final = {"draw_wait", "leave", "send", "wait_ended", "wait_entered", "withdraw"}
"""Public names that completion leaves out, since only the parts of the package call them."""


class RequestDrawer(Protocol):
    """Interface for drawing a pending request."""

    def wait(self, pieces: Feed[Any], count: int) -> Waits[None]:
        """Wait until a feed has more than `count` pieces or is closed, and draw a long wait."""

    def display(self, handle: "Handle") -> None:
        """Draw a request in the output of the current cell until it ends; return at once."""


_CURES: Final = {
    ("choices", "content", "message", "outputs", "parsed", "text", "token_ids", "usage", "finish_reason"): (
        "an answer has it: answer = await handle"
    ),
    ("get", "wait"): "await handle, or handle.result() to block",
}
"""Attributes of answers and futures."""


@cured(_CURES)
class Handle:
    """Submitted request: `await` it, stream it, block for its `result`, or cancel it.

    An `await` returns the generation of the finished request, and raises the errors of `result`. `async for` and `for`
    yield its pieces from the first one on.

    Leaving a wait early, by an interrupt, a timeout scope or a `break` in a loop, cancels the request. Only a timeout
    of `result` leaves the request running. After an interrupt, the attribute `generation` of the KeyboardInterrupt or
    asyncio.CancelledError is the partial generation.

    Attributes:
        record: the state and the partial output of the request.
    """

    def __init__(self, request_id: int, submission: Submission, post: Post, drawer: RequestDrawer | None = None):
        self.record = Record(submission)
        self._submission, self._post, self._drawer = submission, post, drawer
        self._request = submission.message(request_id)
        self._is_sent = False
        self._entered: Feed[None] = Feed()  # closed once the request was sent, or ended unsent
        self.record.pieces.when_closed(self._entered.close)
        self._lock = threading.RLock()  # the garbage collector may drop a stream, and so cancel, at any instruction

    @property
    def request_id(self) -> int:
        """The id of the request, as in `session.requests` and in traces."""
        return self._request.request_id

    def send(self) -> bool:
        """Send the request to the engine unless it was cancelled; return whether it was sent."""
        with self._lock:
            if self.done:
                return False
            self._tell(self._request)
            self._is_sent = True
            self._entered.close()
            if self.record.cancelling:  # the garbage collector dropped its stream just now
                self.withdraw()
            return True

    def cancel(self) -> None:
        """Cancel the request, if it has not ended. Returns at once; thread-safe and idempotent."""
        with self._lock:
            if self.record.cancelling or self.done:
                return
            self.record.cancelling = True
            try:
                if self._is_sent and not self.record.capturing:
                    self.withdraw()
                elif self._is_sent:  # the engine has finished it
                    self.record.fail(RequestCancelled("the request was cancelled before its activations were computed"))
                else:
                    self.record.fail(RequestCancelled("the request was cancelled before it was submitted"))
            except BaseException:  # an interrupt: leave the work to the next call
                self.record.cancelling = False
                raise

    def leave(self, error: BaseException) -> None:
        """Cancel the request because an error ended a wait for it; attach the partial generation to an interrupt."""
        self.cancel()
        generation = self.record.so_far()
        tokens = quantity(len(generation.token_ids), "token")
        words = f"interrupted after {tokens}; the text so far is in `generation` of this error"
        interrupts.tell(error, words, "generation", generation)

    def withdraw(self) -> None:
        """Tell the engine to end the request, or to release the prefix held by it."""
        self._tell(Cancel(self._request.request_id))

    @property
    def done(self) -> bool:
        """True if the request has ended: finished, failed or cancelled."""
        return self.record.done

    @property
    def generation(self) -> Generation | None:
        """Generation of a finished request; None if the request is running, failed or was cancelled."""
        return self.record.generation

    def result(self, timeout: float | None = None) -> Generation:
        """Block until the request ends, and return its generation.

        In an async program or an async cell, `await` the handle instead: blocking works there, but stalls the event
        loop for all other tasks.

        Args:
            timeout: the longest wait in seconds; None waits without limit. The request continues after a timeout.

        Returns:
            The generation; every call returns the same object.

        Raises:
            TimeoutError: the request did not end within `timeout`.
            RequestCancelled: the request was cancelled.
            RekindleError: the request failed; the class of the error gives the reason, as in `Session.generate`.
        """
        __tracebackhide__ = True  # hides this frame from notebook tracebacks
        return blocked(self.wait_ended(timeout))

    def __await__(self) -> Generator[Any, None, Generation]:
        return awaited(self.wait_ended()).__await__()

    def __aiter__(self) -> "Stream":
        return Stream(self)

    def __iter__(self) -> "Stream":
        return Stream(self)

    def display(self) -> None:
        """Show the request in the current notebook cell, with a button that cancels it; return at once.

        The output is updated as text arrives, even while later cells run or block, and ends as the card of the
        generation. Outside a notebook the answer is printed.
        """
        if self._drawer is not None:
            self._drawer.display(self)

    def __dir__(self) -> list[str]:
        """Return the names for completion, without those for the parts of the package."""
        return sorted({*super().__dir__()} - _UNLISTED)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a handle cannot be pickled or copied, because its request runs in this process: pickle its result()"
        )

    def __repr__(self) -> str:
        return f"<rekindle.Handle {self.record.state}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(repr(self), self.record.card("Handle"))

    def wait_entered(self) -> Waits["Handle"]:
        """Wait until the request is in the waiting queue; return its handle. Leaving the wait cancels the request."""
        __tracebackhide__ = True
        try:
            yield Wait(self._entered)
        except BaseException:
            self.cancel()
            raise
        if not self._is_sent:
            self.record.result()
        return self

    def wait_ended(self, timeout: float | None = None) -> Waits[Generation]:
        """Wait for the end of the request, as in `result`. Leaving the wait cancels the request."""
        __tracebackhide__ = True
        try:
            if timeout is None:
                yield from self.draw_wait(TO_THE_END)
            yield Wait(self.record.pieces, timeout=timeout)
        except BaseException as error:
            self.leave(error)
            raise
        if not self.done:
            raise with_short_traceback(TimeoutError(f"the request had not ended after {timeout} seconds; it continues"))
        return self.record.result()

    def draw_wait(self, count: int) -> Waits[None]:
        """Wait for more than `count` pieces, or the end, and draw a long wait; no-op without progress display."""
        __tracebackhide__ = True
        if self._submission.progress and self._drawer is not None:
            yield from self._drawer.wait(self.record.pieces, count)

    def _tell(self, message: Message) -> None:
        try:
            self._post(message)
        except SessionError as error:
            self.record.fail(error)


class Stream(Loop[Piece]):
    """Stream of one request's pieces, for `async for` or `for`. Dropping or closing it early cancels the request.

    Use `contextlib.aclosing(stream)` to close it at the end of a block, `contextlib.closing(stream)` in blocking code.
    """

    def __init__(self, handle: Handle):
        super().__init__()
        self._handle = handle
        self._position = 0
        self._closed = False

    @property
    def handle(self) -> Handle:
        """Handle of the request. After the stream, `stream.handle.generation` has the whole answer with its figures."""
        return self._handle

    def close(self) -> None:
        """Cancel the request, if it has not ended, and stop the iteration. Thread-safe and idempotent."""
        self._closed = True
        self._handle.cancel()

    def parts(self) -> Parts:
        """Return an iterator over the parsed parts of the answer, for `async for` or a blocking `for`.

        For example: `async for part in session.stream(messages).parts()`. The `kind` of a part is "reasoning",
        "content" or "tool_call". Text arrives piece by piece, also that of a tool call; the last part of a call has the
        parsed call as `part.call`. If the prompt is not a conversation, all text is content. Iterate over either the
        stream or its parts, not both.
        """
        return Parts(self, self._handle.record)

    def __await__(self) -> NoReturn:
        self.close()
        raise TypeError(
            "a stream is not awaited: read it by 'async for piece in session.stream(...)', or await "
            "session.generate(...) for the whole answer"
        )

    def __del__(self) -> None:
        self._handle.cancel()

    def __repr__(self) -> str:
        return f"<rekindle.Stream of {self._handle!r}, for 'async for' or 'for'>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(repr(self), self._handle.record.card("Stream"))

    def _next(self) -> Waits[Piece | None]:
        """Wait for the next piece; return None at the end of a finished request, or if the stream is closed."""
        __tracebackhide__ = True
        if self._closed:
            return None
        pieces = self._handle.record.pieces
        try:
            if not self._position:  # later, a progress line would interrupt the printed text
                yield from self._handle.draw_wait(0)
            yield Wait(pieces, self._position)
        except BaseException as error:
            self._handle.leave(error)
            raise
        if self._position == len(pieces.items):
            self._handle.record.result()
            return None
        self._position += 1
        return pieces.items[self._position - 1]
