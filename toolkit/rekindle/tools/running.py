"""Tool runs: rounds of an answer by the model, followed by the execution of its tool calls."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rekindle.core.concurrency import interrupts
from rekindle.core.concurrency.waits import Waits, WaitStep
from rekindle.core.errors import InvalidRequest
from rekindle.core.words import quantity
from rekindle.formats.response import ToolCall, tool_messages
from rekindle.results.generation import Generation
from rekindle.results.tool_run import Stop, ToolResult, ToolRun, ToolStep
from rekindle.tools.calling import ToolOutput, result_content, result_text
from rekindle.tools.content import Content, as_text, for_model
from rekindle.tools.tool import Tool
from rekindle.tools.toolset import Toolset

Respond = Callable[[Sequence[Mapping[str, Any]]], Waits[Generation]]
"""Returns the operation that waits for the model's answer to a conversation."""
OnStep = Callable[[ToolStep], None]
"""Callback for each step, after its calls have ended."""


def callable_tools(items: Any) -> Waits[dict[str, Tool]]:
    """Return functions and the tools of MCP servers by name, after asking the servers.

    Raises:
        InvalidRequest: a tool is a JSON schema, or as in `Toolset`.
    """
    toolset = Toolset(items)
    for place, part in enumerate(toolset.parts):
        if isinstance(part, Tool) and part.begin is None:
            raise InvalidRequest(
                f"run_tools calls functions, and tools[{place}] ({part.name}) is a JSON schema; give the function, or "
                "call it yourself for the tool_calls of generate()"
            )
    return {tool.name: tool for tool in (yield from toolset.wait_listed())}


class Rounds:
    """Rounds of one tool run.

    Args:
        messages: the conversation.
        tools: the tools by name.
        limit: the maximum number of answers.
        respond: requests the model's answer to a conversation.
        on_step: the callback for each step.
        sees: returns whether the model takes pictures in results; called for a result with one.

    Attributes:
        messages: the conversation with all answers and results so far.
    """

    def __init__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Mapping[str, Tool],
        limit: int,
        respond: Respond,
        on_step: OnStep,
        *,
        sees: Callable[[], bool],
    ):
        self.messages = list(messages)
        self._tools, self._limit, self._respond, self._on_step, self._sees = tools, limit, respond, on_step, sees
        self._steps: list[ToolStep] = []

    def run(self) -> Waits[ToolRun]:
        """Run to the end. Leaving the wait cancels the running request or abandons the running function."""
        __tracebackhide__ = True  # hides this frame from notebook tracebacks
        try:
            return (yield from self._rounds())
        except BaseException as error:
            self._leave(error)
            raise

    def _rounds(self) -> Waits[ToolRun]:
        __tracebackhide__ = True
        for number in range(self._limit):
            answer = yield from self._respond(tuple(self.messages))
            self.messages.append(answer.message)
            if (stop := self._stop(answer, number + 1)) is not None:
                return ToolRun((*self._steps, ToolStep(answer)), list(self.messages), stop)
            results = []
            for call in answer.tool_calls:
                results.append((yield from self._result(call)))
            self.messages += tool_messages([(result.call, content) for result, content in results])
            self._steps.append(ToolStep(answer, tuple(result for result, _ in results)))
            self._on_step(self._steps[-1])
        raise AssertionError("the last round returns")

    def _result(self, call: ToolCall) -> Waits[tuple[ToolResult, Content]]:
        """Execute a call; return its result, and the content for the model. Those of an invalid call are its error."""
        try:
            step = self._step(call)
        except ValueError as error:
            return _failed(call, f"error: {error}", error)
        outcome = yield step
        if isinstance(outcome, Exception):
            return _failed(call, result_text(outcome), outcome)
        output = outcome
        if not isinstance(outcome, ToolOutput):
            try:
                output = ToolOutput(result_content(outcome), outcome)
            except (TypeError, ValueError, RecursionError) as error:
                return _failed(call, f"error: the result of {call.name} cannot be written as JSON: {error}", error)
        content = output.content if isinstance(output.content, str) else for_model(output.content, sees=self._sees())
        return ToolResult(call, as_text(content), output.value), content

    def _step(self, call: ToolCall) -> WaitStep:
        """Return the step that executes a tool call.

        Raises:
            ValueError: the call cannot be parsed, the function does not exist, or the arguments do not match.
        """
        if call.error is not None:
            raise ValueError(f"the call cannot be read: {call.error}")
        tool = self._tools.get(call.name)
        if tool is None or tool.begin is None:
            raise ValueError(f"there is no function {call.name!r}; there are {', '.join(self._tools)}")
        try:
            return tool.begin(call.arguments)
        except ValueError as error:
            raise ValueError(f"{call.name} cannot take these arguments: {error}") from error

    def _stop(self, answer: Generation, rounds: int) -> Stop | None:
        """Return the reason for ending the run at an answer; None to execute the answer's calls."""
        if answer.finish_reason == "cancelled":
            return "cancelled"
        if not answer.tool_calls:
            return "answer"
        if answer.finish_reason in ("length", "repetition"):  # the last call may be cut
            return "length"
        elsewhere = {name for name, tool in self._tools.items() if tool.begin is None}
        if len(elsewhere) == len(self._tools) or any(call.name in elsewhere for call in answer.tool_calls):
            return "calls"
        return "limit" if rounds == self._limit else None

    def _leave(self, error: BaseException) -> None:
        """Attach the finished steps to an interrupt, if there are tools."""
        if not self._tools:
            return
        words = f"interrupted after {quantity(len(self._steps), 'step')}, which are in `steps` of this error"
        interrupts.tell(error, words, "steps", tuple(self._steps))


def _failed(call: ToolCall, content: str, error: Exception) -> tuple[ToolResult, Content]:
    return ToolResult(call, content, error=error), content
