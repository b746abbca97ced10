"""Live table of a batch in a notebook; outside notebooks, each answer is printed at its end."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

from rekindle import markup
from rekindle.client.batches.run import BatchRun
from rekindle.core.concurrency.feed import TO_THE_END
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.core.words import one_line
from rekindle.notebook import front_end
from rekindle.notebook.live_text import GRACE_SECONDS, Cell, handles_clicks
from rekindle.results.answer_table import (
    MOST_ROWS,
    MOST_SHADED,
    AnswerRow,
    answer_html,
    head_html,
    prompt_html,
    row_html,
    whole_table,
)
from rekindle.results.generation import Generation

REDRAW_SECONDS = 0.25
"""The time between two updates; a table of fifty rows has about ten thousand bytes."""
LONGEST_PRINTED = 80
"""The maximum number of characters of a printed prompt."""
TAIL = 160
"""The maximum number of characters shown of a growing answer."""


def show(batch: BatchRun, cell: Cell, state: Callable[[], str]) -> Waits[None]:
    """Draw a batch until its end. Leaving early cancels the batch and keeps its partial answers.

    Args:
        state: a function to get the progress of the batch as text.
    """
    __tracebackhide__ = True  # hidden in tracebacks of cells
    screen = _screen(batch, cell)
    try:
        while not batch.ends.closed:
            screen.draw(state())
            yield Wait(batch.ends, TO_THE_END, REDRAW_SECONDS)
    finally:
        batch.cancel()
        try:
            yield from _grace(batch)
        finally:
            screen.close()


def _grace(batch: BatchRun) -> Waits[None]:
    """Wait briefly for the ends of cancelled requests, so that the output is complete."""
    last = perf_counter() + GRACE_SECONDS
    for each in batch.requests:
        if not isinstance(each, Exception) and not each.record.pieces.closed and (seconds := last - perf_counter()) > 0:
            yield Wait(each.record.pieces, TO_THE_END, seconds)


def _screen(batch: BatchRun, cell: Cell) -> "PrintedTable | HtmlTable | WidgetTable":
    if not front_end.in_notebook():
        return PrintedTable(batch)
    rows = [LiveRow(batch, place) for place in range(min(MOST_ROWS, len(batch.requests)))]
    if handles_clicks(front_end.kernel(), cell):
        try:
            return WidgetTable(batch, rows)
        except Exception:  # widgets are unavailable, for any reason
            return HtmlTable(batch, rows)
    return HtmlTable(batch, rows)


class LiveRow:
    """One row of the table: the end of a growing text, then the final row of the answer table.

    Attributes:
        has_ended: True once the final row exists.
        shaded: the number of tokens with a log-probability in a finished row.
    """

    def __init__(self, batch: BatchRun, place: int):
        self._batch, self._place = batch, place
        self._tail, self._position, self._html = "", 0, ""
        self.has_ended, self.shaded = False, 0

    def cancel(self) -> None:
        """Cancel the request, if it is unfinished."""
        if not isinstance(request := self._batch.requests[self._place], Exception):
            request.cancel()

    def html(self, shade: bool) -> str:
        """Return the current row; it is final once the request has ended. `shade` adds the heat map to the answer."""
        if self.has_ended:
            return self._html
        outcome, before = self._batch.outcome(self._place), self._batch.labels[self._place - 1] if self._place else None
        row = AnswerRow((self._place,), self._batch.labels[self._place], outcome)
        self.has_ended = outcome is not None
        if isinstance(outcome, Generation):
            self.shaded = len(outcome.logprobs or ())
        answer, ending = (answer_html(row, shade), row.ending) if self.has_ended else self._growing()
        self._html = row_html(row.name, prompt_html(row.prompt, before), answer, ending)
        return self._html

    def _growing(self) -> tuple[str, tuple[str, str, str]]:
        request = self._batch.requests[self._place]
        assert not isinstance(request, Exception), "an error has an outcome"
        new = request.record.pieces.items[self._position :]
        self._position += len(new)
        text = self._tail + "".join(piece.text for piece in new)
        self._tail = text if len(text) <= TAIL else f"…{text[1 - TAIL :]}"
        answer = f'{markup.visible(one_line(self._tail, TAIL))}<span style="opacity:0.5">▌</span>'
        now = request.record.standing
        return answer if self._tail else "", (now.state, f"{now.generated:,}", f"{now.seconds:.0f} s")


class HtmlTable:
    """An output with the table as HTML, and at the end the display of the answers."""

    def __init__(self, batch: BatchRun, rows: Sequence[LiveRow]):
        self._batch, self._rows = batch, rows
        self._stop = front_end.StopButton(batch.cancel, "To stop it, interrupt the kernel.", button=False)
        self._output = front_end.CellOutput()

    def draw(self, state: str) -> None:
        """Draw the current table; `state` is the progress of the batch as text."""
        self._output.draw(_bundle(state, _lines(self._rows), _more(self._batch, len(self._rows))))

    def close(self) -> None:
        """Draw the final answers."""
        self._output.draw(self._batch.so_far()._repr_mimebundle_())
        self._stop.close()


class WidgetTable:
    """The table as widgets, with a cancel button for each row. Only changes are sent to the front end.

    The methods are those of `HtmlTable`.
    """

    def __init__(self, batch: BatchRun, rows: Sequence[LiveRow]):
        from ipywidgets import HTML, Button, ButtonStyle, HBox, Layout, VBox

        self._batch, self._rows = batch, rows
        self._output: front_end.CellOutput | None = None
        self._state = HTML()
        text = {"layout": Layout(width="calc(100% - 6em)"), "style": self._state.style}
        narrow, style = Layout(width="5.5em", flex="0 0 auto"), ButtonStyle()
        line = Layout(overflow="visible", align_items="flex-start")
        self._more, self._nothing = HTML(**text), HTML(layout=narrow, style=self._state.style)
        self._lines = [HTML(**text) for _ in rows]
        self._buttons = [Button(description="Cancel", layout=narrow, style=style) for _ in rows]
        for row, button in zip(rows, self._buttons, strict=True):
            button.on_click(partial(_cancel_row, row))
        self._boxes = [HBox(pair, layout=line) for pair in zip(self._buttons, self._lines, strict=True)]
        head = HBox([self._nothing, HTML(whole_table([head_html()]), **text)], layout=line)
        self._root = VBox([self._state, head, *self._boxes, self._more], layout=Layout(overflow="auto"))
        widgets = [self._root, *self._root.children, *head.children, *self._buttons, *self._lines]
        self._parts = {*widgets, *(widget.layout for widget in widgets), self._state.style, style}

    def draw(self, state: str) -> None:
        lines, more = _lines(self._rows), _more(self._batch, len(self._rows))
        self._state.value, self._more.value = markup.card("Answers", state), more
        for row, box, html, line in zip(self._rows, self._boxes, self._lines, lines, strict=True):
            html.value = whole_table([line])
            if row.has_ended and box.children[0] is not self._nothing:
                box.children = (self._nothing, html)
        if self._output is None:
            self._output = front_end.CellOutput()
            self._output.draw(_bundle(state, lines, more) | {front_end.VIEW: self._root.get_view_spec()})

    def close(self) -> None:
        """Draw the final answers without buttons, since buttons would be dead in a saved notebook."""
        if self._output is None:
            self._output = front_end.CellOutput()
        self._output.draw(self._batch.so_far()._repr_mimebundle_())
        for part in self._parts:
            part.close()


class PrintedTable:
    """Standard output with the place, the prompt and the answer of each request, printed at the end of the request.

    The methods are those of `HtmlTable`.
    """

    def __init__(self, batch: BatchRun):
        self._batch = batch
        self._position = 0

    def draw(self, state: str) -> None:
        new = self._batch.ends.items[self._position :]
        self._position += len(new)
        for place in new:
            self._print(place, self._batch.outcome(place))

    def close(self) -> None:
        """Print the remaining finished answers in order of end, then partial answers of cancelled requests."""
        self.draw("")
        printed = {*self._batch.ends.items[: self._position]}
        for place, outcome in enumerate(self._batch.so_far()):
            if place not in printed and (not isinstance(outcome, Generation) or outcome.token_ids):
                self._print(place, outcome)

    def _print(self, place: int, outcome: Generation | Exception | None) -> None:
        row = AnswerRow((place,), self._batch.labels[place], outcome)
        text = outcome._repr_mimebundle_()["text/plain"] if isinstance(outcome, Generation) else row.answer
        if sys.stdout is not None:
            sys.stdout.write(f"{row.name} {row.prompt_line(LONGEST_PRINTED)}\n{text}\n\n")
            sys.stdout.flush()


def _cancel_row(row: LiveRow, _: object) -> None:
    row.cancel()


def _lines(rows: Sequence[LiveRow]) -> list[str]:
    """Return the current rows as HTML, with heat maps until `MOST_SHADED` tokens have one."""
    shaded, lines = 0, []
    for row in rows:
        lines.append(row.html(shaded < MOST_SHADED))
        shaded += row.shaded
    return lines


def _more(batch: BatchRun, rows: int) -> str:
    """Return a note about the requests without a row, and how many of them have ended; empty if all have rows."""
    more, ended = len(batch.requests) - rows, sum(place >= rows for place in batch.ends.items)
    return markup.note(f"and {more:,} more, {ended:,} of them ended") if more else ""


def _bundle(state: str, lines: Sequence[str], more: str) -> markup.Bundle:
    html = markup.card("Answers", state, whole_table([head_html(), *lines]), more)
    return markup.bundle(f"Answers: {state}", html)
