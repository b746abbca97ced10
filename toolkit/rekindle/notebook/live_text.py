"""A request drawn as its text comes: in an output of a notebook's cell, or printed where there is none."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal, Protocol

from rekindle import markup
from rekindle.concurrency.feed import TO_THE_END, Feed
from rekindle.concurrency.mailbox import in_trio
from rekindle.concurrency.threads import soon
from rekindle.concurrency.waits import Wait, Waits, blocked
from rekindle.errors import RequestCancelled
from rekindle.notebook.front_end import (
    Output,
    StopButton,
    context_of_threads,
    hears_clicks_while_a_cell_awaits,
    kernel,
)
from rekindle.notebook.printed import Printed
from rekindle.results import Piece, Standing

REDRAWN_SECONDS = 0.06
"""At least so long lies between two drawings in a notebook."""
LOOKED_AT_SECONDS = 0.25
"""How often to look for what no piece tells: that it has started, or is being cancelled."""
GRACE_SECONDS = 0.2
"""How long a cell that is left stays for the engine's answer, so that its output is complete."""

Cell = Literal["awaits", "blocks", "ends"]
"""What the cell that asks for a drawing does meanwhile."""


class Request(Protocol):
    """What is drawn: a `rekindle.Handle`."""

    @property
    def pieces(self) -> Feed[Piece]: ...
    @property
    def standing(self) -> Standing: ...
    @property
    def known(self) -> dict[str, str | None]: ...
    def shown(self) -> markup.Bundle: ...
    def cancel(self) -> None: ...
    def result(self) -> object: ...


class Screen(Protocol):
    """Where it is drawn.

    Attributes:
        seconds: at least so long lies between two drawings.
    """

    seconds: float

    def draw(self) -> None:
        """Draw it as it is now."""

    def close(self) -> None:
        """Draw it as it has ended."""


def show(request: Request, cell: Cell) -> Waits[None]:
    """Draw a request to its end. Leaving early cancels it; what came of it stays, and so does one that is cancelled.

    Raises:
        RekindleError: it failed; the class says why.
    """
    __tracebackhide__ = True  # a cell shows errors without such frames
    screen = _screen(request, cell)
    try:
        yield from drawing(request, screen)
    except BaseException:
        request.cancel()
        try:
            yield Wait(request.pieces, TO_THE_END, GRACE_SECONDS)
        finally:
            _draw_on(request, screen)
        raise
    with suppress(RequestCancelled):
        request.result()


def display(request: Request) -> None:
    """Draw a request from now on, and return at once."""
    screen = _screen(request, "ends")
    if not request.pieces.closed:
        screen.draw()  # here, since an output belongs to the cell that runs when it is first drawn
    _draw_on(request, screen)


def drawing(request: Request, screen: Screen) -> Waits[None]:
    """Draw it whenever there is something new, but not too often, and at its end."""
    __tracebackhide__ = True
    pieces = request.pieces
    while not pieces.closed:
        seen = len(pieces.items)
        screen.draw()
        yield Wait(pieces, TO_THE_END, screen.seconds)
        yield Wait(pieces, seen, LOOKED_AT_SECONDS)
    screen.close()


def _draw_on(request: Request, screen: Screen) -> None:
    """Draw it to its end, on a thread unless that has come."""
    draw = partial(blocked, drawing(request, screen))
    if request.pieces.closed:
        draw()
    else:
        soon(partial(context_of_threads().run, draw), "display")


def _screen(request: Request, cell: Cell) -> Screen:
    if (found := kernel()) is None:
        return Printed(request)
    if cell == "ends":
        heard, otherwise = True, "To stop it, call cancel() of the handle."
    else:
        heard = cell == "awaits" and not in_trio() and hears_clicks_while_a_cell_awaits(found)
        otherwise = "To stop it, interrupt the kernel."
    return Card(request, partial(StopButton, request.cancel, otherwise, button=heard))


class Card:
    """An output that shows the end of the text while it grows, and then what a cell shows of the whole.

    Args:
        request: what is drawn.
        stop: makes what it can be stopped with.
    """

    seconds = REDRAWN_SECONDS

    def __init__(self, request: Request, stop: Callable[[], StopButton]):
        self._request = request
        self._make_stop = stop
        self._stop: StopButton | None = None
        self._output = Output()
        self._seen = self._before = 0
        self._text = ""

    def draw(self) -> None:
        if self._stop is None:
            self._stop = self._make_stop()
        self._output.draw(self._now())

    def close(self) -> None:
        self._output.draw(self._request.shown())
        if self._stop is not None:
            self._stop.close()

    def _now(self) -> markup.Bundle:
        standing, known = self._request.standing, markup.facts(self._request.known)
        state = f"{standing.state}, {markup.counted(standing.generated, 'token')}"
        pieces = self._request.pieces.items
        new = pieces[self._seen :]
        self._seen += len(new)
        text = self._text + "".join(piece.text for piece in new)
        self._text = text[-markup.HEAD :]
        self._before += len(text) - len(self._text)
        growing = markup.growing(self._text, self._before)
        plain = f"{self._text}\n[{state}]" if self._text else f"[{state}]"
        return markup.bundle(plain, markup.card("Generation", state, growing, known))
