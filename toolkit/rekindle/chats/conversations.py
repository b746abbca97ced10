"""Conversations and runs of tools as a session begins them, with what they are given checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from rekindle.chats.chat import Chat
from rekindle.chats.turns import TURN_DEFAULTS, TurnOptions, Turns, draw_results, draws
from rekindle.client.prompts import Messages
from rekindle.client.requests import Asker, Requests
from rekindle.core import markup
from rekindle.core.concurrency.waits import Waits, way
from rekindle.core.keywords import spelled_out
from rekindle.core.request import checks
from rekindle.core.request.params import SamplingOptions, check_keywords
from rekindle.core.text.chat import check_messages, copy_messages
from rekindle.notebook.live_text import Cell
from rekindle.results.tool_run import ToolRun
from rekindle.tools.running import Rounds, callable_tools
from rekindle.tools.tool import AnyTool

LONGEST_SYSTEM = 10**7
"""The most characters of a system message."""
MOST_ROUNDS = 1000
"""The most rounds of a run of tools."""


@spelled_out(TurnOptions, TURN_DEFAULTS)
def chat(
    session: Asker,
    *,
    system: str | None = None,
    messages: Messages | None = None,
    tools: Sequence[AnyTool] | None = None,
    **ask: Unpack[TurnOptions],
) -> Chat:
    """Begin a conversation that remembers its turns: `chat = session.chat()`, then `await chat.say("...")`.

    Args:
        system: the text of a system message, which comes first.
        messages: how the conversation has begun, after the system message.
        tools: what the model may call. Python functions are called as in `run_tools`; JSON schemas are for the
            caller to answer.
        **ask: sampling parameters and variables of the chat template, for each turn that gives no others.

    Raises:
        InvalidRequest: the messages, the tools or the keywords cannot be served.
    """
    check_keywords(ask, TURN_DEFAULTS)
    begun: list[Mapping[str, Any]] = []
    if system is not None:
        begun.append({"role": "system", "content": checks.text("system", system, LONGEST_SYSTEM)})
    if messages is not None:
        check_messages(messages)
        begun += copy_messages(messages)
    sampling = {name: value for name, value in ask.items() if name in SamplingOptions.__annotations__}
    session._requests.params(sampling)  # type: ignore[arg-type]
    return Chat(session._requests, begun, tools, ask)


@spelled_out(TurnOptions, TURN_DEFAULTS)
def run_tools(
    session: Asker,
    messages: Messages,
    tools: Sequence[Callable[..., Any]],
    *,
    limit: int = 10,
    show: bool | None = None,
    **ask: Unpack[TurnOptions],
) -> Waits[ToolRun]:
    """Have the model answer a conversation, calling the functions that it wants, until it wants none.

    An async function is awaited in this cell's loop. Any other has a thread of its own, so that an interrupt ends
    the wait even if the function never returns; what has to run in the cell's own thread is best made async. What
    a function raises is told to the model as the result, and so is a call of an unknown function or with arguments
    that its annotations do not allow. `run_tools_sync` calls functions on this thread, and async ones in an asyncio
    loop on another.

    Leaving the await early cancels the request or leaves the function; an interrupt has the steps until then as its
    attribute `steps`.

    Args:
        messages: as in `generate`.
        tools: functions with annotations; the model is told of them by their docstrings too.
        limit: how often the model is asked at most. If it calls functions even then, `stop` of the result is
            "limit".
        show: draw each answer and each result as it comes. The default is to do so in a notebook.
        **ask: sampling parameters, and variables of the chat template.

    Raises:
        InvalidRequest: a function cannot be told to a model, such as one without annotations, or as `generate`.
        Others: as `generate`.
    """
    __tracebackhide__ = True  # a cell shows errors without such frames
    cell = (yield from way()) if draws(show) else None
    run = yield from _rounds(session._requests, messages, tools, limit, ask, cell).run()
    return run if cell is None else replace(run, drawn_in=markup.cell())  # which is not shown a second time in its cell


def _rounds(requests: Requests, messages: Any, given: Any, limit: int, ask: TurnOptions, cell: Cell | None) -> Rounds:
    check_keywords(ask, TURN_DEFAULTS)
    check_messages(messages)
    tools = callable_tools(given)
    turns = Turns(requests, [tool.schema for tool in tools.values()], ask)
    told = (lambda step: None) if cell is None else draw_results
    rounds = checks.integer("limit", limit, 1, MOST_ROUNDS)
    return Rounds(copy_messages(messages), tools, rounds, lambda said: turns.answered(said, cell), told)
