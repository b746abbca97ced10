"""Live text of a request, in the output of a notebook cell or printed to standard output."""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal, Protocol

from rekindle import markup
from rekindle.client.handle import Handle
from rekindle.client.record import Record
from rekindle.core.concurrency.feed import TO_THE_END
from rekindle.core.concurrency.mailbox import in_trio
from rekindle.core.concurrency.waits import Wait, Waits, blocked
from rekindle.core.errors import RequestCancelled
from rekindle.notebook import front_end
from rekindle.notebook.live_parts import GrowingParts, PartReader, PrintedParts

REDRAW_SECONDS = 0.06
"""The minimum time between two updates in a notebook."""
POLL_SECONDS = 0.25
"""The interval between two looks at the state of the request, for changes without a new piece."""
GRACE_SECONDS = 0.2
"""The maximum wait of an interrupted cell for the end of its request, so that the output is complete."""

Cell = Literal["awaits", "blocks", "ends"]
"""The state of the cell during the drawing: it awaits the end, blocks until the end, or ends at once."""


def show(request: Handle, cell: Cell) -> Waits[None]:
    """Draw a request to its end. Leaving early cancels the request. A cancelled request keeps its text so far.

    Raises:
        RekindleError: the request failed; the subclass depends on the reason.
    """
    __tracebackhide__ = True  # hidden in tracebacks of cells
    record, screen = request.record, _screen(request, cell)
    try:
        yield from draw_record(record, screen)
    except BaseException as error:
        request.leave(error)
        try:
            yield Wait(record.pieces, TO_THE_END, GRACE_SECONDS)
        finally:
            _draw_to_end(record, screen)
        raise
    with suppress(RequestCancelled):
        request.result()


def display(request: Handle) -> None:
    """Draw a request on a thread, and return at once."""
    screen = _screen(request, "ends")
    if not request.record.pieces.closed:
        screen.draw()  # in this cell, since an output belongs to the cell of its first drawing
    _draw_to_end(request.record, screen)


class Screen(Protocol):
    """A display of a record, such as a `Card`.

    Attributes:
        seconds: the minimum time between two updates.
    """

    seconds: float

    def draw(self) -> None: ...
    def close(self) -> None: ...


def draw_record(record: Record, screen: Screen) -> Waits[None]:
    """Draw a record after each change, with a minimum time between updates, and at its end."""
    __tracebackhide__ = True
    pieces = record.pieces
    while not pieces.closed:
        count = len(pieces.items)
        screen.draw()
        yield Wait(pieces, TO_THE_END, screen.seconds)
        yield Wait(pieces, count, POLL_SECONDS)
    screen.close()


def _draw_to_end(record: Record, screen: "Card | PrintedText") -> None:
    """Draw a record to its end, on a thread if the request is unfinished."""
    draw = partial(blocked, draw_record(record, screen))
    if record.pieces.closed:
        draw()
    else:
        front_end.draw_soon(draw, "display")


def _screen(request: Handle, cell: Cell) -> "Card | PrintedText":
    if not front_end.in_notebook():
        return PrintedText(request.record)
    if cell == "ends":
        button, otherwise = True, "To stop it, call cancel() of the handle."
    else:
        button = handles_clicks(front_end.kernel(), cell)
        otherwise = "To stop it, interrupt the kernel."
    return Card(request.record, partial(front_end.StopButton, request.cancel, otherwise, button=button))


def handles_clicks(kernel: object, cell: Cell) -> bool:
    """Return True if clicks on a button are handled while the cell waits."""
    return cell == "awaits" and not in_trio() and front_end.handles_clicks_while_awaiting(kernel)


class Card:
    """An output with the end of the growing text, then the display of the generation.

    Attributes:
        seconds: the minimum time between two updates.
    """

    seconds = REDRAW_SECONDS

    def __init__(self, record: Record, stop: Callable[[], front_end.StopButton]):
        self._record = record
        self._make_stop = stop
        self._stop: front_end.StopButton | None = None
        self._output = front_end.CellOutput()
        self._position = 0
        self._reader, self._parts = PartReader(record), GrowingParts()

    def draw(self) -> None:
        """Draw the current state of the record."""
        if self._stop is None:
            self._stop = self._make_stop()
        self._output.draw(self._now())

    def close(self) -> None:
        """Draw the final state of the record."""
        self._output.draw(self._record.preview())
        if self._stop is not None:
            self._stop.close()

    def _now(self) -> markup.Bundle:
        state, facts = self._record.state, markup.facts(self._record.facts)
        new = self._record.pieces.items[self._position :]
        self._position += len(new)
        self._parts.take(self._reader.push(new))
        text = self._parts.text
        plain = f"{text}\n[{state}]" if text else f"[{state}]"
        parts = markup.prompt_line(self._record.prompt), self._parts.html, facts
        return markup.bundle(plain, markup.card("Generation", state, *parts))


class PrintedText:
    """Standard output with each piece, printed at its arrival, and a last line about the end of the request.

    The attributes and methods are those of `Card`.
    """

    seconds = 0.0

    def __init__(self, record: Record):
        self._record = record
        self._position = 0
        self._printed = ""
        self._reader, self._parts = PartReader(record), PrintedParts()

    def draw(self) -> None:
        new = self._record.pieces.items[self._position :]
        self._position += len(new)
        self._print(self._parts.text_of(self._reader.push(new)))

    def close(self) -> None:
        whole = self._record.preview()["text/plain"]
        if whole.startswith(self._printed):
            self._print(f"{whole[len(self._printed) :]}\n")
        else:  # content after a tool call comes before the call in the display
            self._print(f"\n{whole.splitlines()[-1]}\n")

    def _print(self, text: str) -> None:
        self._printed += text
        if text and sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
