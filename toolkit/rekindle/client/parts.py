"""Stream of an answer's parts: reasoning, content and tool calls."""

from collections import deque

from rekindle.client.concurrency.loops import Loop
from rekindle.client.record import Record
from rekindle.core.concurrency.waits import Waits
from rekindle.core.request.tokens import Piece
from rekindle.formats.response import Part, Reading


class Parts(Loop[Part]):
    """Stream of one answer's parts, for `async for` or `for`. Closing it cancels the request, if it has not ended.

    Args:
        skip: the number of leading tokens whose text is left out.
    """

    def __init__(self, pieces: Loop[Piece], record: Record, skip: int = 0):
        super().__init__()
        self._pieces, self._record, self._skip = pieces, record, skip
        self._reading: Reading | None = None
        self._ready: deque[Part] = deque()
        self._ended = False

    def close(self) -> None:
        """Cancel the request, if it has not ended, and stop the iteration."""
        self._ended = True
        self._ready.clear()
        self._pieces.close()

    def __repr__(self) -> str:
        return f"<rekindle.Parts of {self._pieces!r}, for 'async for' or 'for'>"

    def _next(self) -> Waits[Part | None]:
        __tracebackhide__ = True  # hides this frame from notebook tracebacks
        while not self._ready and not self._ended:
            piece = yield from self._pieces._next()
            self._take(piece)
        return self._ready.popleft() if self._ready else None

    def _take(self, piece: Piece | None) -> None:
        """Parse the next piece; None is the end of the answer."""
        if self._reading is None:
            self._reading = self._record.reading()  # the record has the prompt by now
        if piece is None:
            self._ended = True
            self._ready += self._reading.finish()[1] if self._reading else ()
        elif self._reading:
            self._ready += self._reading.push(piece.text, piece.token_ids)
        elif piece.text:
            self._ready.append(Part("content", piece.text))
        if piece is not None and self._skip > 0:
            self._skip -= len(piece.token_ids)
            self._ready.clear()
