"""Session methods for conversations and tool runs: `chat` and `run_tools`, with checks of their arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Never, Unpack

from rekindle import markup
from rekindle.chats.chat import Chat
from rekindle.chats.turns import TURN_DEFAULTS, Turn, TurnOptions, draw_results, drawing, draws
from rekindle.client.calls.options import Messages
from rekindle.client.requests import HasRequests, Requests
from rekindle.client.window import WhenFull, check_when_full
from rekindle.core.concurrency.waits import Waits, way
from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import spelled_out
from rekindle.core.request import checks
from rekindle.core.request.params import SamplingOptions, check_keywords
from rekindle.formats.rendering.chat import check_messages, copy_messages
from rekindle.notebook.live_text import Cell
from rekindle.results.tool_run import ToolRun
from rekindle.tools.running import Respond, Rounds, callable_tools
from rekindle.tools.tool import Tool
from rekindle.tools.toolset import CallableTool, ChatTool

LONGEST_SYSTEM = 10**7
"""Maximum length of a system message in characters."""
MOST_ROUNDS = 1000
"""Maximum number of rounds of a tool run."""


@spelled_out(TurnOptions, TURN_DEFAULTS)
def chat(
    session: HasRequests,
    *turn: Never,
    system: str | None = None,
    messages: Messages | None = None,
    tools: Sequence[ChatTool] | None = None,
    when_full: WhenFull = "trim",
    **options: Unpack[TurnOptions],
) -> Chat:
    """Start a conversation with a history of turns: `chat = session.chat()`, then `await chat.say("...")`.

    Args:
        *turn: nothing; a user message is for `say`.
        system: the text of a system message at the start.
        messages: the first messages, after the system message.
        tools: the tools for the model. Calls of Python functions, and of the tools of MCP servers by their clients, are
            executed as in `run_tools`; calls of tools passed as JSON schemas are left to the caller. A server is asked
            for its tools at the first turn.
        when_full: what to do when the conversation no longer fits the context with room for an answer: `max_tokens`, or
            a quarter of the context if that is less. With "trim", the oldest turns are no longer sent, each whole: a
            message of the user with all up to the next one. System messages and the last turn stay. About half of the
            conversation leaves at a time, so that the prefix cache serves the next turns. With "stop", PromptTooLong is
            raised once there is no room for one token. A function, perhaps async, takes the messages and the most
            tokens of their prompt, and returns messages to send in their place, for example a summary and the last
            turns. They stay until the context is full again; the function then takes them with the turns since.
            `chat.messages` keeps all messages, and `chat.window` has the ones to send.
        **options: default sampling parameters and chat template variables of all turns. Others come from the model, and
            for the default model from the recommendation of its card: temperature 0.2, top_p 0.9, with min_p
            0.7, frequency_penalty 0.5, repetition_penalty 1.03 and max_tokens 1,024. With `sampling_defaults="neutral"`
            in `open`, chats are greedy, as `generate` is.

    An answer ends with the finish reason "repetition" when its last 64 or more tokens are the same tokens at least four
    times in a row, when a list restarts, or when 128 words were nearly all said twice before; code, tables, JSON and
    verse have more room. The conversation keeps the answer up to the first occurrence. A constrained answer, and one
    with `ignore_eos`, does not end so.

    Returns:
        A `rekindle.Chat`. Nothing is computed before the first turn.

    Raises:
        InvalidRequest: the messages, the tools or the options are invalid.
    """
    check_keywords(options, (*TURN_DEFAULTS, "system", "messages", "tools", "when_full"))
    if turn:
        raise InvalidRequest(
            "chat() begins a conversation without a turn: chat = session.chat(), then await chat.say('...'); earlier "
            f"messages are messages=[...]; got {checks.preview(turn[0])}"
        )
    history: list[Mapping[str, Any]] = []
    if system is not None:
        history.append({"role": "system", "content": checks.text("system", system, LONGEST_SYSTEM)})
    if messages is not None:
        check_messages(messages)
        history += copy_messages(messages)
    sampling = {name: value for name, value in options.items() if name in SamplingOptions.__annotations__}
    requests = session._requests.chatting()
    requests.params(sampling)  # type: ignore[arg-type]
    check_when_full(when_full)
    return Chat(requests, history, tools, options, when_full)


@spelled_out(TurnOptions, TURN_DEFAULTS)
def run_tools(
    session: HasRequests,
    messages: Messages,
    tools: Sequence[CallableTool],
    *,
    limit: int = 10,
    show: bool | None = None,
    **options: Unpack[TurnOptions],
) -> Waits[ToolRun]:
    """Answer a conversation: execute the model's function calls until it answers without calls.

    Async functions are awaited in the caller's event loop. Other functions run in separate threads, so that an
    interrupt ends the wait even if a function never returns; make a function async if it has to run in the caller's
    thread. `run_tools_sync` calls functions in the caller's thread, and async functions in an asyncio loop of another
    thread.

    If a function raises an error, the error becomes the result of the call for the model. The same applies to calls of
    unknown functions, and to arguments that do not match the annotations. The model also reads the errors of an MCP
    server: of a tool, of a call beyond the client's time limit, and that the server is gone.

    Leaving the wait early cancels the request or abandons the running function. An interrupt carries the finished steps
    as its attribute `steps`.

    Args:
        messages: the conversation, as in `generate`.
        tools: annotated functions, with docstrings as parts of the prompt; and clients of MCP servers
            (`mcp.ClientSession` or `mcp.Client`, entered in this event loop), with all their tools.
        limit: the maximum number of answers. If the last one still has calls, `stop` of the result is "limit".
        show: whether to draw each answer and result as it arrives. The default is True in a notebook.
        **options: sampling parameters and chat template variables.

    Returns:
        A `rekindle.ToolRun` with all answers, calls and results.

    Raises:
        InvalidRequest: a function cannot be described to the model, such as one without annotations; two tools have
            one name; an MCP server does not list its tools, or is called by `run_tools_sync` in the thread of its
            event loop; or as in `generate`.
        Others: as in `generate`.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    cell = (yield from way()) if draws(show) else None
    check_keywords(options, (*TURN_DEFAULTS, "tools", "limit", "show"))
    check_messages(messages)
    callables = yield from callable_tools(tools)
    run = yield from _rounds(session._requests.conversing(), messages, callables, limit, options, cell).run()
    return run if cell is None else replace(run, drawn_in=markup.cell())  # prevents a second display in the same cell


def _rounds(
    requests: Requests,
    messages: Messages,
    tools: Mapping[str, Tool],
    limit: int,
    options: TurnOptions,
    cell: Cell | None,
) -> Rounds:
    turn = Turn(requests, [tool.schema for tool in tools.values()], options)
    on_step = (lambda step: None) if cell is None else draw_results
    rounds = checks.integer("limit", limit, 1, MOST_ROUNDS)
    respond: Respond = lambda history: turn.answer(history, drawing(cell))  # noqa: E731
    return Rounds(copy_messages(messages), tools, rounds, respond, on_step, sees=turn.sees)
