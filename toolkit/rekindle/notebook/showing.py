"""Drawing of pending requests in the output of a cell or in a terminal."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rekindle import markup
from rekindle.client.batches.batch import Batch
from rekindle.client.batches.drawing import Report, Watch
from rekindle.client.batches.run import BatchRun, Errors
from rekindle.client.calls.options import GenerateOptions
from rekindle.client.handle import Handle
from rekindle.client.requests import Requests
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.waits import Waits, way
from rekindle.notebook.log import tell_line
from rekindle.notebook.progress import awaited_programs
from rekindle.results.generation import Generation

if TYPE_CHECKING:
    from rekindle.notebook.live_text import Cell


@dataclass(frozen=True, slots=True)
class NotebookDrawer:
    """Drawer of a session's requests; it implements `rekindle.client.batches.drawing.Drawer`.

    Attributes:
        report: a function to get the progress of the compilation awaited by the engine; its result may be None.
    """

    report: Report

    def wait(self, pieces: Feed[Any], count: int) -> Waits[None]:
        return awaited_programs.wait_for_more(pieces, count, self.report)

    def look(self, answers: Feed[Any]) -> Waits[None]:
        return awaited_programs.wait_for_look(answers, self.report)

    def batch(self, longest: int | None) -> Watch:
        from rekindle.notebook.progress.batch_progress import BatchPace, draw_progress

        def watch(run: BatchRun) -> Waits[None]:
            return draw_progress(run.ends, BatchPace(run, longest, self.report).report, enabled=True)

        return watch

    def note(self, line: str) -> None:
        tell_line(line)

    def display(self, handle: Handle) -> None:
        from rekindle.notebook import live_text

        live_text.display(handle)


def show(requests: Requests, prompt: Any, ask: GenerateOptions[Any], errors: Errors) -> Waits[Any]:
    """Submit the requests of a call, draw them until they end, and return the answers; see `Session.show`."""
    __tracebackhide__ = True  # hidden in tracebacks of cells
    cell, pending = (yield from way()), requests.call(prompt, ask, errors=errors)
    if isinstance(pending, Handle):
        return (yield from show_one(pending, cell))
    return (yield from _show_batch(pending, cell, requests.engine.facts.programs.awaited))


def show_one(handle: Handle, cell: "Cell") -> Waits[Generation]:
    """Draw a request to its end; return its generation, or the partial generation of a cancelled request."""
    __tracebackhide__ = True
    from rekindle.notebook import live_text

    yield from live_text.show(handle, cell)
    return replace(handle.record.so_far(), drawn_in=markup.cell())


def _show_batch(batch: Batch, cell: "Cell", awaited: Report) -> Waits[Any]:
    """Draw a batch to its end, and return its answers; a cancelled request has its partial generation as answer."""
    __tracebackhide__ = True

    from rekindle.notebook import live_table
    from rekindle.notebook.progress.batch_progress import BatchPace

    def watch(run: BatchRun) -> Waits[None]:
        return live_table.show(run, cell, BatchPace(run, batch.variants[0].max_tokens, awaited).line)

    answers = yield from batch.wait_ended(watch, keeps_cancelled=True)
    answers.drawn_in = markup.cell()
    return answers
