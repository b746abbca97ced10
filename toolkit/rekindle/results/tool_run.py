"""What came of a model and its tools, which answered each other until the model had an answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rekindle.core import markup
from rekindle.core.text.response import ToolCall
from rekindle.results.generation import Generation, generation_html

Stop = Literal["answer", "limit", "calls", "length", "cancelled"]
"""Why a run ended. "answer": the model called nothing more. "limit": it was asked as often as allowed, and still
called. "calls": it called a tool that is called elsewhere. "length": an answer with calls was cut by max_tokens, and
none of them was made. "cancelled": an answer was stopped by its button."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of one call.

    Attributes:
        call: the call.
        content: what the model was told.
        value: what the function returned; None if it failed.
        error: the error that it raised, or why it was not called; None if it returned.
    """

    call: ToolCall
    content: str
    value: Any = field(default=None, hash=False)
    error: Exception | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.call} → {self.content}"

    def __repr__(self) -> str:
        return f"<rekindle.ToolResult {self.call} → {self.content!r:.200}>"


@dataclass(frozen=True, slots=True)
class ToolStep:
    """One answer of the model, and what came of its calls."""

    answer: Generation
    results: tuple[ToolResult, ...] = ()

    def __repr__(self) -> str:
        return f"<rekindle.ToolStep {', '.join(map(str, self.results)) or repr(self.answer.content)}>"


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A conversation of a model with its tools, from `session.run_tools`.

    Attributes:
        steps: each answer with what came of its calls; at least one.
        messages: the whole conversation, from what was given to the last answer.
        stop: "answer", "limit", "calls", "length" or "cancelled", which says why it ended.
        drawn_in: the number of the cell of a notebook that has drawn it already; it is not shown there a second time.
    """

    steps: tuple[ToolStep, ...]
    messages: list[Mapping[str, Any]] = field(hash=False)
    stop: Stop
    drawn_in: int | None = field(default=None, compare=False)

    @property
    def answer(self) -> Generation:
        """The last answer of the model. Where `stop` is "limit" it has calls, which nobody answered."""
        return self.steps[-1].answer

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The outcomes of all calls, in their order."""
        return tuple(result for step in self.steps for result in step.results)

    def __str__(self) -> str:
        return self.answer.content

    def __repr__(self) -> str:
        return f"<rekindle.ToolRun {self._state}: {self.answer.content!r}>"

    @property
    def _state(self) -> str:
        asked = markup.quantity(len(self.steps), "answer")
        said = f"{asked}, {markup.quantity(len(self.results), 'call')}"
        return said if self.stop == "answer" else f"{said}, ended: {self.stop}"

    def _ipython_display_(self) -> None:
        """Show nothing in the cell that has drawn it already; NotImplementedError has IPython show it as all else."""
        if self.drawn_in is None or self.drawn_in != markup.cell():
            raise NotImplementedError

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print all of it where this is the result of a cell, and the repr where it is in a list."""
        printer.text(repr(self) if printer.indentation else self._text())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        steps = (generation_html(step.answer, results_html(step.results)) for step in self.steps)
        apart = (f'<div style="margin:0 0 0.8em 0">{step}</div>' for step in steps)
        return markup.bundle(self._text(), markup.card("ToolRun", self._state, *apart))

    def _text(self) -> str:
        lines = [line for step in self.steps[:-1] for line in (results_text(step.results) or step.answer.content,)]
        return "\n".join([*lines, self.answer.content, f"[{self._state}]"])


def results_text(results: tuple[ToolResult, ...]) -> str:
    """Return what came of calls, each on a line."""
    return "\n".join(f"[tool] {result}" for result in results)


def results_html(results: tuple[ToolResult, ...]) -> str:
    """Return what came of calls as a table; nothing for none."""
    rows = [(str(result.call), markup.one_line(result.content, markup.HEAD)) for result in results]
    return markup.table(rows, ("called", "result")) if rows else ""
