"""Results of tool runs: the answers of a model, its tool calls and their results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rekindle import markup
from rekindle.core.words import one_line, quantity
from rekindle.formats.response import ToolCall
from rekindle.results.generation import Generation, generation_html

Stop = Literal["answer", "limit", "calls", "length", "cancelled"]
"""Reason for the end of a tool run.

"answer": the last answer has no tool calls. "limit": the last allowed answer still has tool calls. "calls": the answer
calls a tool without a Python function, for the caller to execute. "length": max_tokens cut an answer with tool calls,
and none of its calls was executed. "cancelled": the user cancelled an answer with its button.
"""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of one tool call.

    Attributes:
        call: the tool call.
        content: the text of the tool message for the model, in which pictures are named.
        value: the return value of the function; None after an error.
        error: the exception of the function, or the reason for not calling it; None if the function returned.
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
    """Answer of the model with the results of its tool calls.

    Attributes:
        answer: the answer.
        results: the result of each tool call, in order; empty if none was executed.
    """

    answer: Generation
    results: tuple[ToolResult, ...] = ()

    def __repr__(self) -> str:
        return f"<rekindle.ToolStep {', '.join(map(str, self.results)) or repr(self.answer.content)}>"


@dataclass(frozen=True, slots=True)
class ToolRun:
    """Conversation of a model with its tools, from `session.run_tools`.

    Attributes:
        steps: the answers with the results of their calls; at least one.
        messages: the whole conversation, from the caller's messages to the last answer.
        stop: the reason for the end: "answer", "limit", "calls", "length" or "cancelled".
        drawn_in: the number of the notebook cell with a live display of this run; the cell does not show it again.
    """

    steps: tuple[ToolStep, ...]
    messages: list[Mapping[str, Any]] = field(hash=False)
    stop: Stop
    drawn_in: int | None = field(default=None, compare=False)

    @property
    def answer(self) -> Generation:
        """Last answer of the model. If `stop` is "limit", its tool calls have no results."""
        return self.steps[-1].answer

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """Results of all tool calls, in call order."""
        return tuple(result for step in self.steps for result in step.results)

    def __str__(self) -> str:
        return self.answer.content

    def __repr__(self) -> str:
        return f"<rekindle.ToolRun {self._state}: {self.answer.content!r}>"

    @property
    def _state(self) -> str:
        answers, calls = quantity(len(self.steps), "answer"), quantity(len(self.results), "call")
        counts = f"{answers}, {calls}"
        return counts if self.stop == "answer" else f"{counts}, ended: {self.stop}"

    def _ipython_display_(self) -> None:
        """Show nothing in the cell of `drawn_in`; elsewhere, NotImplementedError selects IPython's default display."""
        markup.display_again(self.drawn_in)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the whole run if this is the result of a cell, and the repr inside a container."""
        printer.text(repr(self) if printer.indentation else self._text())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        steps = (generation_html(step.answer, results_html(step.results)) for step in self.steps)
        blocks = (f'<div style="margin:0 0 0.8em 0">{step}</div>' for step in steps)
        return markup.bundle(self._text(), markup.card("ToolRun", self._state, *blocks))

    def _text(self) -> str:
        lines = [line for step in self.steps[:-1] for line in (results_text(step.results) or step.answer.content,)]
        return "\n".join([*lines, self.answer.content, f"[{self._state}]"])


def results_text(results: tuple[ToolResult, ...]) -> str:
    """Return the results of tool calls as text, one per line."""
    return "\n".join(f"[tool] {result}" for result in results)


def results_html(results: tuple[ToolResult, ...]) -> str:
    """Return the results of tool calls as an HTML table; empty for no results."""
    rows = [(str(result.call), one_line(result.content, markup.TAIL)) for result in results]
    return markup.table(rows, ("called", "result")) if rows else ""
