"""Requests that are drawn while they are waited for: in a cell's output, or in a terminal."""

from dataclasses import dataclass, replace
from typing import Any

from rekindle.client.batches.batch import Batch
from rekindle.client.batches.run import BatchRun, Errors
from rekindle.client.drawing import Report, Watch
from rekindle.client.handle import Handle
from rekindle.client.prompts import GenerateOptions
from rekindle.client.requests import Requests
from rekindle.core import markup
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.waits import Waits, way
from rekindle.notebook import awaited_programs, live_table, live_text
from rekindle.notebook.batch_progress import BatchPace, drawn
from rekindle.notebook.live_text import Cell
from rekindle.results.generation import Generation


@dataclass(frozen=True, slots=True)
class Showing:
    """Draws the requests of one session, as `rekindle.client.drawing.Drawing` says.

    Attributes:
        awaited: returns the program that the engine waits for.
    """

    awaited: Report

    def first_tokens(self, pieces: Feed[Any], seen: int) -> Waits[None]:
        return awaited_programs.grown(pieces, seen, self.awaited)

    def batch(self, longest: int | None) -> Watch:
        def watch(run: BatchRun) -> Waits[None]:
            return drawn(run.ends, BatchPace(run, longest).report, enabled=True)

        return watch

    def display(self, handle: Handle) -> None:
        live_text.display(handle)


def show(requests: Requests, prompt: Any, ask: GenerateOptions[Any], errors: Errors) -> Waits[Any]:
    """Check a call for generations, wait for them, and draw them meanwhile; see `Session.show`."""
    __tracebackhide__ = True  # a cell shows errors without such frames
    cell, called = (yield from way()), requests.call(prompt, ask, errors=errors)
    if isinstance(called, Handle):
        return (yield from show_one(called, cell))
    return (yield from _show_batch(called, cell))


def show_one(handle: Handle, cell: Cell) -> Waits[Generation]:
    """Draw a request to its end, and return the generation, or what had come of a cancelled request."""
    __tracebackhide__ = True
    yield from live_text.show(handle, cell)
    return replace(handle.record.so_far(), drawn_in=markup.cell())


def _show_batch(batch: Batch, cell: Cell) -> Waits[Any]:
    """Draw a batch to its end; what had come of a cancelled request is its answer."""
    __tracebackhide__ = True

    def watch(run: BatchRun) -> Waits[None]:
        return live_table.show(run, cell, BatchPace(run, batch.variants[0].max_tokens).line)

    answers = yield from batch.wait_ended(watch, keeps_cancelled=True)
    answers.drawn_in = markup.cell()
    return answers
