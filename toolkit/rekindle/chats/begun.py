"""Conversations and runs of tools as a session begins them, with what they are given checked."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rekindle.chats.chat import Chat
from rekindle.chats.turns import TURN_DEFAULTS, TurnOptions, Turns, draw_results, draws
from rekindle.client.requests import Requests
from rekindle.core import markup
from rekindle.core.concurrency.waits import Waits, way
from rekindle.core.request import checks
from rekindle.core.request.params import SamplingOptions, check_keywords
from rekindle.core.text.chat import check_messages, copied
from rekindle.notebook.live_text import Cell
from rekindle.results.tool_run import ToolRun
from rekindle.tools.running import Rounds, callable_tools

LONGEST_SYSTEM = 10**7
"""The most characters of a system message."""
MOST_ROUNDS = 1000
"""The most rounds of a run of tools."""


def chat_of(requests: Requests, system: str | None, messages: Any, tools: Any, ask: TurnOptions) -> Chat:
    """Return a conversation; see `Session.chat`."""
    check_keywords(ask, TURN_DEFAULTS)
    begun: list[Mapping[str, Any]] = []
    if system is not None:
        begun.append({"role": "system", "content": checks.text("system", system, LONGEST_SYSTEM)})
    if messages is not None:
        check_messages(messages)
        begun += copied(messages)
    requests.params({name: value for name, value in ask.items() if name in SamplingOptions.__annotations__})  # type: ignore[arg-type]
    return Chat(requests, begun, tools, ask)


def run_tools(
    requests: Requests, messages: Any, tools: Any, limit: int, show: bool | None, ask: TurnOptions
) -> Waits[ToolRun]:
    """Run a model and its tools; see `Session.run_tools`."""
    __tracebackhide__ = True  # a cell shows errors without such frames
    cell = (yield from way()) if draws(show) else None
    run = yield from _rounds(requests, messages, tools, limit, ask, cell).run()
    return run if cell is None else replace(run, drawn_in=markup.cell())  # which is not shown a second time in its cell


def _rounds(requests: Requests, messages: Any, given: Any, limit: int, ask: TurnOptions, cell: Cell | None) -> Rounds:
    check_keywords(ask, TURN_DEFAULTS)
    check_messages(messages)
    tools = callable_tools(given)
    turns = Turns(requests, [tool.schema for tool in tools.values()], ask)
    told = (lambda step: None) if cell is None else draw_results
    rounds = checks.integer("limit", limit, 1, MOST_ROUNDS)
    return Rounds(copied(messages), tools, rounds, lambda said: turns.answered(said, cell), told)
