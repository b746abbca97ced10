"""A model and its tools, which answer each other: the rounds of that."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rekindle.core.concurrency import interrupts
from rekindle.core.concurrency.waits import Waits
from rekindle.core.errors import InvalidRequest
from rekindle.core.markup import quantity
from rekindle.core.text.response import ToolCall, tool_messages
from rekindle.results.generation import Generation
from rekindle.results.tool_run import Stop, ToolResult, ToolRun, ToolStep
from rekindle.tools.calling import Called, in_words
from rekindle.tools.tool import Tool, tools_of

Answered = Callable[[Sequence[Mapping[str, Any]]], Waits[Generation]]
"""Makes the wait for the model's answer to a conversation."""
Tell = Callable[[ToolStep], None]
"""Is told of each step once its calls have ended."""


def callable_tools(given: Any) -> dict[str, Tool]:
    """Return tools by name, all of which can be called.

    Raises:
        InvalidRequest: one is a schema alone, or as `tools_of`.
    """
    tools = tools_of(given)
    for place, tool in enumerate(tools):
        if tool.function is None:
            raise InvalidRequest(
                f"run_tools calls functions, and tools[{place}] ({tool.name}) is a JSON schema; give the function, or "
                "call it yourself for the tool_calls of generate()"
            )
    return {tool.name: tool for tool in tools}


class Rounds:
    """The rounds of one run.

    Args:
        messages: the conversation.
        tools: by name.
        limit: how often the model is asked at most.
        answered: asks it.
        tell: is told of each step.
    """

    def __init__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Mapping[str, Tool],
        limit: int,
        answered: Answered,
        tell: Tell,
    ):
        self._messages = list(messages)
        self._tools, self._limit, self._answered, self._tell = tools, limit, answered, tell
        self._steps: list[ToolStep] = []

    def run(self) -> Waits[ToolRun]:
        """Run to the end; leaving the wait leaves the answer or the function that it waits for."""
        __tracebackhide__ = True  # a cell shows errors without such frames
        try:
            return (yield from self._rounds())
        except BaseException as left:
            self._leave(left)
            raise

    def _rounds(self) -> Waits[ToolRun]:
        __tracebackhide__ = True
        for number in range(self._limit):
            answer = yield from self._answered(tuple(self._messages))
            self._messages.append(answer.message)
            if (stop := self._stop(answer, number + 1)) is not None:
                return ToolRun((*self._steps, ToolStep(answer)), list(self._messages), stop)
            results = []
            for call in answer.tool_calls:
                results.append((yield from self._result(call)))
            self._messages += tool_messages([(result.call, result.content) for result in results])
            self._steps.append(ToolStep(answer, tuple(results)))
            self._tell(self._steps[-1])
        raise AssertionError("the last round returns")

    def _result(self, call: ToolCall) -> Waits[ToolResult]:
        """Have a call answered; one that cannot be made is answered with the reason."""
        try:
            called = self._called(call)
        except ValueError as error:
            return ToolResult(call, f"error: {error}", error=error)
        outcome = yield called
        if isinstance(outcome, Exception):
            return ToolResult(call, in_words(outcome), error=outcome)
        try:
            return ToolResult(call, in_words(outcome), outcome)
        except (TypeError, ValueError, RecursionError) as error:
            return ToolResult(call, f"error: what {call.name} returned cannot be written as JSON: {error}", error=error)

    def _called(self, call: ToolCall) -> Called:
        """Return the function and the arguments of a call.

        Raises:
            ValueError: the call cannot be read, or there is no such function, or it takes no such arguments.
        """
        if call.error is not None:
            raise ValueError(f"the call cannot be read: {call.error}")
        tool = self._tools.get(call.name)
        if tool is None or tool.function is None:
            raise ValueError(f"there is no function {call.name!r}; there are {', '.join(self._tools)}")
        try:
            return Called(tool.function, tool.arguments(call.arguments))
        except ValueError as error:
            raise ValueError(f"{call.name} cannot take these arguments: {error}") from error

    def _stop(self, answer: Generation, asked: int) -> Stop | None:
        """Return why an answer is the last one; None if its calls are to be answered."""
        if answer.finish_reason == "cancelled":
            return "cancelled"
        if not answer.tool_calls:
            return "answer"
        if answer.finish_reason == "length":
            return "length"
        elsewhere = {name for name, tool in self._tools.items() if tool.function is None}
        if len(elsewhere) == len(self._tools) or any(call.name in elsewhere for call in answer.tool_calls):
            return "calls"
        return "limit" if asked == self._limit else None

    def _leave(self, left: BaseException) -> None:
        """Have an interrupt say which steps had ended; without tools there is none but the answer that was left."""
        if not self._tools:
            return
        words = f"interrupted after {quantity(len(self._steps), 'step')}, which are in `steps` of this error"
        interrupts.tell(left, words, "steps", tuple(self._steps))
