"""A request drawn as its text comes: in an output of a notebook's cell, or printed where there is none."""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal, Protocol

from rekindle.client.handle import Handle
from rekindle.client.record import Record
from rekindle.core import markup
from rekindle.core.concurrency.feed import TO_THE_END
from rekindle.core.concurrency.mailbox import in_trio
from rekindle.core.concurrency.threads import soon
from rekindle.core.concurrency.waits import Wait, Waits, blocked
from rekindle.core.errors import RequestCancelled
from rekindle.notebook import front_end
from rekindle.notebook.live_parts import Arriving, Growing, PrintedParts

REDRAWN_SECONDS = 0.06
"""The least time between two drawings in a notebook."""
LOOKED_AT_SECONDS = 0.25
"""How often to look whether the request has started or is being cancelled, which no piece tells."""
GRACE_SECONDS = 0.2
"""How long a cell that is left stays for the engine's answer, so that its output is complete."""

Cell = Literal["awaits", "blocks", "ends"]
"""What the cell that asks for a drawing does meanwhile."""


def show(request: Handle, cell: Cell) -> Waits[None]:
    """Draw a request to its end. Leaving early cancels it, and the text so far stays, as it does where it is cancelled.

    Raises:
        RekindleError: the request failed; the class says why.
    """
    __tracebackhide__ = True  # a cell shows errors without such frames
    record, screen = request.record, _screen(request, cell)
    try:
        yield from drawing(record, screen)
    except BaseException as left:
        request.leave(left)
        try:
            yield Wait(record.pieces, TO_THE_END, GRACE_SECONDS)
        finally:
            _draw_on(record, screen)
        raise
    with suppress(RequestCancelled):
        request.result()


def display(request: Handle) -> None:
    """Draw a request from now on, and return at once."""
    screen = _screen(request, "ends")
    if not request.record.pieces.closed:
        screen.draw()  # here, since an output belongs to the cell that runs when it is first drawn
    _draw_on(request.record, screen)


class Screen(Protocol):
    """A place that a record is drawn on, such as a `Card`.

    Attributes:
        seconds: the least time between two drawings.
    """

    seconds: float

    def draw(self) -> None: ...
    def close(self) -> None: ...


def drawing(record: Record, screen: Screen) -> Waits[None]:
    """Draw a record whenever there is something new, but not too often, and at its end."""
    __tracebackhide__ = True
    pieces = record.pieces
    while not pieces.closed:
        seen = len(pieces.items)
        screen.draw()
        yield Wait(pieces, TO_THE_END, screen.seconds)
        yield Wait(pieces, seen, LOOKED_AT_SECONDS)
    screen.close()


def _draw_on(record: Record, screen: "Card | PrintedText") -> None:
    """Draw a record to its end, on a thread if the request has not ended."""
    draw = partial(blocked, drawing(record, screen))
    if record.pieces.closed:
        draw()
    else:
        soon(partial(front_end.context_of_threads().run, draw), "display")


def _screen(request: Handle, cell: Cell) -> "Card | PrintedText":
    if (found := front_end.kernel()) is None:
        return PrintedText(request.record)
    if cell == "ends":
        heard, otherwise = True, "To stop it, call cancel() of the handle."
    else:
        heard = hears_clicks(found, cell)
        otherwise = "To stop it, interrupt the kernel."
    return Card(request.record, partial(front_end.StopButton, request.cancel, otherwise, button=heard))


def hears_clicks(kernel: object, cell: Cell) -> bool:
    """Tell whether a button is heard while the cell waits."""
    return cell == "awaits" and not in_trio() and front_end.hears_clicks_while_a_cell_awaits(kernel)


class Card:
    """An output that shows the end of the text while it grows, and then what a cell shows of the generation.

    Attributes:
        seconds: the least time between two drawings.
    """

    seconds = REDRAWN_SECONDS

    def __init__(self, record: Record, stop: Callable[[], front_end.StopButton]):
        self._record = record
        self._make_stop = stop
        self._stop: front_end.StopButton | None = None
        self._output = front_end.CellOutput()
        self._seen = 0
        self._arriving, self._growing = Arriving(record), Growing()

    def draw(self) -> None:
        """Draw the record as it is now."""
        if self._stop is None:
            self._stop = self._make_stop()
        self._output.draw(self._now())

    def close(self) -> None:
        """Draw the record as it has ended."""
        self._output.draw(self._record.preview())
        if self._stop is not None:
            self._stop.close()

    def _now(self) -> markup.Bundle:
        state, known = self._record.state, markup.facts(self._record.facts)
        new = self._record.pieces.items[self._seen :]
        self._seen += len(new)
        self._growing.take(self._arriving.push(new))
        text = self._growing.text
        plain = f"{text}\n[{state}]" if text else f"[{state}]"
        return markup.bundle(plain, markup.card("Generation", state, self._growing.html, known))


class PrintedText:
    """Standard output, with every piece as it comes, and at the end a line that says how the request ended.

    It has the attributes and methods of `Card`.
    """

    seconds = 0.0

    def __init__(self, record: Record):
        self._record = record
        self._seen = 0
        self._printed = ""
        self._arriving, self._written = Arriving(record), PrintedParts()

    def draw(self) -> None:
        new = self._record.pieces.items[self._seen :]
        self._seen += len(new)
        self._print(self._written.words(self._arriving.push(new)))

    def close(self) -> None:
        whole = self._record.preview()["text/plain"]
        if whole.startswith(self._printed):
            self._print(f"{whole[len(self._printed) :]}\n")
        else:  # what was said after a call stands before the call there
            self._print(f"\n{whole.splitlines()[-1]}\n")

    def _print(self, text: str) -> None:
        self._printed += text
        if text and sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
